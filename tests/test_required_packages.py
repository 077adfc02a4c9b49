"""Commands and GPU tests where only the required packages are installed."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, TINY_VIT, only_run, read_result, run_ranks
from hidden_packages import REQUIRED, closure, hide_packages, requirements
from PIL import Image

from utils.errors import UserError
from utils.packages import is_installed, missing_features, require


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """A folder with lists of 24 training and 7 validation JPEGs of noise."""
    root, rng = tmp_path_factory.mktemp("jpegs"), np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 7)):
        (root / split).mkdir()
        for number in range(count):
            pixels = rng.integers(256, size=(40, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / f"{number}.jpg")
        lines = [f"{split}/{number}.jpg {number % 3}\n" for number in range(count)]
        (root / f"{split}_list.txt").write_text("".join(lines))
    return root


def command(jpegs, output, *flags):
    sizes = ["-batch_size=4", "-num_workers=1", f"-data_path={jpegs}", f"-output={output}"]
    return ["-dataset=imagenet2012", *sizes, *flags, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=3", "TRAIN.NUM_EPOCHS=1"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_commands_need_the_required_packages_only(ranks, jpegs, tmp_path, monkeypatch):
    """Worker processes and other ranks inherit the hidden packages."""
    hidden = hide_packages(monkeypatch)
    assert hidden >= {"obstore", "braceexpand", "scikit-learn", "scipy", "tensorboard", "matplotlib", "pytest"}
    run_ranks(
        ranks,
        command(jpegs, tmp_path),
        command(jpegs, tmp_path, "-eval", "-resume=auto"),
        command(jpegs, tmp_path, "-predict", "-resume=auto"),
        command(jpegs, tmp_path, "-profile"),
        command(jpegs, tmp_path, "-dry_run"),
    )
    folder = only_run(tmp_path)
    log = (folder / "log.txt").read_text()
    assert log.count("TensorBoard") == 1 and log.count("pip install tensorboard matplotlib") == 1
    assert read_result(folder)["finished"] and (folder / "report.html").exists()
    assert not list(folder.rglob("*.png")) and not list(folder.glob("events*"))
    evaluated = only_run(tmp_path, "eval") / "evaluation"
    assert (evaluated / "per_class.csv").read_text() == (folder / "evaluation/per_class.csv").read_text()
    assert json.loads((evaluated / "summary.json").read_text())["attention"] is None
    with open(tmp_path / "predictions.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 7
    assert (only_run(tmp_path, "profile") / "profile.md").exists()
