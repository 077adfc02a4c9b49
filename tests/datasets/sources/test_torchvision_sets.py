"""Classes of torchvision.datasets: the same images, labels and splits as torchvision reads, downloads, and refusals."""

import gzip
import hashlib
import pickle
import shutil
import struct
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from conftest import each_row, each_value, line_of, noise_folder, read_samples, refused
from pytest import fixture
from source_helpers import options, read, write_image
from torchvision import datasets as theirs

from configs.yaml_io import parse_value
from tests.models.weights.weight_files import Reduced

RANDOM = np.random.default_rng(0)


def pixels(*shape):
    return RANDOM.integers(256, size=shape, dtype=np.uint8)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return hashlib.md5(path.read_bytes()).hexdigest()


def pets(root, patch):
    for split, count in (("trainval", 10), ("test", 2)):
        breeds = {"Abyssinian": 1, "american_bulldog": 2, "Bombay": 3}
        numbered = product(breeds.items(), range(count))
        lines = [f"{breed}_{split[0]}{number} {label} 1 1" for (breed, label), number in numbered]
        write(root / f"oxford-iiit-pet/annotations/{split}.txt", "\n".join(lines))
        for line in lines:
            write_image(root / f"oxford-iiit-pet/images/{line.split()[0]}.jpg", pixels(11, 8, 3))


def cifar(root, patch, content=None):
    """The MD5 sums of torchvision become those of these files, but for `content`, which test_batch then has."""
    kind = theirs.CIFAR10
    folder = root / theirs.CIFAR10.base_folder
    for files in ("train_list", "test_list"):
        batch = {name: {"labels": [*range(10)] * 2, "data": pixels(20, 3072)} for name, _ in getattr(kind, files)}
        sums = [[name, write(folder / name, pickle.dumps(value, protocol=2))] for name, value in batch.items()]
        patch.setattr(kind, files, sums)
    names = {"label_names": list("abcdefghij")}
    patch.setattr(kind, "meta", {**kind.meta, "md5": write(folder / "batches.meta", pickle.dumps(names, protocol=2))})
    if content:
        write(folder / "test_batch", content)


def textures(root, patch):
    for number, split in enumerate(("train", "val", "test", "test", "train", "val")):
        paths = [f"{name}/{name}_{number % 3}{one}.jpg" for name in ("banded", "zigzagged") for one in range(4)]
        write(root / f"dtd/dtd/labels/{split}{1 + number // 3}.txt", "\n".join(paths))
        for path in paths:
            write_image(root / "dtd/dtd/images" / path, pixels(7, 9, 3))


def inat(root, patch):
    kinds = (f"{number:05d}_Animalia_Mollusca_Gastropoda_A_B_C_{name}" for number, name in enumerate(("pomum", "alba")))
    folders = [f"2021_{split}/{kind}" for kind in kinds for split in ("train_mini", "valid")]
    for path, number in product(folders, range(11)):
        write_image(root / path / f"{number}.jpg", pixels(8, 8, 3))


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def handwriting(root, patch):
    for split, count in (("train", 78), ("test", 26)):
        labels = (np.arange(count) % 26 + 1).astype(np.uint8)
        for name, array in (("images-idx3", pixels(count, 28, 28)), ("labels-idx1", labels)):
            write(root / f"EMNIST/raw/emnist-letters-{split}-{name}-ubyte", idx(array))


MAKERS = {make.__name__: make for make in (pets, cifar, textures, inat, handwriting)}
# The class of torchvision, DATA.DATASET and KWARGS, the maker of the files, the arguments of the class for each split
SAME = """
kind | dataset | kwargs | make | arguments
OxfordIIITPet | torch/oxford_iiit_pet | {} | pets | {train: {split: trainval}, test: {split: test}}
CIFAR10 | torchvision/CIFAR10 | {} | cifar | {train: {train: true}, test: {train: false}}
DTD | torchvision/dtd | {partition: 2} | textures | {train: {split: train}, test: {split: test}, val: {split: val}}
INaturalist | torch/inaturalist | {version: 2021_train_mini} | inat | {train: {}, val: {version: 2021_valid}}
CIFAR10 | cifar10 | {} | cifar | {train: {train: true}, val: {train: false}}
EMNIST | torchvision/EMNIST | {split: letters} | handwriting | {train: {train: true}, test: {train: false}}
"""


