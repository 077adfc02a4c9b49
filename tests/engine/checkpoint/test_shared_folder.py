"""Hosts that do not share the folder of a run, or lack the data: told before training, with the names of the hosts."""

from contextlib import nullcontext
from pathlib import Path

import torch
from conftest import config_for, each_value, refused
from pytest import MonkeyPatch, mark

from datasets import reading
from datasets.sources.source import Wanted
from engine.checkpoint import run_folder as folder
from engine.checkpoint.run_folder import check_same_checkpoint, check_shared
from tests.datasets.sources.source_helpers import without_other_ranks
from utils.distributed import ProcessContext

HOSTS = ("node1", "node1", "node2", "node3")


def on_rank(rank: int) -> ProcessContext:
    return ProcessContext(rank, (0, 1, 0, 0)[rank], 4, 1, torch.device("cpu"), HOSTS)


@each_value("content | sees\nweights | true\nothers | false\n | false")
def test_a_checkpoint_is_compared_without_writing(tmp_path, monkeypatch, content, sees):
    """Rank 0 is on node1. Node2 has the same file, another one of the same name, or none."""
    monkeypatch.setattr(folder, "_VISIBLE_SECONDS", 0.0)
    paths = [tmp_path / node / "last.pth" for node in ("node1", "node2")]
    for path, text in zip(paths, ("weights", content), strict=True):
        path.parent.mkdir()
        if text:
            path.write_text(text)
    sizes = []
    monkeypatch.setattr(folder, "gather_objects", lambda seen, _: [True, True, seen, True])
    monkeypatch.setattr(folder, "broadcast_object", lambda size, _: sizes.append(size) or size)
    check_same_checkpoint(paths[0], on_rank(0))
    monkeypatch.setattr(folder, "broadcast_object", lambda size, _: sizes[0])
    with nullcontext() if sees else refused(rf"^{paths[1]}: node2 does not see .* of node1, "):
        check_same_checkpoint(paths[1], on_rank(2))
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_host_exchanges_nothing(tmp_path):
    """So that its folders may be read-only. There is no process group here."""
    one_host = ProcessContext(0, 0, 4, 4, torch.device("cpu"), ("node1",) * 4)
    check_shared(tmp_path / "missing", one_host)
    check_same_checkpoint(tmp_path / "missing", one_host)


def test_counted_ranks_all_look(tmp_path, monkeypatch):
    """The containers of one computer may have one name."""
    seen = []
    monkeypatch.setattr(folder, "broadcast_object", lambda value, _: value)
    monkeypatch.setattr(folder, "gather_objects", lambda sees, _: seen.append(sees) or [True, sees])
    counted = ProcessContext(1, 1, 2, 2, torch.device("cpu"), ("node1",) * 2, is_counted=True)
    monkeypatch.setattr(folder, "_VISIBLE_SECONDS", 0.0)
    with refused("node1 does not see"):
        check_shared(tmp_path, counted)
    assert seen == [False]


@mark.parametrize("shares", [True, False])
def test_a_folder_of_the_same_name_on_another_disk_is_not_enough(tmp_path, monkeypatch, shares):
    """Rank 0 writes in one folder; rank 2 looks for the file in the same folder or in another one."""
    monkeypatch.setattr(folder, "_VISIBLE_SECONDS", 0.0)
    sent = []
    seen = []
    other = tmp_path / "disk of node2"
    other.mkdir()

    def rank_2_looks(sees, context):
        monkeypatch.setattr(folder, "gather_objects", lambda sees, _: seen.append(sees) or [True] * 4)
        received = sent[0] if shares else other / sent[0].name
        monkeypatch.setattr(folder, "broadcast_object", lambda value, _: received)
        check_shared(tmp_path, on_rank(2))
        return [sees, True, *seen, *seen]

    monkeypatch.setattr(folder, "broadcast_object", lambda value, _: sent.append(value) or value)
    monkeypatch.setattr(folder, "gather_objects", rank_2_looks)
    with nullcontext() if shares else refused(rf"^SAVE: {tmp_path}: node2 and node3 do not see .* node1, .* -output$"):
        check_shared(tmp_path, on_rank(0))
    assert not list(tmp_path.glob(".shared*"))


def read_on(rank: int, data: Path, monkeypatch: MonkeyPatch) -> list:
    """`read_data` on a rank whose rank 0 has found no error."""
    without_other_ranks(monkeypatch)
    monkeypatch.setattr(reading, "check_same_data", lambda splits, context: None)
    config = config_for("-dataset=imagenet2012", f"-data_path={data}", "-batch_size=1")
    return [*reading.read_data(Wanted(config.data, ("train", "val"), num_classes=2), on_rank(rank)).splits.values()]


def test_a_host_without_the_data_is_named(tmp_path, monkeypatch):
    with refused(r"(?s)^node2, unlike node1: .*is empty"):
        read_on(2, tmp_path, monkeypatch)
    for split in ("train", "val"):
        rows = "".join(f"{split}/{number}.jpg {number % 2}\n" for number in range(100))
        (tmp_path / f"{split}_list.txt").write_text(rows)
    with refused(r"(?s)^node2, unlike node1: .*is not a file in"):
        read_on(2, tmp_path, monkeypatch)
    assert len(read_on(1, tmp_path, monkeypatch)) == 2  # the ranks of rank 0's host leave the files to it
