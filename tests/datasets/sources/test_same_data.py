"""Ranks with different data end before the first step: one line names the hosts and the numbers of images."""

import numpy as np
import pytest
import torch
from source_helpers import options, write_classes, write_image

from datasets import registry
from datasets.sources import checks
from datasets.sources.checks import check_same_data
from datasets.sources.in_memory import FakeImages, ImageArray
from datasets.sources.source import source_class
from tests.datasets.shards.tar_files import tar_of
from utils.distributed import ProcessContext
from utils.errors import UserError


class Waiting(BaseException):
    """A rank has reached a collective call whose values are not known yet."""


@pytest.fixture
def answers(monkeypatch):
    """Calls a function with the context of each of two ranks; returns their results or errors.

    The ranks take turns, without threads: at a collective call a rank stops, and begins again when both have given
    their values.
    """
    gathered, places = [], {}

    def gather(value, context):
        place = places[context.rank]
        places[context.rank] += 1
        if place == len(gathered):
            raise Waiting(value)
        return list(gathered[place])

    monkeypatch.setattr(checks, "gather_objects", gather)
    monkeypatch.setattr(registry, "work_while_others_wait", lambda work, context: work())
    monkeypatch.setattr(registry, "call_on_main", lambda call, context: None)

    def answer(function, rank):
        places[rank] = 0
        try:
            return function(ProcessContext(rank, 0, 2, 1, torch.device("cpu"), ("node1", "node2")))
        except (UserError, Waiting) as error:
            return error if isinstance(error, Waiting) else str(error)

    def call(function):
        gathered.clear()
        while isinstance((found := [answer(function, rank) for rank in range(2)])[0], Waiting):
            gathered.append([waiting.args[0] for waiting in found])
        return found

    return call


def write_folders(root):
    write_classes(root / "train", a=3, b=3)
    write_classes(root / "val", a=2, b=2)


def write_lists(root):
    rows = [(f"{number}.jpg", number % 2) for number in range(4)]
    for name, _ in rows:
        write_image(root / name)
    for split in ("train", "val"):
        (root / f"{split}_list.txt").write_text("".join(f"{name} {label}\n" for name, label in rows))
        table = "".join(f"{name},{'cd'[label]}|e\n" for name, label in rows)
        (root / f"{split}.csv").write_text(f"image_path,target\n{table}")


def write_shards(root, image=b"red"):
    root.mkdir(exist_ok=True)
    for split in ("train", "val"):
        files = {"0.jpg": b"blue", "0.cls": b"0", "1.jpg": image, "1.cls": b"1"}
        (root / f"{split}-0.tar").write_bytes(tar_of(files))


def rename_class(root):
    for split in ("train", "val"):
        (root / split / "a").rename(root / split / "z")


def edit(name, old, new):
    def change(root):
        (root / name).write_text((root / name).read_text().replace(old, new))

    return change


CASES = {
    "class renamed": ("folder", write_folders, rename_class),
    "file missing": ("folder", write_folders, lambda root: (root / "val/a/001.jpg").unlink()),
    "other size": ("folder", write_folders, lambda root: write_image(root / "train/a/002.jpg", size=(90, 70))),
    "table": ("csv", write_lists, edit("train.csv", "c|e", "d|e")),
    "shards": ("tar", write_shards, lambda root: write_shards(root, b"RED")),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_with_other_data_are_named(tmp_path, answers, case):
    dataset, write, change = CASES[case]
    if dataset == "tar":
        pytest.importorskip("obstore")
    for host in ("node1", "node2"):
        write(tmp_path / host)

    def compare(context):
        root = tmp_path / context.host
        data = options(root, multi_label=dataset == "csv", dataset=dataset, cache_dir=str(root / "cache"))
        source = source_class(dataset)(data)
        check_same_data([source.read(split) for split in ("train", "val")], context)

    assert answers(compare) == [None, None]  # in folders with different names
    change(tmp_path / "node2")
    one, other = answers(compare)
    assert one == other and one.startswith("rank 1 (node2) has other data than rank 0 (node1): ")
    assert ("3 images in 2 classes" in one and "not 4 images" in one) == (case == "file missing"), one


def test_images_in_memory(answers):
    pixels = np.zeros((4, 1, 8, 8), np.uint8)
    other = pixels.copy()
    other[2, 0, 7, 7] = 1
    pairs = [
        [ImageArray(images, [0, 1, 0, 1], ["a", "b"]) for images in (pixels, second)] for second in (pixels, other)
    ]
    pairs.append([FakeImages(40, 10, (8, 8)), FakeImages(41, 10, (8, 8))])
    same, pixel, noise = (
        answers(lambda context, pair=pair: check_same_data([pair[context.rank]], context)) for pair in pairs
    )
    assert same == [None, None] and all("rank 1 (node2)" in answer for answer in (*pixel, *noise))


@pytest.mark.parametrize("predicts", [False, True])
def test_evaluations_and_predictions_compare_too(tmp_path, answers, predicts):
    for host in ("node1", "node2"):
        write_folders(tmp_path / host)

    def read(context):
        data = options(tmp_path / context.host, dataset="folder", batch_size=1)
        if predicts:
            return registry.read_unlabelled(data.data_path, data, context)
        return registry.read_samples(data, None, context, "val")

    assert not any(isinstance(answer, str) for answer in answers(read))
    (tmp_path / "node2/val/b/000.jpg").unlink()
    counts = ("9 images", "not 10 images") if predicts else ("3 images", "not 4 images")
    assert all(count in answer for answer in answers(read) for count in counts)
