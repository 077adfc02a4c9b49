import os
import pickle
import runpy
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from configs.schema import Data
from datasets.sources import listing
from datasets.sources import samples as sources
from datasets.sources.samples import split_stratified
from utils.errors import UserError


def options(path, **values) -> Data:
    return Data.model_validate({"DATA_PATH": str(path), **{key.upper(): value for key, value in values.items()}})


def write_image(path, colour=(200, 30, 40), size=(12, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, "PNG" if path.suffix.lower() == ".png" else "JPEG")


def write_classes(root, **counts):
    for name, count in counts.items():
        for number in range(count):
            write_image(root / name / f"{number:03d}.jpg")


def names_of(samples):
    return [os.fsdecode(path) for path in samples.paths]


def complaints(call):
    """What is wrong with the samples that `call` reads: the error it raises, or else their findings."""
    try:
        samples = call()
    except UserError as error:
        return [str(error)]
    return samples.findings + samples.check_files()


def assert_refused(call, *parts):
    """In a line that holds all parts, the last of which says what to do."""
    messages = complaints(call)
    assert any(all(str(part) in message for part in parts) for message in messages), messages
    assert not any("\n" in message for message in messages)


# split_stratified


def test_split_holds_out_a_share_of_each_class():
    targets = np.repeat([0, 1, 2], [100, 40, 7])
    train, val = split_stratified(targets, 0.2, seed=3)
    assert sorted([*train, *val]) == list(range(147))
    assert list(train) == sorted(train)
    assert list(val) == sorted(val)
    assert np.bincount(targets[val]).tolist() == [20, 8, 1]


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_split_leaves_some_of_each_class_on_either_side(fraction):
    targets = [0, 0, 1, 1, 1, 2]
    train, val = split_stratified(targets, fraction, seed=0)
    assert {targets[index] for index in train} == {0, 1, 2}
    assert {targets[index] for index in val} == {0, 1}


def test_split_follows_from_its_seed_alone():
    targets = np.arange(200) % 4
    first = split_stratified(targets, 0.1, seed=7)
    np.random.seed(1)
    for again, other in zip(first, split_stratified(targets, 0.1, seed=7), strict=True):
        assert np.array_equal(again, other)
    assert not np.array_equal(first[1], split_stratified(targets, 0.1, seed=8)[1])


# imagenet2012


@pytest.fixture
def lists(tmp_path):
    """Writes the two lists, and the image that stands first in them."""
    write_image(tmp_path / "train" / "a b" / "x 1.JPEG", colour=(250, 0, 0))

    def write(text, split="train"):
        (tmp_path / f"{split}_list.txt").write_bytes(text.encode())
        return options(tmp_path)

    return write


def test_imagenet_lists(lists):
    given = lists("train/a b/x 1.JPEG 3\n\n  \ntrain/missing.JPEG\t 0\r\n")
    samples = sources.imagenet2012(given, "train")
    assert names_of(samples) == ["train/a b/x 1.JPEG", "train/missing.JPEG"]
    assert samples.targets.tolist() == [3, 0]
    assert samples.targets.dtype == np.int64
    assert (len(samples), samples.class_names) == (2, ["0", "1", "2", "3"])
    assert not samples.in_memory
    image = samples.image(0, 3)
    assert (image.shape, image.dtype) == ((3, 9, 12), torch.uint8)
    assert image[0].min() > 230
    assert image[1].max() < 20
    assert samples.image(0, 1).shape == (1, 9, 12)


def test_imagenet_val_list_with_a_byte_order_mark(lists):
    given = lists("\ufefftrain/a b/x 1.JPEG 0\n", "val")
    assert names_of(sources.imagenet2012(given, "val")) == ["train/a b/x 1.JPEG"]


def test_paths_of_any_bytes(tmp_path):
    name = os.fsdecode(b"b\xe9\xff \xc3\xa9.png")
    write_image(tmp_path / name)
    (tmp_path / "train_list.txt").write_bytes(os.fsencode(f"{name} 0\n"))
    assert sources.imagenet2012(options(tmp_path), "train").image(0, 3).shape == (3, 9, 12)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", "", "lists no images"),
        ("\n \n", "", "lists no images"),
        ("train/a b/x 1.JPEG 0\nalone\n", ":2", "'alone' is not a path and a label"),
        ("train/a b/x 1.JPEG 0\n\nx.jpg -1\n", ":3", "'-1' is no class number"),
        ("train/a b/x 1.JPEG 1.5\n", ":1", "'1.5' is no class number"),
        ("train/a b/x 1.JPEG cat\n", ":1", "'cat' is no class number"),
        ("train/a b/x 1.JPEG 1234567\n", ":1", "'1234567' is no class number"),
        ("train/a b/x 1.JPEG 0\n../y.jpg 0\n", ":2", "'../y.jpg' leads out of"),
        ("train/a b/x 1.JPEG 0\na/../../y.jpg 0\n", ":2", "leads out of"),
        ("train/a b/x 1.JPEG 0\n/etc/y.jpg 0\n", ":2", "'/etc/y.jpg' leads out of"),
        ("\nnot/there.jpg 0\n", ":2", "'not/there.jpg' is no file in"),
        ("train 0\n", ":1", "'train' is no file in"),
    ],
)
def test_a_bad_list_is_refused(lists, tmp_path, text, line, reason):
    given = lists(text)
    assert_refused(lambda: sources.imagenet2012(given, "train"), f"{tmp_path}/train_list.txt{line}: ", reason)


