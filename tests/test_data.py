"""Data sets: real digits, small files in the real formats, and what happens when files are broken or missing."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedlib import data
from fedlib.core.errors import FedlibError
from fedlib.data import formats, sources
from fedlib.data.digits import small_digits

REAL = data.data_dir()  # before any test points elsewhere


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty data directory, and no way out: no programs on the path, a proxy that refuses."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "")
    return tmp_path / "data"


def images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def small_mnist() -> sources.Arrays:
    y = np.arange(30, dtype=np.uint8) % 10
    return dict(x_train=images(30, 1, 28, 28), y_train=y, x_test=images(10, 1, 28, 28, seed=1), y_test=y[:10])


def small_cifar() -> sources.Arrays:
    y = np.arange(20, dtype=np.uint8) % 10
    return dict(x_train=images(20, 3, 32, 32), y_train=y, x_test=images(10, 3, 32, 32, seed=1), y_test=y[:10])


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder: Path, arrays: sources.Arrays, pack=False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, key in zip(formats.IDX, sources.KEYS, strict=True):
        raw = idx(arrays[key][:, 0] if key[0] == "x" else arrays[key])
        (folder / (name + ".gz" if pack else name)).write_bytes(gzip.compress(raw) if pack else raw)


def write_cifar(folder: Path, arrays: sources.Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    train = np.hstack([arrays["y_train"][:, None], arrays["x_train"].reshape(-1, 3072)])
    test = np.hstack([arrays["y_test"][:, None], arrays["x_test"].reshape(-1, 3072)])
    for name, records in zip(formats.CIFAR_BINARY, [*np.split(train, 5), test], strict=True):
        records.tofile(folder / name)


def source_of(text: str) -> sources.Source:
    return data.DATASETS.make(text).source


def small(name: str, arrays: sources.Arrays, **ways) -> sources.Source:
    """The source of that name as it is, but for the small data it should yield."""
    sizes = len(arrays["y_train"]), len(arrays["y_test"])
    return dataclasses.replace(source_of(name), digest=sources.digest(arrays), sizes=sizes, **ways)


def equal(found: sources.Arrays, expected: sources.Arrays) -> bool:
    return all((found[k] == expected[k]).all() and found[k].dtype == np.uint8 for k in sources.KEYS)


# ---------------------------------------------------------------- files in the data directory


@pytest.mark.parametrize("name, pack", [("mnist", False), ("mnist", True), ("fashion_mnist", True)])
def test_idx_files_are_read_cached_and_then_no_longer_needed(folder, name, pack):
    arrays = small_mnist()
    source = small(name, arrays)
    write_idx(folder / source.layouts[0].folder, arrays, pack)
    found, where = sources.read(source)
    assert equal(found, arrays) and where == "data directory"
    for file in (folder / source.layouts[0].folder).iterdir():
        file.unlink()
    assert equal(sources.read(source)[0], arrays)
    assert sources.header(source) == dict(train=30, test=10, source="data directory", checksum=source.digest)


def test_cifar_binary_files_are_read(folder):
    arrays = small_cifar()
    write_cifar(folder / "cifar-10-batches-bin", arrays)
    assert equal(sources.read(small("cifar10", arrays))[0], arrays)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_cifar_sheets_are_read_with_and_without_alpha(tmp_path, mode):
    arrays = small_cifar()
    rows = {f"data_batch_{k + 1}": x for k, x in enumerate(np.split(arrays["x_train"], 5))}
    for name, x in (rows | {"test_batch": arrays["x_test"]}).items():
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).convert(mode).save(tmp_path / f"{name}.png")
    for part in ("train", "test"):
        (tmp_path / f"{part}_lables.json").write_text(json.dumps(arrays[f"y_{part}"].tolist()))
    assert equal(formats.read_cifar_sheets(tmp_path), arrays)


@pytest.mark.parametrize("keep", [0, 3, 10, 400])
def test_a_cut_idx_file_is_noticed(tmp_path, keep):
    path = tmp_path / "x"
    path.write_bytes(idx(images(5, 28, 28))[:keep])
    with pytest.raises(FedlibError, match="not a whole idx file"):
        formats.read_idx(path)


def damage_cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def damage_flip(raw: bytes) -> bytes:
    return raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:]


def damage_empty(raw: bytes) -> bytes:
    return b""


def damage_swap_labels(raw: bytes) -> bytes:
    """A sound archive with other labels: only the pinned checksum can tell."""
    with np.load(io.BytesIO(raw)) as file:
        arrays = {k: file[k] for k in file.files}
    arrays["y_train"] = arrays["y_train"][::-1]
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_empty, damage_swap_labels])
def test_a_damaged_cached_file_is_noticed_and_rebuilt(folder, damage):
    arrays = small_mnist()
    source = small("mnist", arrays)
    write_idx(folder / source.layouts[0].folder, arrays)
    sources.read(source)
    sound = source.cache.read_bytes()
    source.cache.write_bytes(damage(sound))
    with pytest.warns(UserWarning, match="damaged"):
        assert equal(sources.read(source)[0], arrays)
    assert source.cache.read_bytes() == sound
    assert not list(folder.glob("*.tmp"))


def test_a_damaged_cached_file_without_a_source_is_never_used(folder):
    folder.mkdir()
    (folder / "mnist.npz").write_bytes(b"PK\3\4 half a file")
    assert not next(r for r in data.inventory() if r["name"] == "mnist")["present"]
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(FedlibError, match="was not found"):
        data.load("mnist")


def test_files_with_other_data_are_rejected(folder):
    write_idx(folder / "MNIST/raw", small_mnist())  # sound files, but not MNIST
    with (
        pytest.warns(UserWarning, match="training and test samples"),
        pytest.raises(FedlibError, match="was not found"),
    ):
        data.get("mnist", progress=False)
    assert not (folder / "mnist.npz").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_missing_data_set_names_all_three_ways_in_one_sentence(folder, name):
    with pytest.raises(FedlibError) as error:
        data.get(name, progress=False)
    text = str(error.value)
    assert str(folder / source_of(name).layouts[0].folder) in text and source_of(name).downloads[1].name in text
    assert "torchvision's download" in text and "is not installed" in text and "\n" not in text
    assert [p.suffix for p in folder.iterdir()] == [".lock"]  # nothing half-fetched is left


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(FedlibError, match="FEDLIB_DATA"):
        data.get("mnist", progress=False)


# ---------------------------------------------------------------- torchvision's download, from a server of ours


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The files of tmp_path/www over HTTP: (folder, address)."""
    root = tmp_path / "www"
    root.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield root, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()


