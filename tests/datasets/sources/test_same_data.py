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


@pytest.fixture
def answers(monkeypatch):
    """Calls a function, which makes one collective call, on two ranks in turn; returns their results or errors."""
    monkeypatch.setattr(registry, "work_while_others_wait", lambda work, context: work())
    monkeypatch.setattr(registry, "call_on_main", lambda call, context: None)
    contexts = [ProcessContext(rank, 0, 2, 1, torch.device("cpu"), ("node1", "node2")) for rank in range(2)]

    def call(function):
        values, found = [], []
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
    pixels = np.zeros((2, 4, 1, 8, 8), np.uint8)
    pixels[1, 2, 0, 7, 7] = 1
    one, other = (ImageArray(images, [0, 1, 0, 1], ["a", "b"]) for images in pixels)
    for pair in ([one, one], [one, other], [FakeImages(40, 10, (8, 8)), FakeImages(41, 10, (8, 8))]):
        found = answers(lambda context, pair=pair: check_same_data([pair[context.rank]], context))
        assert found == [None, None] if pair[0] is pair[1] else all("rank 1 (node2)" in answer for answer in found)


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