def splits_of(given, **values):
    return dict(zip(("train", "val", "test"), read(given, **values), strict=False))


def content_of(samples):
    """The pixels and the label of each image."""
    pixels = (samples.open(index, 3).pixels.permute(1, 2, 0).numpy().tobytes() for index in range(len(samples)))
    return Counter(zip(pixels, samples.targets.tolist(), strict=True))


@each_value(SAME)
def test_images_labels_and_splits_are_torchvisions(kind, dataset, kwargs, make, arguments, tmp_path, monkeypatch):
    MAKERS[make](tmp_path, monkeypatch)
    given = options(tmp_path, dataset=dataset, kwargs=kwargs or None)
    ours = splits_of(given)
    again = splits_of(given)
    is_cut = "val" not in arguments
    assert ours.keys() == {"train", "val"} | arguments.keys()
    for split, of_split in arguments.items():
        images = getattr(theirs, kind)(str(tmp_path), **kwargs | of_split)
        pairs = map(images.__getitem__, range(len(images)))
        expected = Counter((np.asarray(image.convert("RGB")).tobytes(), label) for image, label in pairs)
        parts = [ours[split], ours["val"]][: 1 + (is_cut and split == "train")]
        assert sum(map(content_of, parts), Counter()) == expected
        classes = getattr(images, "classes", getattr(images, "all_categories", None))
        assert all(one.class_names == classes for one in parts)
    if is_cut:
        assert {*Counter(ours["val"].targets.tolist()).values()} == {1}
    for split, samples in ours.items():  # as another rank, and as a loading worker
        for other in (again[split], pickle.loads(pickle.dumps(samples))):
            assert np.array_equal(samples.targets, other.targets)
            assert np.array_equal(samples.states(), other.states())
            assert np.array_equal(samples.checksums(), other.checksums())


@fixture
def server(tmp_path, monkeypatch):
    """A folder in place of a web server."""
    (tmp_path / "server").mkdir()
    monkeypatch.setattr(theirs.utils, "_urlretrieve", lambda url, file: shutil.copy(url.removeprefix("file://"), file))
    return tmp_path / "server"


INNER = """
make | name | inner
pets | torch/oxfordiiitpet | oxford-iiit-pet
cifar | torchvision/CIFAR10 | cifar-10-batches-py
"""


@each_row(INNER)
def test_the_data_may_be_the_folder_that_torchvision_makes(make, name, inner, tmp_path, monkeypatch):
    MAKERS[make](tmp_path, monkeypatch)
    outside, inside = (splits_of(root, dataset=name) for root in (tmp_path, tmp_path / inner))
    assert outside.keys() == inside.keys() == {"train", "val", "test"}
    for split, samples in outside.items():
        assert np.array_equal(samples.checksums(), inside[split].checksums())


def test_damaged_files_are_neither_opened_nor_followed(tmp_path, monkeypatch):
    """A batch of CIFAR with another checksum; an image outside of the folder."""
    for content in (pickle.dumps(Reduced(open, str(tmp_path / "ran"), "w")), pickle.dumps({"labels": [], "data": []})):
        cifar(tmp_path, monkeypatch, content)
        with refused(r"CIFAR10 .*DATA.DOWNLOAD"):
            splits_of(tmp_path, dataset="cifar10")
    assert not (tmp_path / "ran").exists()
    textures(tmp_path / "data", monkeypatch)
    write(tmp_path / "data/dtd/dtd/labels/val1.txt", "../x.jpg\n")
    with refused(r"x\.jpg'"):
        splits_of(tmp_path / "data", dataset="torch/DTD")


