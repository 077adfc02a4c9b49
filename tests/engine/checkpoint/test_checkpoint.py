"""Checkpoints: one is complete at any moment, and a damaged one is skipped."""

import itertools
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from checkpoint_content import content
from conftest import CPU, refused
from pytest import MonkeyPatch, fixture, mark, skip

from configs.yaml_io import parse_value
from engine.checkpoint.files import (
    CheckpointWriter,
    FoundCheckpoint,
    find_best,
    find_checkpoint,
    load_checkpoint,
    read_places,
    runs_newest_first,
)
from engine.checkpoint.run_folder import BEST, LAST, PREVIOUS, checkpoints_by_progress
from utils.metric_table import metrics_of


def make_state(epoch: int = 0, **changes) -> dict:
    model = {"weight": torch.full((100,), float(epoch)), "count": torch.tensor(3)}
    return content(**{"epoch": epoch, "model": model} | changes)


def new_writer(folder: Path) -> CheckpointWriter:
    return CheckpointWriter(folder, 2, lambda *_: None)


def save(writer: CheckpointWriter, epoch: int, is_best: bool = False, **changes):
    writer.save(make_state(epoch, **changes), is_best, f"epoch-{epoch:03d}")
    writer.wait()


def epochs(folder: Path) -> dict[str, int]:
    return {path.name: load_checkpoint(path)["epoch"] for path in folder.iterdir()}


@fixture
def run_folder(tmp_path) -> Path:
    folder = tmp_path / "train-1"
    folder.mkdir()
    for name in ("config.yaml", "log.txt", "metrics.csv"):
        (folder / name).touch()
    return folder


@mark.parametrize("in_background", [True, False], ids=["in the background", "without memory for a copy"])
def test_last_previous_best_and_newest_are_kept(tmp_path, monkeypatch, in_background):
    if not in_background:
        monkeypatch.setattr("engine.checkpoint.files.available_bytes", lambda: 0)
    writer = new_writer(tmp_path)
    for epoch in range(1, 6):
        save(writer, epoch, is_best=epoch == 2)
    names = parse_value("{last: 5, previous: 4, best: 2, epoch-004: 4, epoch-005: 5}")
    assert epochs(tmp_path) == {f"{name}.pth": epoch for name, epoch in names.items()}
    assert len({path.stat().st_ino for path in tmp_path.iterdir()}) == 3  # epochs 2, 4 and 5: the others are hard links
    writer.save(make_state(6), is_best=False, periodic=None, is_later=False)
    writer.wait()
    assert epochs(tmp_path) == {f"{name}.pth": epoch for name, epoch in (names | {"last": 6}).items()}


def test_periodic_checkpoints_are_kept_by_epoch_and_the_new_one_always(tmp_path):
    """The clock of the machine goes back; a run that is resumed from an earlier epoch finds later ones."""
    writer = new_writer(tmp_path)
    for epoch in (1, 2, 3):
        save(writer, epoch, is_best=False)
        os.utime(tmp_path / f"epoch-00{epoch}.pth", (2e9 - epoch, 2e9 - epoch))
    assert {*epochs(tmp_path)} == {"last.pth", "previous.pth", "epoch-002.pth", "epoch-003.pth"}
    save(writer, 1, is_best=False)
    assert {*epochs(tmp_path)} == {"last.pth", "previous.pth", "epoch-001.pth", "epoch-003.pth"}


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    """A running variance may become infinite while losses and gradients are finite."""
    writer = new_writer(tmp_path)
    save(writer, 1, is_best=True)
    with refused(r"last\.pth: .* state_dict_ema var; lower -lr"):
        save(writer, 2, is_best=True, state_dict_ema={"var": torch.tensor([1.0, torch.inf])})
    assert epochs(tmp_path) == {"last.pth": 1, "best.pth": 1, "epoch-001.pth": 1}


def test_the_thread_that_writes_starts_no_threads_of_openmp(tmp_path):
    """With more of them than cores, GNU's OpenMP lets the training's sleep at once: 20 times the waits."""
    tasks = Path("/proc/self/task")
    weight = torch.ones(1_000_000)
    writer = new_writer(tmp_path)
    if not tasks.exists():
        skip("not Linux")
    torch.set_num_threads(2)
    try:
        weight.isfinite().all()  # starts the threads of this one
        before = {*tasks.iterdir()}
        save(writer, 1, model={"weight": weight})
        assert len({*tasks.iterdir()} - before) == 1  # it waits for another checkpoint
    finally:
        torch.set_num_threads(1)


def test_periodic_checkpoints_are_in_the_order_of_their_epochs(tmp_path):
    """As text, 990 comes after 1010."""
    names = [f"epoch-{number}.pth" for number in (12000, 1010, 1000, 990, "090")]
    for name in (*names, "epoch-final.pth"):  # of another program
        (tmp_path / name).touch()
    assert [path.name for path in checkpoints_by_progress(tmp_path)] == names


def test_background_save_writes_the_state_at_the_time_of_the_call(tmp_path, monkeypatch):
    """Training continues while the disk does not answer."""
    sync = os.fsync
    answers = threading.Event()
    monkeypatch.setattr("utils.files.os.fsync", lambda file: (answers.wait(60), sync(file)))
    state = make_state(1)
    writer = new_writer(tmp_path)
    writer.save(state, is_best=False, periodic=None)
    assert not (tmp_path / LAST).exists()
    state["model"]["weight"] += 7
    answers.set()
    writer.wait()
    assert load_checkpoint(tmp_path / LAST)["model"]["weight"].unique() == 1


