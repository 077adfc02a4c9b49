"""status.json and result.json: constant keys, as docs/operation.md describes them, and paths for any folder."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, TINY_VIT, only_run, read_result, train
from PIL import Image

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from engine.run.result import Result
from utils.files import read_json
from utils.metric_table import METRICS
from utils.status import KEYS, STATUS

TINY = [*TINY_VIT, "MODEL.NUM_CLASSES=null", "TRAIN.WARMUP_EPOCHS=0", "TRAIN.NUM_EPOCHS=2"]


def documented(title: str) -> list[str]:
    """The keys in the table of a section."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", (ROOT / "docs/operation.md").read_text(), re.M | re.S)
    return [key for cell in re.findall(r"^\| (`.*?`) \|", section, re.M) for key in re.findall(r"`(\w+)`", cell)]


def test_every_key_is_documented():
    assert sorted(documented("status.json")) == sorted(KEYS)
    assert sorted(documented("result.json")) == sorted(Result().entries)


def test_numbers_that_json_lacks_are_null():
    entries = Result({"loss": float("nan"), "top1": 1.0}, ece=float("inf")).entries
    assert (entries["loss"], entries["top1"], entries["top5"], entries["ece"]) == (None, 1.0, None, None)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The current folder, with a data set, and another one."""
    for name in ("here/data/train", "here/data/val", "here/data/test", "elsewhere"):
        for label in ("blue", "red") if "data" in name else ("",):
            (tmp_path / name / label).mkdir(parents=True)
            for number in range(8 * bool(label)):
                Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / name / label / f"{number}.png")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_run_is_resumed_and_evaluated_from_another_folder(folders, cpu, monkeypatch):
    flags = ["-dataset=folder", "-data_path=data", "-batch_size=8", "-num_workers=0", "-output=out"]
    folder = train([*flags, "-opts", *TINY, "TRAIN.MAX_STEPS=1"], cpu).absolute()
    stopped, result = read_json(folder / STATUS), read_result(folder)
    assert list(stopped) == list(KEYS) and list(result) == list(Result().entries)
    assert (stopped["state"], stopped["exit_status"], stopped["step"]) == ("stopped", 0, 1)
    assert result["checkpoint"] == stopped["checkpoint"] == str(folder / "last.pth")

    monkeypatch.chdir(folders / "elsewhere")
    python, script, *resume = shlex.split(stopped["resume"])
    assert Path(python).is_file() and script == str(ROOT / "main_single_gpu.py")
    assert train(resume, cpu) == folder
    finished, result = read_json(folder / STATUS), read_result(folder)
    assert finished["state"] == "finished" and finished["resume"] is None
    assert (result["split"], result["samples"], result["finished"]) == ("val", 16, True)
    assert [*result["test"]] == [*METRICS, "samples", "error"] and result["test"]["samples"] == 16

    train([f"-resume={finished['checkpoint']}"], cpu)  # nothing is left to train
    again, position = read_json(folder / STATUS), ("checkpoint", "epoch", "step", "state", "exit_status")
    assert [again[key] for key in position] == [finished[key] for key in position]
    measured = dict.fromkeys(("peak_memory_bytes", "total_seconds"))
    assert read_result(folder) | measured == result | measured

    run(parse_command_line(["-eval", f"-pretrained={result['checkpoint']}", "-output=eval"]), cpu)
    evaluated = read_result(only_run(Path("eval"), "eval"))
    assert list(evaluated) == list(Result().entries)
    same = ("top1", "loss", "samples", "split", "checkpoint")
    assert [evaluated[key] for key in same] == [result[key] for key in same]