@pytest.mark.parametrize("text", ["x.jpg {}\n", "{}\n", "../{} 0\n", "{0} 0\n{0} 1\n"])
def test_a_long_label_or_path_is_shortened_in_the_finding(tmp_path, text):
    (tmp_path / "list.txt").write_text(text.format("\x01" * 5000))
    (finding,) = listing.read_list(tmp_path / "list.txt").findings
    assert "..." in finding and len(finding) < 300 + len(str(tmp_path))


def test_missing_lists_and_folders(tmp_path):
    assert_refused(lambda: sources.imagenet2012(options(tmp_path), "val"), f"{tmp_path}/val_list.txt: ", "DATA_PATH")
    for name in ("imagenet2012", "folder", "csv", "caltech101", "caltech256", "cifar10", "cifar100"):
        source = getattr(sources, name)
        assert_refused(lambda source=source: source(options(tmp_path / "gone"), "train"), f"{tmp_path}/gone", "; ")


def test_images_that_cannot_be_read(lists, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    given = lists("train/a b/x 1.JPEG 0\ngone.jpg 0\nbad.jpg 0\ntrain 0\n")
    samples = sources.imagenet2012(given, "train")
    assert_refused(lambda: samples.image(1, 3), f"{tmp_path}/gone.jpg: cannot be read (No such file", "restore it")
    assert_refused(lambda: samples.image(2, 3), f"{tmp_path}/bad.jpg: ", "replace or remove it")
    assert_refused(lambda: samples.image(3, 3), f"{tmp_path}/train: cannot be read", "restore it")


def test_a_file_too_large_for_an_image_is_not_read(lists, tmp_path):
    with open(tmp_path / "large.jpg", "wb") as file:
        file.truncate(10**12)
    samples = sources.imagenet2012(lists("large.jpg 0\n"), "train")
    assert_refused(lambda: samples.image(0, 3), "large.jpg: cannot be read (1000000 MB are no photograph's)")


# folder


def test_folder_with_train_and_val(tmp_path):
    write_classes(tmp_path / "train", dog=2, cat=3)
    write_classes(tmp_path / "val", dog=1, cat=1)
    write_image(tmp_path / "train" / "cat" / "deep" / "er" / "Z.PNG")
    (tmp_path / "train" / "cat" / "notes.txt").touch()
    (tmp_path / "train" / "readme.jpg").touch()
    train, val = (sources.folder(options(tmp_path), split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ["cat", "dog"]
    assert names_of(train) == [
        *("cat/000.jpg", "cat/001.jpg", "cat/002.jpg", "cat/deep/er/Z.PNG", "dog/000.jpg", "dog/001.jpg"),
    ]
    assert train.targets.tolist() == [0, 0, 0, 0, 1, 1]
    assert val.targets.tolist() == [0, 1]
    assert train.image(3, 3).shape == (3, 9, 12)


@pytest.mark.parametrize("below", ["", "train"])
def test_folder_without_val_is_split(tmp_path, below):
    write_classes(tmp_path / below, a=20, b=10, c=2)
    train, val = (sources.folder(options(tmp_path), split) for split in ("train", "val"))
    assert np.bincount(val.targets).tolist() == [2, 1, 1]
    assert not set(names_of(train)) & set(names_of(val))
    assert len(set(names_of(train)) | set(names_of(val))) == 32
    assert all(name[0] == "abc"[target] for name, target in zip(names_of(val), val.targets, strict=True))
    assert names_of(val) == names_of(sources.folder(options(tmp_path), "val"))
    assert names_of(val) != names_of(sources.folder(options(tmp_path, split_seed=1), "val"))
    assert np.bincount(sources.folder(options(tmp_path, val_fraction=0.5), "val").targets).tolist() == [10, 5, 1]


def test_the_split_does_not_depend_on_the_order_of_the_file_system(tmp_path, monkeypatch):
    write_classes(tmp_path, a=9, b=9)
    expected = names_of(sources.folder(options(tmp_path), "val"))
    scandir = os.scandir

    class Reversed:
        def __init__(self, folder):
            with scandir(folder) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return self.entries

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(listing.os, "scandir", Reversed)
    assert names_of(sources.folder(options(tmp_path), "val")) == expected


def test_hidden_folders_and_files_are_no_classes_and_images(tmp_path):
    write_classes(tmp_path, a=2, b=1)
    write_image(tmp_path / ".hidden" / "x.jpg")
    write_image(tmp_path / "a" / "._000.jpg")
    assert list(listing.read_class_folders(tmp_path).paths) == ["a/000.jpg", "a/001.jpg", "b/000.jpg"]


def test_links_are_followed_but_never_up(tmp_path):
    root = tmp_path / "data"
    write_classes(root, a=2, b=1)
    write_image(tmp_path / "elsewhere" / "y.jpg")
    (root / "a" / "more").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "far_up").symlink_to(tmp_path)
    (root / "b" / "across").symlink_to(root / "a")
    (root / "a" / "across").symlink_to(root / "b")
    assert list(listing.read_class_folders(root).paths) == [
        *("a/000.jpg", "a/001.jpg", "a/across/000.jpg", "a/more/y.jpg"),
        *("b/000.jpg", "b/across/000.jpg", "b/across/001.jpg", "b/across/more/y.jpg"),
    ]


@pytest.mark.parametrize("ending", ["jpg", "JPEG", "png", "webp", "bmp", "Gif", "tif", "tiff", "ppm", "PGM"])
def test_accepted_endings(tmp_path, ending):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"x.{ending}").touch()
    assert list(listing.read_class_folders(tmp_path).paths) == [f"a/x.{ending}", f"b/x.{ending}"]


def test_bad_folders_are_refused(tmp_path, monkeypatch):
    given = options(tmp_path)
    assert_refused(lambda: sources.folder(given, "train"), f"{tmp_path}: holds no folders", "put the images")
    write_classes(tmp_path / "train", cat=1)
    assert_refused(lambda: sources.folder(given, "val"), f"{tmp_path}/train: holds one folder only, cat", "all classes")
    write_classes(tmp_path / "train", dog=1)
    assert_refused(lambda: sources.folder(given, "val"), f"{tmp_path}: no class has two images", "add a split")
    (tmp_path / "train" / "empty").mkdir()
    assert_refused(lambda: sources.folder(given, "train"), f"{tmp_path}/train/empty: holds no images", "add some")
    write_classes(tmp_path / "val", cat=1, dog=1)
    assert_refused(
        lambda: sources.folder(given, "train"), f"{tmp_path}: class folder 'empty' is only in one", "drop it"
    )


def test_val_alone_can_be_evaluated(tmp_path):
    write_classes(tmp_path / "val", cat=1, dog=1)
    assert len(sources.folder(options(tmp_path), "val")) == 2
    assert_refused(lambda: sources.folder(options(tmp_path), "train"), f"{tmp_path}/train: cannot be listed", "check")


def test_an_unreadable_folder_is_refused(tmp_path, monkeypatch):
    write_classes(tmp_path, cat=2, dog=2)
    scandir = os.scandir

    def deny(folder):
        if str(folder).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(listing.os, "scandir", deny)
    assert_refused(
        lambda: sources.folder(options(tmp_path), "train"), f"{tmp_path}/dog: ", "Permission denied", "check"
    )


# csv


@pytest.fixture
def tables(tmp_path):
    write_image(tmp_path / "images" / "a, b.jpg")

    def write(**texts):
        for split, text in texts.items():
            (tmp_path / f"{split}.csv").write_text(text)
        return options(tmp_path)

    return write


FIRST = '"images/a, b.jpg"'


def test_csv_with_numbers(tables):
    given = tables(
        train=f"image_path,target\n{FIRST},2\n\nimages/c.jpg, 0\n", val=f"target,extra,image_path\n1,,{FIRST}\n"
    )
    train, val = (sources.csv(given, split) for split in ("train", "val"))
    assert names_of(train) == ["images/a, b.jpg", "images/c.jpg"]
    assert (train.targets.tolist(), train.class_names) == ([2, 0], ["0", "1", "2"])
    assert val.targets.tolist() == [1]
    assert val.image(0, 3).shape == (3, 9, 12)


def test_csv_with_names(tables):
    given = tables(
        train=f"image_path,target\n{FIRST},dog\nb.jpg,cat\nc.jpg,7\n", val=f"image_path,target\n{FIRST},dog\n"
    )
    train, val = (sources.csv(given, split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ["7", "cat", "dog"]
    assert (train.targets.tolist(), val.targets.tolist()) == ([2, 1, 0], [2])


@pytest.mark.parametrize("single_file", [True, False])
def test_a_single_csv_is_split(tables, tmp_path, single_file):
    rows = "".join(f"{number}.jpg,{'xy'[number % 2]}\n" for number in range(40))
    given = tables(train=f"image_path,target\n{FIRST},x\n{rows}")
    if single_file:
        given = options(tmp_path / "train.csv")
    train, val = (sources.csv(given, split) for split in ("train", "val"))
    assert np.bincount(val.targets).tolist() == [2, 2]
    assert len(set(names_of(train)) | set(names_of(val))) == 41 == len(train) + len(val)
    assert train.class_names == val.class_names == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", ":1", "the header lacks image_path or target"),
        ("path,label\nx,0\n", ":1", "the header lacks image_path or target"),
        ("image_path,target\n", "", "lists no images"),
        (f"image_path,target\n{FIRST},0\nb.jpg\n", ":3", "has not as many fields as the header"),
        (f"image_path,target\n{FIRST},0\nb, c.jpg,1\n", ":3", "has not as many fields as the header"),
        (f"image_path,target\n{FIRST},0\nb.jpg,\n", ":3", "image_path or target is empty"),
        (f"image_path,target\n{FIRST},0\nb.jpg,-1\n", ":3", "'-1' is no class number"),
        (f"image_path,target\n{FIRST},0.5\n", ":2", "'0.5' is no class number"),
        (f"image_path,target\n{FIRST},-2\n", ":2", "'-2' is no class number"),
        (f"image_path,target\n{FIRST},0\nb.jpg,cat\n", ":3", "'cat' is no class number"),
        (f"image_path,target\n{FIRST},cat\n../b.jpg,cat\n", ":3", "leads out of"),
        ("image_path,target\nb.jpg,cat\n", ":2", "'b.jpg' is no file in"),
        (f'image_path,target\n{FIRST},0\n"b.jpg"x,0\n', ":3", "is no csv"),
    ],
)
def test_a_bad_csv_is_refused(tables, tmp_path, text, line, reason):
    given = tables(train=text)
    assert_refused(lambda: sources.csv(given, "train"), f"{tmp_path}/train.csv{line}: ", reason)


def test_a_class_unknown_to_the_training_csv_is_refused(tables, tmp_path):
    given = tables(train=f"image_path,target\n{FIRST},dog\n", val=f"image_path,target\n{FIRST},3\n")
    assert_refused(lambda: sources.csv(given, "val"), f"{tmp_path}/val.csv:2: target '3' is not in", "train.csv")
    given = tables(train=f"image_path,target\n{FIRST},0\n", val=f"image_path,target\n{FIRST},dog\n")
    assert_refused(lambda: sources.csv(given, "val"), f"{tmp_path}/val.csv:2: label 'dog' is no class number")


# cifar


def python2_pickle(content) -> bytes:
    """As CIFAR's authors wrote it: protocol 2, and texts and pixels as the byte strings of Python 2."""
    if isinstance(content, np.ndarray):
        shape = b"".join(b"J" + struct.pack("<i", side) for side in content.shape)
        dtype = b"cnumpy\ndtype\n" + python2_pickle("u1") + b"K\x00K\x01\x87R(K\x03" + python2_pickle("|")
        dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_pickle("b") + b"\x87R"
        state = b"(K\x01(" + shape + b"t" + dtype + b"\x89" + python2_pickle(content.tobytes().decode("latin1")) + b"t"
        return empty + state + b"b"
    if isinstance(content, str):
        return b"T" + struct.pack("<i", len(content)) + content.encode("latin1")
    if isinstance(content, int):
        return b"J" + struct.pack("<i", content)
    if isinstance(content, list):
        return b"](" + b"".join(map(python2_pickle, content)) + b"e"
    return b"}(" + b"".join(python2_pickle(part) for item in content.items() for part in item) + b"u"


def write_batch(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x02" + python2_pickle(content) + b".")


def cifar_pixels(count, seed):
    return np.random.default_rng(seed).integers(256, size=(count, 3072), dtype=np.uint8)


@pytest.fixture
def cifar10(tmp_path):
    root = tmp_path / "cifar-10-batches-py"
    write_batch(root / "batches.meta", {"label_names": [f"class {label}" for label in range(10)]})
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        content = {"batch_label": name, "labels": [number, 9, 3], "data": cifar_pixels(3, number)}
        write_batch(root / name, content)
    return root


@pytest.mark.parametrize("at", ["parent", "itself"])
def test_cifar10(cifar10, at):
    given = options(cifar10 if at == "itself" else cifar10.parent)
    train, val = (sources.cifar10(given, split) for split in ("train", "val"))
    assert train.targets.tolist() == [label for number in range(5) for label in (number, 9, 3)]
    assert val.targets.tolist() == [5, 9, 3]
    assert train.class_names == [f"class {label}" for label in range(10)]
    assert train.in_memory
    assert torch.equal(train.image(4, 3), torch.from_numpy(cifar_pixels(3, 1)[1].reshape(3, 32, 32)))


def test_cifar100(tmp_path):
    root = tmp_path / "cifar-100-python"
    write_batch(root / "meta", {"fine_label_names": [str(label) for label in range(100)]})
    write_batch(root / "train", {"fine_labels": [99, 0], "coarse_labels": [1, 2], "data": cifar_pixels(2, 0)})
    write_batch(root / "test", {"fine_labels": [5], "coarse_labels": [1], "data": cifar_pixels(1, 1)})
    train, val = (sources.cifar100(options(tmp_path), split) for split in ("train", "val"))
    assert (train.targets.tolist(), val.targets.tolist()) == ([99, 0], [5])
    assert len(train.class_names) == 100


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_pickled_anew_by_python_3(cifar10, protocol):
    pixels = np.asfortranarray(cifar_pixels(4, 9))
    (cifar10 / "test_batch").write_bytes(pickle.dumps({"labels": [1, 2, 3, 4], "data": pixels}, protocol=protocol))
    val = sources.cifar10(options(cifar10), "val")
    assert np.array_equal(val.images.reshape(4, -1), pixels)


def test_rgb_to_grey_is_pillows(cifar10):
    val = sources.cifar10(options(cifar10), "val")
    photo = Image.fromarray(val.images[1].transpose(1, 2, 0))
    assert np.array_equal(val.image(1, 1)[0].numpy(), np.array(photo.convert("L")))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_malicious_cifar_pickle_is_refused_and_not_run(cifar10, tmp_path):
    content = {"extra": Malicious(str(tmp_path / "harm")), "data": cifar_pixels(1, 0), "labels": [0]}
    for protocol in (0, 2, 4):
        (cifar10 / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
        assert_refused(lambda: sources.cifar10(options(cifar10), "val"), f"{cifar10}/test_batch: ", "mkdir", "unpack")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"labels": [0]}, "does not hold data and labels"),
        ({"data": cifar_pixels(1, 0)}, "does not hold data and labels"),
        ({"labels": [0, 1], "data": cifar_pixels(1, 0)}, "does not hold data and labels"),
        ({"labels": [0], "data": "pixels"}, "does not hold data and labels"),
        ({"labels": [10], "data": cifar_pixels(1, 0)}, "a label is not in 0..9"),
        ({"labels": [-1], "data": cifar_pixels(1, 0)}, "a label is not in 0..9"),
        ([], "is no batch of CIFAR"),
    ],
)
def test_bad_cifar_batches_are_refused(cifar10, content, reason):
    write_batch(cifar10 / "test_batch", content)
    assert_refused(lambda: sources.cifar10(options(cifar10), "val"), f"{cifar10}/test_batch: ", reason, "unpack")