def test_a_large_checkpoint_of_a_cpu_is_written_without_a_copy(tmp_path, monkeypatch):
    written = list[int]()
    state = make_state(1)
    writer = CheckpointWriter(tmp_path, 2, lambda _, saved: written.append(saved["model"]["weight"].data_ptr()))
    for most in (10**8, 100):
        monkeypatch.setattr("engine.checkpoint.files._MOST_COPIED", most)
        writer.save(state, is_best=False, periodic=None)
        writer.wait()
    assert [pointer == state["model"]["weight"].data_ptr() for pointer in written] == [False, True]


def test_error_of_a_background_save_is_raised(tmp_path, monkeypatch):
    writer = new_writer(tmp_path)
    save(writer, 1)
    with monkeypatch.context() as full_disk, refused(r"last\.pth: .*No space left"):
        full_disk.setattr("utils.files.open", lambda *_, **__: open("/dev/full", "wb", buffering=0), raising=False)  # noqa: SIM115
        save(writer, 2, is_best=True)
    writer.check()
    assert epochs(tmp_path) == {LAST: 1, "epoch-001.pth": 1}


def test_previous_checkpoint_replaces_a_damaged_last_checkpoint(run_folder):
    writer = new_writer(run_folder)
    for epoch in (1, 2):
        writer.save(make_state(epoch), is_best=False, periodic=None)
    writer.wait()
    last = run_folder / LAST
    last.write_bytes(last.read_bytes()[:-100])
    runs = runs_newest_first(run_folder.parent)
    for resume in (str(run_folder), "auto"):
        found = find_checkpoint(resume, CPU, runs)
        assert (found.path, found.state["epoch"]) == (run_folder / PREVIOUS, 1)
        (note,) = found.notes
        assert str(last) in note
    with refused(r"last\.pth"):
        find_checkpoint(str(last), CPU)
    (run_folder / PREVIOUS).write_bytes(b"")
    with refused(r"none of 2 .*(last|previous)\.pth"):
        find_checkpoint("auto", CPU, runs)


def test_auto_finds_the_newest_checkpoint_of_all_runs(run_folder, tmp_path):
    assert runs_newest_first(tmp_path) == runs_newest_first(tmp_path / "missing") == []
    assert find_checkpoint("auto", CPU) is None
    save(new_writer(run_folder), 1)
    other = Path(shutil.copytree(run_folder, tmp_path / "train-0", copy_function=shutil.copyfile))
    assert find_checkpoint("auto", CPU, runs_newest_first(tmp_path)).path == other / LAST
    (tmp_path / "train-2").mkdir()
    (tmp_path / "train-2" / "last.pth").write_bytes(b"not a checkpoint")
    assert find_checkpoint("auto", CPU, runs_newest_first(tmp_path)).path == other / LAST


def test_a_search_without_a_result_is_one_line(tmp_path):
    for name in ("Epoch-12-Loss-1.6.pdparams", "Epoch-12.pdopt"):
        (tmp_path / name).touch()
    with refused(r"-pretrained=.*/Epoch-12.*\.pdparams and -last_epoch=12$"):
        find_checkpoint(str(tmp_path), CPU)
    file = tmp_path / "run.pdparams"
    file.write_bytes(pickle.dumps({"model": {}, "epoch": 7}))
    with refused("run.pdparams and -last_epoch=7$"):
        load_checkpoint(file)
    for path, line in (("nothing", "no such file or folder"), (f"{tmp_path}/run-1.pdparams", "mean run.pdparams")):
        with refused(f"-resume {path}: .*{line}"):
            find_checkpoint(path, CPU)


class Killed(BaseException):
    pass


def dies_at(call: int, monkeypatch: MonkeyPatch) -> Iterator[int]:
    """The process dies before the given change of a name. Returns the numbers of the next changes."""
    calls = itertools.count(1)

    def counted(real):
        def function(*args, **options):
            if next(calls) == call:
                raise Killed
            return real(*args, **options)

        return function

    for module, name in ((os, "replace"), (Path, "unlink")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return calls


def test_killed_at_any_moment_a_checkpoint_is_valid(tmp_path):
    """At every change of a name of the third save. A new writer then deletes what is left."""
    before = tmp_path / "before"
    before.mkdir()
    for epoch in (1, 2):
        save(new_writer(before), epoch, is_best=True)
    for call in range(1, 100):
        folder = Path(shutil.copytree(before, tmp_path / f"killed-{call}"))
        with MonkeyPatch.context() as patch:
            writer = new_writer(folder)
            calls = dies_at(call, patch)
            with suppress(Killed):
                save(writer, 3, is_best=True)
        found = find_checkpoint(str(folder), CPU)
        assert not found.notes and found.state["epoch"] in (2, 3), call
        assert found.state["model"]["weight"].unique() == found.state["epoch"]
        new_writer(folder)
        assert not list(folder.glob(".*.tmp"))
        assert set(epochs(folder).values()) <= {1, 2, 3}  # nothing is damaged
        if next(calls) <= call:
            break
    assert call > 3
    assert found.state["epoch"] == 3


def test_the_best_is_valid_and_of_the_best_evaluation(tmp_path):
    best = {metric.name: 1.0 for metric in metrics_of(multi_label=False)} | {"epoch": 1, "loss": None}

    def found(best):
        last = {"best": best}
        return find_best(FoundCheckpoint(tmp_path / LAST, last, [], tmp_path, read_places(tmp_path)), CPU)

    assert found(best) is None
    save(new_writer(tmp_path), 1, is_best=True, best=best)
    assert found(best) == tmp_path / BEST
    assert found(best | {"top1": 3.0}) is None
    (tmp_path / LAST).unlink()
    (tmp_path / BEST).write_text("{}")
    assert found(best) is None
