"""A resume from behind destroys nothing; a checkpoint with its options makes a run, not the text files beside it."""

import hashlib
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from conftest import assert_same_state, only_run, read_result, rows, states, train

from configs.command_line import parse_command_line
from configs.weights import read_entries
from engine.checkpoint.reader import find_checkpoint, load_checkpoint, runs_newest_first
from engine.checkpoint.run_folder import is_run_folder
from engine.commands.run import run
from engine.training.trainer import Trainer
from utils.files import read_json

LONG = (
    "TRAIN.NUM_EPOCHS=5",
    "KEEP_CHECKPOINTS=9",
    "DATA.BATCH_SIZE=360",
    "TRAIN.BASE_LR=5e-3",
    "LOGGERS=[]",
    "EVAL.BEST_METRIC=loss",
)
STEPS = 3  # of an epoch


@pytest.fixture
def long_run(digits_run) -> Path:
    """Five epochs of three steps; the fifth is the best."""
    folder = digits_run(*LONG)
    assert load_checkpoint(folder / "best.pth")["best"]["epoch"] == 5
    return folder


def digests(folder: Path) -> dict[str, Path]:
    return {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in sorted(folder.rglob("*.pth"))}


def best_score(folder: Path) -> float:
    return min(load_checkpoint(file)["best"]["loss"] for file in folder.rglob("best.pth"))


SHORTER, OTHER = ("TRAIN.MAX_STEPS=13",), ("TRAIN.NUM_EPOCHS=6", "TRAIN.BASE_LR=1e-6")
RESUMES = {
    "epoch-001.pth": OTHER, "epoch-004": SHORTER, "best.pth": OTHER, "previous.pth": SHORTER,
    "": OTHER, "auto": SHORTER,
}  # fmt: skip


@pytest.mark.parametrize(("name", "options"), RESUMES.items())
def test_no_checkpoint_ahead_and_no_better_one_is_lost(long_run, digits_argv, cpu, monkeypatch, name, options):
    before, score = digests(long_run), best_score(long_run)
    found = find_checkpoint("auto" if name == "auto" else str(long_run / name), cpu, [long_run])
    ahead = [place.path for place in found.places if place.progress > found.place.progress]
    read = Counter[Path]()
    monkeypatch.setattr("engine.checkpoint.reader.read_entries", lambda path: read.update([path]) or read_entries(path))
    train([f"-resume={name if name == 'auto' else found.path}", *digits_argv, *LONG, *options], cpu)
    assert set(read.values()) == {1}
    kept = digests(long_run)
    assert {digest for digest, file in before.items() if file in ahead} <= kept.keys()
    assert best_score(long_run) <= score
    assert bool(ahead) == bool(list(long_run.glob("step-*")))


@pytest.mark.parametrize("damage", ["an earlier epoch", "a damaged file", "a missing file"])
def test_a_best_that_is_not_the_best_is_written_again(long_run, cpu, damage):
    """As after a kill between last.pth and best.pth."""
    best = states(long_run, "best.pth")
    (long_run / "best.pth").unlink()
    if damage != "a missing file":
        shutil.copyfile(long_run / "epoch-002.pth", long_run / "best.pth")
    if damage == "a damaged file":
        (long_run / "best.pth").write_bytes(b"PK")
    train([f"-resume={long_run / 'last.pth'}"], cpu)
    assert states(long_run, "best.pth")["best"] == best["best"]
    assert_same_state(states(long_run, "best.pth")["model"], best["model"])


class Killed(BaseException):
    pass


def kill(*_: object) -> None:
    raise Killed