def test_incomplete_cifar_is_refused(cifar10):
    batch = (cifar10 / "data_batch_4").read_bytes()
    (cifar10 / "data_batch_4").write_bytes(batch[:1000])
    assert_refused(lambda: sources.cifar10(options(cifar10), "train"), "data_batch_4: is no batch of CIFAR", "unpack")
    (cifar10 / "data_batch_4").unlink()
    assert_refused(lambda: sources.cifar10(options(cifar10), "train"), "data_batch_4: cannot be read", "unpack")
    write_batch(cifar10 / "batches.meta", {"label_names": 3})
    assert_refused(lambda: sources.cifar10(options(cifar10), "train"), "batches.meta: holds no names", "unpack")


# digits, caltech, fake


def test_digits():
    train, val = (sources.digits(options("unused", image_size=8), split) for split in ("train", "val"))
    assert len(train) + len(val) == 1797
    assert len(val) == pytest.approx(1797 / 5, abs=5)
    assert np.bincount(val.targets).min() >= 34
    assert train.class_names == list("0123456789")
    assert train.in_memory
    grey, rgb = train.image(0, 1), train.image(0, 3)
    assert (grey.shape, grey.dtype, rgb.shape) == ((1, 8, 8), torch.uint8, (3, 8, 8))
    assert torch.equal(rgb[2], grey[0])
    assert set(np.unique(train.images)) == {round(value * 255 / 16) for value in range(17)}
    rows = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in rows for image in val.images)