def test_torchvision_downloads_idx_files(folder, server, monkeypatch, capfd):
    root, address = server
    arrays = small_mnist()
    write_idx(root, arrays, pack=True)
    mnist = sources.torchvision().datasets.MNIST
    files = [f"{name}.gz" for name in formats.IDX]
    monkeypatch.setattr(mnist, "mirrors", [address])
    monkeypatch.setattr(mnist, "resources", [(f, hashlib.md5((root / f).read_bytes()).hexdigest()) for f in files])
    found, where = sources.read(small("mnist", arrays), progress=True)
    assert equal(found, arrays) and where == "torchvision"
    out, err = capfd.readouterr()
    assert "fetching from torchvision" in err and "fetching" not in out  # progress is for stderr
    assert sorted(p.name for p in folder.iterdir()) == ["mnist.lock", "mnist.npz"]


@pytest.mark.parametrize("sound", [True, False])
def test_torchvision_downloads_the_binary_cifar_archive_and_checks_it(folder, server, tmp_path, sound):
    root, address = server
    arrays = small_cifar()
    write_cifar(tmp_path / "cifar-10-batches-bin", arrays)
    with tarfile.open(root / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    md5 = hashlib.md5((root / "cifar.tar.gz").read_bytes()).hexdigest()
    way = sources.torchvision_archive(address + "cifar.tar.gz", md5 if sound else "0" * 32, "cifar-10-batches-bin")
    source = small(
        "cifar10", arrays, downloads=(sources.Download("torchvision", way, source_of("cifar10").layouts[0]),)
    )
    if sound:
        found, where = sources.read(source, progress=False)
        assert equal(found, arrays) and where == "torchvision"
    else:
        with pytest.raises(FedlibError, match="corrupted"):
            sources.read(source, progress=False)


# ---------------------------------------------------------------- real data


def test_digits_are_real_and_split_per_class():
    d = data.load("digits")
    assert d.shape == (1, 28, 28) and d.x_train.dtype == torch.uint8 and d.y_train.dtype == torch.int64
    assert (len(d.y_train), len(d.y_test)) == (1442, 355) and d.classes == len(d.class_names) == 10
    row = next(r for r in data.inventory() if r["name"] == "digits")
    assert (row["train"], row["test"]) == (1442, 355)
    whole = torch.bincount(d.y_train) + torch.bincount(d.y_test)
    assert torch.equal(torch.bincount(d.y_test), whole // 5)
    assert int(d.x_train.max()) == 255 and data.load("digits") is d
    # A nearest-mean classifier can only do this if images and labels belong together.
    x, t = data.to_float(d.x_train).flatten(1), data.to_float(d.x_test).flatten(1)
    means = torch.stack([x[d.y_train == c].mean(0) for c in range(10)])
    assert (torch.cdist(t, means).argmin(1) == d.y_test).float().mean() > 0.85


def test_digits_take_the_shape_of_other_data_sets():
    d = data.load("digits(shape=(3, 32, 32))")
    assert d.shape == (3, 32, 32) and torch.equal(d.x_test[:, 0], d.x_test[:, 2])
    own = data.load("digits(shape=(1, 8, 8))").x_train  # enlarging by nothing keeps the 17 grey levels
    assert len(own.unique()) == 17
    for bad in ("digits(shape=(28, 28))", "digits(shape=(0, 8, 8))", "digits(shape=28)", "letters"):
        with pytest.raises(FedlibError):
            data.load(bad)


def test_subset_is_the_first_of_every_class_in_file_order():
    d = data.load("digits")
    s = data.subset(d, 100, 50)
    assert torch.bincount(s.y_train).tolist() == [10] * 10 and torch.bincount(s.y_test).tolist() == [5] * 10
    for c in range(10):
        assert torch.equal(s.x_train[s.y_train == c], d.x_train[d.y_train == c][:10])
    positions = [next(i for i in range(len(d.x_train)) if torch.equal(d.x_train[i], x)) for x in s.x_train[:20]]
    assert positions == sorted(positions)
    assert "subset" in s.note and "100 of 1442" in s.note and "subset" not in d.note
    assert data.subset(d, None, None) == d


def test_subset_keeps_the_domains_with_their_samples():
    d = data.load("digits")
    d = dataclasses.replace(d, domain_train=d.x_train[:, 0, 14, 14].long() % 2)
    s = data.subset(d, 200, None)
    assert torch.equal(s.domain_train, s.x_train[:, 0, 14, 14].long() % 2)
    assert torch.bincount(s.y_train * 2 + s.domain_train).tolist() == [10] * 20  # as many of every class and domain
    with pytest.raises(FedlibError, match="10 classes in 2 domains"):
        data.subset(d, 210, None)


@pytest.mark.parametrize("n", [0, -10, 15, 100_000])
def test_impossible_subsets_are_refused(n):
    with pytest.raises(FedlibError, match="multiple of its 10 classes"):
        data.subset(data.load("digits"), n, None)


def test_transforms():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(data.to_float(x), torch.tensor([0.0, 0.2, 1.0]))
    torch.testing.assert_close(data.TRANSFORMS["half"](x), torch.tensor([-1.0, -0.6, 1.0]))


def test_a_run_starts_without_what_it_does_not_need():
    code = (
        "import sys; from fedlib import RunSpec, simulate; from fedlib.runs import engine; "
        "simulate(RunSpec(dataset='digits', model='mlp(hidden=16)', partition='iid', rounds=1)); "
        "print({name for name in sys.modules if name in "
        "('torchvision', 'sklearn', 'PIL', 'pandas', 'matplotlib', 'ot', 'scipy.stats', 'scipy.optimize', 'sympy')})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_digits_are_those_of_scikit_learn():
    x, y = load_digits(return_X_y=True)
    raw, labels, _ = small_digits()
    assert raw.dtype == torch.float64 and torch.equal(raw, torch.from_numpy(x))
    assert labels.dtype == torch.int64 and torch.equal(labels, torch.from_numpy(y))


@pytest.mark.parametrize(
    "name, train, test", [("mnist", 60000, 10000), ("fashion_mnist", 60000, 10000), ("cifar10", 50000, 10000)]
)
def test_the_real_files_where_present(name, train, test):
    if not (REAL / f"{name}.npz").exists():
        pytest.skip(f"{name} is not in the data directory")
    d = data.load(name)  # verified against the pinned checksum
    assert (len(d.y_train), len(d.y_test)) == (train, test)
    if name != "mnist":
        assert set(torch.bincount(d.y_train).tolist()) == {train // 10}
    assert set(torch.bincount(d.y_test).tolist()) == {1000} or name == "mnist"
    row = next(r for r in data.inventory() if r["name"] == name)
    assert row["present"] and row["checksum"] == source_of(name).digest and row["train"] == train
