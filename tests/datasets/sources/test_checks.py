"""One report at the start names all problems of a data set; notes in the log; ranks with different data end the run."""

import os
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from conftest import CPU, each_row, refused, told
from pytest import fixture, importorskip, mark, raises
from source_helpers import options, read, tree, without_other_ranks, write_classes, write_image

from configs.batch_plan import plan_batches
from configs.command_line import parse_command_line
from configs.yaml_io import parse_value
from datasets import reading
from datasets.decoding.decode import Decoding, open_image
from datasets.sources import checks
from datasets.sources.checks import check_same_data, digest_of, find_problems, notes_on
from datasets.sources.sets.in_memory import FakeImages, ImageArray
from datasets.sources.source import Wanted, source_class
from tests.datasets.photo import png16, tiff16
from tests.datasets.shards.tar_files import tar_of
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError


def report_on(root: Path, **values) -> list[str]:
    """The lines of the error about both splits."""
    with raises(UserError) as caught:
        read(root, "train", "val", **values)
    return str(caught.value).split("\n  ")


WRONG = {  # of a list and of a table: the lines, and the numbers of lines that must be named
    "imagenet2012": (
        "train_list.txt",
        "a.jpg 0\nalone\nb.jpg -1\nb.jpg cat\na.jpg 1234567\n../x.jpg 0\nnul\0.jpg 1\na.jpg 5\nb.jpg 12\nb.jpg 1.5",
        {*range(2, 11)},
    ),
    "csv": ("train.csv", "image_path,target\na.jpg,cat\n,cat\na.jpg,dog\nb.jpg,cat,1", {3, 4, 5}),
}


@mark.parametrize("dataset", WRONG)
def test_one_report_names_all_problems(dataset, tmp_path):
    name, lines, numbers = WRONG[dataset]
    tree(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / name).write_text(lines)
    (tmp_path / name.replace("train", "val")).write_text(lines.splitlines()[0] + "\nx")
    _, *findings = report_on(tmp_path, dataset=dataset, num_classes=10)
    named = {int(number) for number in re.findall(rf"{tmp_path / name}:(\d+): ", "\n".join(findings))}
    assert named == numbers
    assert str(tmp_path / name.replace("train", "val")) in "\n".join(findings)


# Notes: facts that may be intended


# Images of each class of the splits; parts of the warnings
SIZES = """
train | val | test | warnings
10 12 | 5 5 | |
99 10 | 5 5 | |
3 3 30 | 5 5 5 | | 3 training images; 'c' has 30 & 'a' 3 & LOSS.CLASS_WEIGHTS=balanced
30 12 0 15 | 4 1 0 30 | | 'c'; 1 of 'b' & 2 of 3 classes  # a class without training images has its own warning
30 12 15 | 9 9 9 | 3 0 4 | 1 of 3 classes have no test images (0 of 'b')  # whose macro F1 covers two classes
30 12 | 9 9 | 1 1 |
"""


@each_row(SIZES)
def test_classes_with_few_images_and_classes_of_unequal_size_are_noted(train, val, test, warnings):
    splits = []
    for sizes in filter(None, (train, val, test)):
        labels = np.repeat(np.arange(len(sizes.split())), list(map(int, sizes.split())))
        names = list(ascii_lowercase[: len(sizes.split())])
        splits.append(ImageArray(np.zeros((len(labels), 1, 2, 2), np.uint8), labels, names))
    texts = told(notes_on(*splits), kind="warning")
    for text, parts in zip(texts, warnings.split("; ") if warnings else [], strict=True):
        assert all(part in text for part in parts.split(" & "))
    assert not told(notes_on(*splits, is_weighted=True), "CLASS_WEIGHTS")