@pytest.mark.parametrize(
    ("source", "folder", "left_out"),
    [
        (sources.caltech101, "101_ObjectCategories", "BACKGROUND_Google"),
        (sources.caltech256, "256_ObjectCategories", "257.clutter"),
    ],
)
@pytest.mark.parametrize("at", ["parent", "itself"])
def test_caltech(tmp_path, source, folder, left_out, at):
    write_classes(tmp_path / folder, **{"001.ak47": 20, "Faces": 10, left_out: 5})
    given = options(tmp_path if at == "parent" else tmp_path / folder)
    train, val = (source(given, split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ["001.ak47", "Faces"]
    assert (np.bincount(train.targets).tolist(), np.bincount(val.targets).tolist()) == ([18, 9], [2, 1])


def test_fake():
    train, val = (sources.fake(options("unused", image_size=40), split) for split in ("train", "val"))
    assert (len(train), len(val), len(train.class_names)) == (1280, 256, 1000)
    image = train.image(17, 3)
    assert (image.shape, image.dtype) == ((3, 40, 40), torch.uint8)
    assert torch.equal(image, sources.fake(options("unused", image_size=40), "train").image(17, 3))
    assert not torch.equal(image, train.image(18, 3))
    assert train.image(0, 1).shape == (1, 40, 40)
    assert train.targets.max() < 1000


# scripts/make_imagenet_sample.py

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_imagenet_sample.py"


def test_make_imagenet_sample(tmp_path, monkeypatch, capsys):
    output = tmp_path / "deep" / "sample"
    arguments = ["-output", str(output), "-classes", "3", "-train", "7", "-val", "4", "-size", "100x75"]
    monkeypatch.setattr(sys, "argv", ["make_imagenet_sample.py", *arguments])
    runpy.run_path(SCRIPT, run_name="__main__")
    train, val = (sources.imagenet2012(options(output), split) for split in ("train", "val"))
    assert train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert val.targets.tolist() == [0, 1, 2, 0]
    assert all(samples.image(index, 3).shape == (3, 75, 100) for samples in (train, val) for index in range(4))
    with Image.open(output / names_of(val)[0]) as image:
        assert image.format == "JPEG"
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(SCRIPT, run_name="__main__")
    assert "exists: remove it" in capsys.readouterr().err
