"""Checkpoints as files and as folders of shards in one run: rotation, a change of form, and kills in between."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import assert_same_state
from test_checkpoint import make_state

from engine.checkpoint.reader import find_checkpoint, load_checkpoint, read_best
from engine.checkpoint.shard_writer import ShardWriter
from engine.checkpoint.writer import CheckpointWriter
from utils.distributed import ProcessContext
from utils.errors import UserError

ALONE = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
Writer = CheckpointWriter | ShardWriter


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone, without a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard_writer(folder: Path, keep: int = 2) -> ShardWriter:
    return ShardWriter(folder, keep, lambda *_: None, ALONE, 60)


def file_writer(folder: Path, keep: int = 2) -> CheckpointWriter:
    return CheckpointWriter(folder, keep, lambda *_: None)


def save(writer: Writer, epoch: int, is_best: bool = False) -> None:
    writer.save(make_state(epoch), is_best, f"epoch-{epoch:03d}")
    writer.wait()


def epochs(folder: Path) -> dict[str, int]:
    return {path.name: load_checkpoint(path)["epoch"] for path in folder.iterdir()}


def found_epoch(folder: Path) -> int:
    found = find_checkpoint(str(folder), folder)
    assert not found.notes and found.state["model"]["weight"].unique() == found.state["epoch"]
    return found.state["epoch"]


@pytest.mark.parametrize("in_background", [True, False], ids=["in the background", "without memory for a copy"])
def test_last_previous_best_and_newest_folders_are_kept(tmp_path, group, monkeypatch, in_background):
    if not in_background:
        monkeypatch.setattr("engine.checkpoint.shard_writer.available_bytes", lambda: 0)
    writer = shard_writer(tmp_path)
    for epoch in range(1, 6):
        save(writer, epoch, is_best=epoch == 2)
    names = {"last": 5, "previous": 4, "best": 2, "epoch-004": 4, "epoch-005": 5}
    assert epochs(tmp_path) == {f"{name}.shards": epoch for name, epoch in names.items()}
    inodes = {path.stat().st_ino for path in tmp_path.glob("*/*.safetensors")}
    assert len(inodes) == 3  # epochs 2, 4 and 5: the others are hard links


def test_a_large_part_is_divided_into_files(tmp_path, group, monkeypatch):
    monkeypatch.setattr("engine.checkpoint.shard_writer._FILE_BYTES", 400)
    model = {f"layer.{number}": torch.full((100,), float(number)) for number in range(3)}
    writer = shard_writer(tmp_path)
    writer.save(make_state(1, model=model), False, None)
    writer.wait()
    files = sorted(path.name for path in (tmp_path / "last.shards").glob("*.safetensors"))
    assert files == [f"shard-00001-model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert_same_state(load_checkpoint(tmp_path / "last.shards")["model"], model)


def test_a_save_in_one_form_replaces_the_checkpoint_in_the_other(tmp_path, group):
    save(file_writer(tmp_path), 1, is_best=True)
    save(file_writer(tmp_path), 2)
    save(shard_writer(tmp_path), 3)
    assert epochs(tmp_path) == {
        "last.shards": 3, "previous.pth": 2, "best.pth": 1, "epoch-002.pth": 2, "epoch-003.shards": 3
    }  # fmt: skip
    assert found_epoch(tmp_path) == 3
    save(shard_writer(tmp_path), 4, is_best=True)
    names = {"last": 4, "previous": 3, "best": 4, "epoch-003": 3, "epoch-004": 4}
    assert epochs(tmp_path) == {f"{name}.shards": epoch for name, epoch in names.items()}
    save(file_writer(tmp_path), 5, is_best=True)
    assert epochs(tmp_path) == {
        "last.pth": 5, "previous.shards": 4, "best.pth": 5, "epoch-004.shards": 4, "epoch-005.pth": 5
    }  # fmt: skip
    assert found_epoch(tmp_path) == 5


class Killed(BaseException):
    pass


def dies_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The process dies before the given change of a name, or in the middle of a deletion. Returns a counter."""
    calls = 0

    def counted(real: Callable) -> Callable:
        def function(*args, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                if real is rmtree and Path(args[0]).exists():
                    os.unlink(next(Path(args[0]).iterdir()))  # a part of it
                raise Killed
            return real(*args, **options)

        return function

    rmtree = shutil.rmtree
    for module, name in ((os, "rename"), (os, "replace"), (shutil, "rmtree"), (Path, "unlink")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return lambda: calls


FORMS = {
    "shards": (shard_writer, shard_writer, shard_writer),
    "to shards": (file_writer, file_writer, shard_writer),
    "to a file": (shard_writer, shard_writer, file_writer),
    "and back": (shard_writer, file_writer, shard_writer),
}


@pytest.mark.parametrize("writers", FORMS.values(), ids=FORMS.keys())
def test_killed_at_any_moment_a_checkpoint_is_valid(tmp_path, group, writers):
    """At every change of a name of the third save. A new writer then deletes what is left."""
    before = tmp_path / "before"
    before.mkdir()
    for epoch, make in enumerate(writers[:2], 1):
        save(make(before), epoch, is_best=True)
    for call in range(1, 100):
        folder = Path(shutil.copytree(before, tmp_path / f"killed-{call}"))
        with pytest.MonkeyPatch.context() as patch:
            writer = writers[2](folder)
            counter = dies_at(call, patch)
            with suppress(Killed):
                save(writer, 3, is_best=True)
        assert found_epoch(folder) in (2, 3), call
        writers[2](folder)
        assert not list(folder.glob(".*.tmp"))
        assert set(epochs(folder).values()) <= {1, 2, 3}  # nothing is damaged
        if counter() < call:
            break
    assert call > 3 and found_epoch(folder) == 3


def test_the_best_is_read_in_either_form(tmp_path, group):
    assert read_best(tmp_path, ALONE) is None
    best = {"top1": 1.0, "top5": 2.0, "epoch": 1, "loss": None}
    writer = shard_writer(tmp_path)
    writer.save(make_state(1, best=best), True, None)
    writer.wait()
    assert read_best(tmp_path, ALONE) == best
    (tmp_path / "best.shards" / "content.json").write_text("{}")
    assert read_best(tmp_path, ALONE) is None


def test_a_named_folder_is_read_and_no_other(tmp_path, group):
    save(shard_writer(tmp_path), 1)
    save(shard_writer(tmp_path), 2)
    assert find_checkpoint(str(tmp_path / "previous.shards") + "/", tmp_path).state["epoch"] == 1
    (tmp_path / "previous.shards" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"previous\.shards: has no manifest\.json: it was not saved completely"):
        find_checkpoint(str(tmp_path / "previous.shards"), tmp_path)