def test_what_is_ahead_is_a_run_of_its_own(long_run, cpu, monkeypatch):
    unbroken = {name: states(long_run, name) for name in ("last.pth", "best.pth")}
    tables = rows(long_run)
    figure = f"{unbroken['best.pth']['best']['loss']:.4f}"
    argv = [f"-resume={long_run}/epoch-002.pth", "-opts", "TRAIN.MAX_STEPS=9"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "train", kill)
        train(argv, cpu)
    assert read_result(long_run)["epoch"] == 2  # the best of what is left
    assert f"-resume={long_run}" in read_json(long_run / "status.json")["resume"]  # before its next checkpoint
    train(argv, cpu)
    aside = long_run / f"step-{5 * STEPS:06d}"
    line = rf"Resume: the best loss, {re.escape(figure)} \(epoch 5\), .*epoch-002\.pth: moved to {aside}"
    assert re.search(line, (long_run / "log.txt").read_text())
    assert rows(aside) == tables and [row["epoch"] for row in rows(long_run)] == ["1", "2", "3"]
    assert (aside / "evaluation" / "summary.json").is_file()
    assert read_result(aside)["epoch"] == 5 and read_result(aside)["checkpoint"] == str(aside / "best.pth")
    for name, state in unbroken.items():
        assert_same_state(states(aside, name), state)
    assert sorted(file.name for file in long_run.glob("epoch-*")) == [f"epoch-00{epoch}.pth" for epoch in (1, 2, 3)]
    train([f"-resume={aside}", "-epochs=6"], cpu)  # continues by itself
    assert load_checkpoint(aside / "last.pth")["epoch"] == 6
    train([f"-resume={long_run}/epoch-002.pth", "-opts", "TRAIN.MAX_STEPS=9"], cpu)  # a second time
    assert len(list(long_run.glob("step-*"))) == 2


def test_rows_without_a_checkpoint_are_cut(digits_run, cpu):
    folder = digits_run("TRAIN.MAX_STEPS=23")
    with open(folder / "metrics.csv", "a") as file:
        file.write(re.sub("^1,", "2,", (folder / "metrics.csv").read_text().splitlines()[-1]) + "\n")
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=24"], cpu)
    assert len(rows(folder)) == 1 and not list(folder.glob("step-*"))


def test_the_options_of_the_steps_before_stay_known(long_run, cpu):
    first = (long_run / "config.yaml").read_text()
    train([f"-resume={long_run}", "-epochs=6", "-opts", "REPORT_FREQ=7"], cpu)
    train([f"-resume={long_run}/epoch-002.pth", "-opts", "REPORT_FREQ=9", "TRAIN.MAX_STEPS=7"], cpu)
    assert (long_run / f"config-step-{2 * STEPS:06d}.yaml").read_text() == first
    assert len(list(long_run.glob("config-step-*"))) == 1


TEXTS = {"log.txt", "metrics.csv", "metrics.jsonl", "run.json", "config.yaml", "status.json"}


@pytest.mark.parametrize("missing", [{"log.txt"}, TEXTS])
def test_a_run_without_its_text_files_continues(digits_run, digits_argv, cpu, missing):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    for name in missing:
        (folder / name).unlink()
    for step, argv in enumerate((["-resume=auto", *digits_argv], [f"-resume={folder}", "-opts"]), 4):
        assert run(parse_command_line([*argv, f"TRAIN.MAX_STEPS={step}"]), cpu) == 0
        assert load_checkpoint(folder / "last.pth")["done_steps"] == step
        assert only_run(folder.parent) == folder and all((folder / name).is_file() for name in missing)
        log = (folder / "log.txt").read_text().rpartition("Options that differ")[2]  # of the latest start
        named = re.search(r"Resume: missing in .*: (.*); written from here on", log)
        assert (set(named[1].split(", ")) if named else set()) == (missing - {"status.json"} if step == 4 else set())
    options = parse_command_line([f"-resume={folder}"]).config
    assert (options.model.embed_dim, options.data.batch_size) == (16, 64)


def test_options_of_a_checkpoint_without_an_options_file(digits_run, cpu, tmp_path):
    """A copy continues with its own options, in a new folder, and the log says so."""
    copy = Path(shutil.copy(digits_run("TRAIN.MAX_STEPS=3") / "last.pth", tmp_path / "copy.pth"))
    argv = [f"-resume={copy}", f"-output={tmp_path / 'new'}", "-opts", "TRAIN.MAX_STEPS=4"]
    assert run(parse_command_line(argv), cpu) == 0
    assert "in no folder of a run; the run continues in" in (only_run(tmp_path / "new") / "log.txt").read_text()


@pytest.mark.parametrize("names", [("best.pth",), ("last.pth",), ("best.pth", "config.yaml"), ("epoch-001.pth",)])
def test_copies_are_no_run(tmp_path, names):
    (copy := tmp_path / "copies").mkdir()
    for name in names:
        (copy / name).touch()
    assert not is_run_folder(copy) and runs_newest_first(tmp_path) == []
