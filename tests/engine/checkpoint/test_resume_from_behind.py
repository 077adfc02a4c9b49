"""A resume from behind leaves its run as it is; a checkpoint with its options makes a run, not the files beside it."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import assert_same_state, only_run, read_result, rows, states, train

from configs.command_line import parse_command_line
from engine.checkpoint.files import find_checkpoint, load_checkpoint, runs_newest_first
from engine.checkpoint.run_folder import is_run_folder
from engine.commands.run import run

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


def test_a_run_with_checkpoints_ahead_stays_and_a_new_one_continues(long_run, digits_argv, cpu, tmp_path):
    before = {file: file.read_bytes() for file in long_run.rglob("*") if file.is_file() and file.name != ".lock"}
    for name, epoch in (("epoch-002.pth", 2), ("previous.pth", 4)):
        stop = f"TRAIN.MAX_STEPS={STEPS * (epoch + 1)}"
        run(parse_command_line([f"-resume={long_run / name}", f"-output={tmp_path / name}", "-opts", stop]), cpu)
        folder = only_run(tmp_path / name)
        assert [row["epoch"] for row in rows(folder)] == [str(epoch + 1)]
        assert_same_state(states(folder)["model"], states(long_run, f"epoch-00{epoch + 1}.pth")["model"])
        assert read_result(folder)["checkpoint"].startswith(str(folder))
    assert before == {file: file.read_bytes() for file in before}
    found = find_checkpoint("auto", cpu, [long_run])
    assert found.path.name == "last.pth" and found.run_folder == long_run


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


def test_rows_without_a_checkpoint_are_cut(digits_run, cpu):
    folder = digits_run("TRAIN.MAX_STEPS=23")
    with open(folder / "metrics.csv", "a") as file:
        file.write(re.sub("^1,", "2,", (folder / "metrics.csv").read_text().splitlines()[-1]) + "\n")
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=24"], cpu)
    assert len(rows(folder)) == 1


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


@pytest.mark.parametrize("names", [("best.pth",), ("last.pth",), ("best.pth", "config.yaml"), ("epoch-001.pth",)])
def test_copies_are_no_run(tmp_path, names):
    (copy := tmp_path / "copies").mkdir()
    for name in names:
        (copy / name).touch()
    assert not is_run_folder(copy) and runs_newest_first(tmp_path) == []
