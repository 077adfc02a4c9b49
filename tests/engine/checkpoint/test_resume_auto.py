"""-resume=auto enters the newest run of the same experiment only."""

import re

import pytest
from conftest import only_run, read_result, run_folders, train

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.commands.run import run
from utils.errors import UserError
from utils.files import read_json
from utils.status import STATUS


def resume_auto(argv: list[str], cpu) -> None:
    assert run(parse_command_line(["-resume=auto", *argv]), cpu) == 0


def test_runs_of_other_experiments_are_passed_over(digits_argv, cpu, tmp_path, capsys):
    """Two seeds of a job array, resubmitted: each continues its own run."""
    short = "TRAIN.MAX_STEPS=1"
    first = train([*digits_argv, short], cpu)
    capsys.readouterr()
    resume_auto([*digits_argv, short, "SEED=1"], cpu)
    printed = capsys.readouterr().out
    assert f"----- Resume: passed over: {first}: SEED 0, this run has 1\n" in printed
    assert "has a checkpoint of this experiment; starting a new run" in printed
    (second,) = run_folders(tmp_path / "out") - {first}
    assert read_json(first / STATUS)["state"] == "stopped"
    first.rename(first := first.with_name("train-20260101-12-00"))
    resume_auto([*digits_argv, "TRAIN.MAX_STEPS=2"], cpu)
    resume_auto([*digits_argv, "TRAIN.MAX_STEPS=3", "SEED=1"], cpu)
    assert run_folders(tmp_path / "out") == {first, second}
    assert [load_checkpoint(folder / "last.pth")["done_steps"] for folder in (first, second)] == [2, 3]


def test_evaluation_of_the_newest_run(digits_run, digits_argv, cpu, tmp_path):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    argv = ["-eval", "-resume=auto", *digits_argv]
    assert run(parse_command_line(argv), cpu) == 0
    assert run(parse_command_line(["-amp", *argv]), cpu) == 0  # the folder of the evaluation is no candidate
    assert only_run(tmp_path / "out") == folder
    results = {}
    for evaluation in run_folders(tmp_path / "out", "eval"):
        result = read_result(evaluation)
        results[result["numeric_precision"]] = result["loss"]
        assert (result["split"], result["samples"]) == ("val", 360)
        assert re.search(rf"Loss: .* s, {result['numeric_precision']}\n", (evaluation / "log.txt").read_text())
    half = results.pop("O1: bfloat16 autocast over float32 weights")
    assert results.keys() == {"float32"} and 0 < abs(half - results["float32"]) < 0.01
    with pytest.raises(UserError, match=r"no run of this experiment in .* has a checkpoint to evaluate"):
        run(parse_command_line([*argv, "MODEL.DEPTH=1"]), cpu)