@mark.parametrize("of_val, kind", [([0, 1, 2], "log"), ([1, 2, 3], "warning")])
def test_numbers_above_those_of_the_training_are_no_part_of_a_list(of_val, kind):
    """Classes from 0 in train.csv, from 1 in val.csv."""
    splits = []
    for labels in ([0, 0, 2], of_val):
        names = [*map(str, range(max(labels) + 1))]
        one = ImageArray(np.zeros((3, 1, 2, 2), np.uint8), np.array(labels), names)
        splits.append(one.changed(has_class_names=False))
    assert told(notes_on(*splits), "no training image", kind)


def test_thresholds_of_labels_with_few_images_are_chance():
    labels = np.eye(4, dtype=np.int8)[np.repeat(range(4), [1, 9, 2, 9])]  # of each, one of several labels
    several = [ImageArray(np.zeros((21, 1, 2, 2), np.uint8), labels, list("abcd"))] * 2
    (chance,) = told(notes_on(*several), "threshold", "warning")
    assert "(1 of 'a', 2 of 'c')" in chance


def test_a_digest_names_the_images_and_labels_in_any_place_and_order(tmp_path):
    def digest(root, *lines):
        tree(root, "caf\u00e9.jpg", "b.jpg")
        (root / "val_list.txt").write_text("\n".join(lines))
        (samples,) = read(root, "val", dataset="imagenet2012")
        return digest_of(samples)

    one = digest(tmp_path / "one", "caf\u00e9.jpg 0", "b.jpg 1")
    tree(tmp_path / "two", "cafe\u0301.jpg")  # as macOS writes it
    assert digest(tmp_path / "two", "b.jpg 1", "cafe\u0301.jpg 0") == one
    assert len(one) == 16
    others = digest(tmp_path / "three", "b.jpg 1"), digest(tmp_path / "four", "caf\u00e9.jpg 1", "b.jpg 1")
    assert len({one, *others}) == 3


def test_a_data_set_without_any_of_its_files_is_one_finding_per_split(tmp_path):
    (tmp_path / "train.csv").write_text("image_path,target\nc.jpg,0\nc.jpg,0\nb.jpg,1\nb.jpg,1\ngone.jpg,0\n")
    only = report_on(tmp_path, dataset="csv")[-1]
    assert only.startswith(f"{tmp_path}/train.csv:")
    assert "is not a file" in only
    tree(tmp_path, "c.jpg", "b.jpg")
    splits = read(tmp_path, "train", "val", dataset="csv")
    bad, _ = checks.check_files(splits, 3)
    (missing,) = (image for image in bad if image.path == f"{tmp_path}/gone.jpg")
    assert f"{tmp_path}/train.csv:6" in str(missing)


def netpbm(values, highest):
    """A PGM or PPM. values: (H, W) or (H, W, 3)."""
    height, width = values.shape[:2]
    return b"P%d\n%d %d\n%d\n" % (3 + values.ndim, width, height, highest) + values.astype(">u2").tobytes()


DEEP_WRITERS = {
    "pgm": lambda gray, rgb: netpbm(gray, 65535),
    "ppm": lambda gray, rgb: netpbm(rgb, 65535),
    "png": lambda gray, rgb: png16(rgb),
    "tif": lambda gray, rgb: tiff16(rgb),
    "tiff": lambda gray, rgb: tiff16(gray[..., None], photometric=0),
    "of maxval 999": lambda gray, rgb: netpbm(rgb % 1000, 999),
}


@mark.parametrize("kind", DEEP_WRITERS)
def test_few_levels_are_a_warning_in_each_format_and_its_range_is_the_one_to_use(tmp_path, kind):
    """Values of 12 bits, and a defective pixel."""
    for number in range(12):
        values = np.random.default_rng(number).integers(0, 4096, (40, 40, 3))
        values[0, 0] = 65535 if number == 0 else 4095
        path = tmp_path / "ab"[number % 2] / f"{number}.{kind if len(kind) < 5 else 'ppm'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(DEEP_WRITERS[kind](values[..., 0], values))

    splits = read(tmp_path, "train", "val", dataset="folder")
    warnings = told(notes_on(*splits), "levels")
    assert len(warnings) == (kind != "of maxval 999")
    for warning in warnings:
        grey_range = parse_value(re.search(r"DATA.GREY_RANGE=(\[\d,4095\])", warning)[1])
        splits = read(tmp_path, "train", "val", dataset="folder", grey_range=grey_range)
        assert not told(notes_on(*splits), "levels")
        pixels = open_image(splits[0].read_bytes(1), 3, str, Decoding((0, 4095))).pixels
        for received in (splits[0], pickle.loads(pickle.dumps(splits[0]))):  # as a loading worker receives them
            assert torch.equal(received.open(1, 3).pixels, pixels)


