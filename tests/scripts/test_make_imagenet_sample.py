"""The generated sample data set."""

import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

from configs.schema import Data
from datasets.sources.lists import Lists

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_imagenet_sample.py"


def test_make_imagenet_sample(tmp_path, monkeypatch, capsys):
    output = tmp_path / "deep" / "sample"
    arguments = ["-output", str(output), "-classes", "3", "-train", "7", "-val", "4", "-size", "100x75"]
    monkeypatch.setattr(sys, "argv", ["make_imagenet_sample.py", *arguments])
    runpy.run_path(SCRIPT, run_name="__main__")
    train, val = (Lists(Data.model_validate({"DATA_PATH": str(output)})).read(split) for split in ("train", "val"))
    assert train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert val.targets.tolist() == [0, 1, 2, 0]
    assert all(samples.open(index, 3).pixels.shape == (3, 75, 100) for samples in (train, val) for index in range(4))
    with Image.open(output / val.listing.paths[0]) as image:
        assert image.format == "JPEG"
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(SCRIPT, run_name="__main__")
    assert "exists: remove it" in capsys.readouterr().err