def test_caltech_is_downloaded_by_torchvisions_class(tmp_path, monkeypatch):
    """Its archive has the folder caltech101; the split is ours, without the clutter."""

    def caltech(root, download):
        folder = Path(root) / "caltech101/101_ObjectCategories"
        for name in ("BACKGROUND_Google", "crab", "wild_cat"):
            noise_folder(folder / name, 4, 0, (8, 8, 3))

    monkeypatch.setattr(theirs, "Caltech101", caltech)
    data = options(tmp_path / "data", dataset="torchvision/Caltech101")
    splits = read(data, download=True)
    assert splits[0].class_names == ["crab", "wild_cat"]
    assert (tmp_path / "data/101_ObjectCategories/crab").is_dir()
    assert len(list((tmp_path / "data").iterdir())) == 1


# The data set, keys of DATA, a part of the error
REFUSED = """
name | values | part
torchvision/Fod101 | {} | torchvision/Food101
flowers102 | {} | torchvision/Flowers102
torch/fer-2013 | {} | docs/data.md#torchvisions-data-sets
torchvision/PCAM | {} | docs/data.md#torchvisions-data-sets
torch/Flowers102 | {} | pip install scipy
torchvision/EuroSAT | {} | -opts DATA.DOWNLOAD=true
torchvision/USPS | {} | DATA.DOWNLOAD
torchvision/INaturalist | {kwargs: {version: '2022'}} | DATA.KWARGS
torchvision/StanfordCars | {download: true} | pip install scipy
torchvision/STL10 | {data_path: nowhere} | nowhere:
"""


@each_row(REFUSED)
def test_refusals(name, values, part, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    message = line_of(splits_of, options(tmp_path, dataset=name), **parse_value(values))
    assert part in message
    assert len(message) < 600
    assert not list(tmp_path.iterdir())


DIGITS = pixels(40, 28, 28)


@fixture
def mnist(server, tmp_path, monkeypatch):
    """The options of a download of these digits."""
    labels = (np.arange(40) % 10).astype(np.uint8)
    sums = []
    for split, (kind, array) in product(("train", "t10k"), {"images-idx3": DIGITS, "labels-idx1": labels}.items()):
        name = f"{split}-{kind}-ubyte.gz"
        sums.append([name, write(server / name, gzip.compress(idx(array)))])
    monkeypatch.setattr(theirs.MNIST, "resources", sums)
    monkeypatch.setattr(theirs.MNIST, "mirrors", [f"{server.as_uri()}/"])
    return options(tmp_path / "new/data", dataset="torch/mnist", download=True)


def test_a_download_is_checked_and_leaves_no_parts(mnist, tmp_path):
    theirs.MNIST.resources[-1][1] = "0" * 32
    with refused("MNIST"):
        splits_of(mnist)
    assert not list((tmp_path / "new/data").iterdir())


def test_a_download_is_made_once_by_one_rank(mnist, cpu, tmp_path, monkeypatch):
    with refused("no such folder"):  # another rank waits, and downloads nothing
        read_samples(mnist, None, replace(cpu, rank=1), "test")
    assert np.array_equal(splits_of(mnist)["test"].images, DIGITS[:, None])
    assert [path.name for path in (tmp_path / "new/data").iterdir()] == ["MNIST"]
    monkeypatch.setattr(theirs.MNIST, "mirrors", [])
    assert len(splits_of(mnist)["train"]) == 30


def test_an_archive_writes_nothing_outside_its_folder(server, tmp_path, monkeypatch):
    cifar(server, monkeypatch)
    with tarfile.open(server / "cifar.tar.gz", "w:gz") as archive:
        archive.add(server / "cifar-10-batches-py", "cifar-10-batches-py")
        archive.add(server / "cifar-10-batches-py/test_batch", "../test_batch")
    monkeypatch.setattr(theirs.CIFAR10, "tgz_md5", hashlib.md5((server / "cifar.tar.gz").read_bytes()).hexdigest())
    monkeypatch.setattr(theirs.CIFAR10, "url", (server / "cifar.tar.gz").as_uri())
    with refused("CIFAR10"):
        splits_of(tmp_path / "data", dataset="cifar10", download=True)
    assert not list((tmp_path / "data").iterdir())