# Ranks


@fixture
def answers(monkeypatch):
    """Calls a function, which makes one collective call, on two ranks in turn; returns their results or errors."""
    without_other_ranks(monkeypatch)
    contexts = [ProcessContext(rank, 0, 2, 1, torch.device("cpu"), ("node1", "node2")) for rank in range(2)]

    def call(function):
        values = []
        found = []
        monkeypatch.setattr(checks, "gather_objects", lambda value, context: values.append(value) or [value] * 2)
        for context in contexts:
            function(context)
        monkeypatch.setattr(checks, "gather_objects", lambda value, context: values)
        for context in contexts:
            try:
                found.append(function(context))
            except UserError as error:
                found.append(str(error))
        return found

    return call


def write_folders(root):
    write_classes(root / "train", a=3, b=3)
    write_classes(root / "val", a=2, b=2)


def write_tables(root, first="c"):
    write_image(root / "0.jpg")
    for split in ("train", "val"):
        (root / f"{split}.csv").write_text(f"image_path,target\n0.jpg,{first}|e\n1.jpg,d|e\n")


def write_shards(root, image=b"red"):
    root.mkdir(exist_ok=True)
    for split in ("train", "val"):
        files = {"0.jpg": b"blue", "0.cls": b"0", "1.jpg": image, "1.cls": b"1"}
        (root / f"{split}-0.tar").write_bytes(tar_of(files))


CASES = {
    "class renamed": ("folder", write_folders, lambda root: (root / "train/a").rename(root / "train/z")),
    "file missing": ("folder", write_folders, lambda root: (root / "val/a/001.jpg").unlink()),
    "other size": ("folder", write_folders, lambda root: write_image(root / "train/a/002.jpg", size=(90, 70))),
    "table": ("csv", write_tables, lambda root: write_tables(root, "d")),
    "shards": ("tar", write_shards, lambda root: write_shards(root, b"RED")),
}


@mark.parametrize("case", CASES)
def test_ranks_with_other_data_are_named(tmp_path, answers, case):
    dataset, write, change = CASES[case]
    if dataset == "tar":
        importorskip("obstore")
    for host in ("node1", "node2"):
        write(tmp_path / host)

    def compare(context):
        root = tmp_path / context.host
        data = options(root, multi_label=dataset == "csv", dataset=dataset, cache_dir=str(root / "cache"))
        source = source_class(dataset)(Wanted(data))
        check_same_data({split: source.read(split) for split in ("train", "val")}, context)

    assert answers(compare) == [None, None]  # in folders with different names
    change(tmp_path / "node2")
    one, other = answers(compare)
    assert one == other
    assert one.startswith("rank 1 (node2) has other data than rank 0 (node1): ")
    assert ("3 images in 2 classes" in one and "not 4 images" in one) == (case == "file missing"), one


def test_images_in_memory(answers):
    pixels = np.zeros((2, 4, 1, 8, 8), np.uint8)
    pixels[1, 2, 0, 7, 7] = 1
    one, other = (ImageArray(images, [0, 1, 0, 1], ["a", "b"]) for images in pixels)
    for pair in ([one, one], [one, other], [FakeImages(40, 10, (8, 8)), FakeImages(41, 10, (8, 8))]):
        found = answers(lambda context, pair=pair: check_same_data({"val": pair[context.rank]}, context))
        assert found == [None, None] if pair[0] is pair[1] else all("rank 1 (node2)" in answer for answer in found)


@mark.parametrize("predicts", [False, True])
def test_evaluations_and_predictions_compare_too(tmp_path, answers, predicts):
    for host in ("node1", "node2"):
        write_folders(tmp_path / host)

    def read_there(context):
        data = options(tmp_path / context.host, dataset="folder")
        if predicts:
            return reading.read_unlabelled(data.data_path, data, context)
        return reading.read_data(Wanted(data, ("val",)), context)

    assert not any(isinstance(answer, str) for answer in answers(read_there))
    (tmp_path / "node2/val/b/000.jpg").unlink()
    counts = ("9 images", "not 10 images") if predicts else ("3 images", "not 4 images")
    assert all(count in answer for answer in answers(read_there) for count in counts)


@mark.parametrize("size, total, ranks", [(32, None, 1), (32, None, 4), (8, 32, 1), (32, 64, 2)])
def test_the_batch_sizes_of_the_error_fill_a_batch(size, total, ranks):
    samples = FakeImages(26, 2, (8, 8))
    context = replace(CPU, world_size=ranks)
    given = ["-dataset=fake", f"-batch_size={size}", f"--opts=DATA.GLOBAL_BATCH_SIZE={total or 'null'}"]
    (finding,) = find_problems(samples, "train", parse_command_line(given).config.data, context)
    config = parse_command_line([*given, *str(finding).partition("; use ")[2].split()]).config
    assert not find_problems(samples, "train", config.data, context)
    assert plan_batches(config, ranks).global_size <= 26


def read_and_count(context: ProcessContext, root: Path, hosts: tuple[str, str], sees: bool) -> tuple[int, list]:
    """The number of times that this rank lists a class folder; what it has read, as a worker receives it."""
    if hosts[0] != hosts[1]:
        context = replace(context, hosts=hosts, local_rank=0, local_world_size=1)
    data = options(root, dataset="folder")
    listed = Counter[str]()
    scandir = os.scandir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: listed.update([str(path)]) or scandir(path))
        if not sees:
            patch.setattr(reading, "broadcast_object", refuse)
        found = reading.read_data(Wanted(data, ("train", "val")), context)
    splits = pickle.loads(pickle.dumps([*found.splits.values()]))
    facts = [(len(samples), digest_of(samples), samples.class_names, samples.read_bytes(0)) for samples in splits]
    return max(listed[str(root / name)] for name in "ab"), [found.run_split, *facts]


def refuse(value: object, context: ProcessContext, source: int) -> object:
    broadcast_object(value, context, source)
    raise FileNotFoundError


@mark.slow
@mark.parametrize(
    ("hosts", "sees", "counts"),
    [(("a", "a"), True, [1, 0]), (("a", "b"), True, [1, 1]), (("a", "a"), False, [1, 1])],
    ids=["one host", "two hosts", "a container without the files"],
)
def test_one_rank_of_each_host_lists_the_folders(tmp_path, ranks, hosts, sees, counts):
    write_classes(tmp_path, a=10, b=10)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "b"):
        os.utime(folder, (0, 0))  # one that has just changed may be listed again
    (first, of_main), (other, of_other) = ranks(2)(read_and_count, tmp_path, hosts, sees)
    assert [first, other] == counts
    assert of_main == of_other and [one[0] for one in of_main[1:]] == [18, 2]


def test_all_ranks_of_a_host_have_the_error_of_the_one_that_reads(tmp_path, monkeypatch):
    sent = {}
    without_other_ranks(monkeypatch)
    monkeypatch.setattr(
        reading, "broadcast_object", lambda value, context, source: sent.setdefault((source, context.rank), value)
    )
    data = options(tmp_path / "data", dataset="folder")
    for rank in (1, 2):
        sent[1, 2] = sent.get((1, 1))
        context = replace(CPU, rank=rank, world_size=3, hosts=("a", "b", "b"))
        with refused("^b, unlike a: .*data"):
            reading.read_data(Wanted(data, ("train", "val")), context)
        write_classes(tmp_path / "data", a=10, b=10)  # the other rank does not read it
