"""The size of the checkpoints of a run, before there is one."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import train
from torch import nn

from configs.schema import Config
from engine.training.snapshot import disk_note


@pytest.mark.parametrize(
    "options",
    [
        ["TRAIN.MODEL_EMA=true"],
        ["TRAIN.MODEL_EMA=false", "TRAIN.OPTIMIZER.NAME=SGD", "MODEL.FREEZE_BACKBONE=true"],
        ["-amp", "-opts", "AMP.LEVEL=O3", "AMP.DTYPE=bfloat16"],
    ],
)
def test_the_size_of_a_checkpoint_is_known_before_training(digits_argv, cpu, options):
    flags = options[:1] if options[0].startswith("-") else []
    folder = train([*flags, *digits_argv, *options[2 * len(flags) :], "MODEL.EMBED_DIM=192", "TRAIN.MAX_STEPS=1"], cpu)
    train([*flags, f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=2"], cpu)
    sizes = re.findall(r"----- Checkpoints: ([\d.]+) MB", (folder / "log.txt").read_text())
    real = (folder / "last.pth").stat().st_size / 1e6
    assert [float(size) for size in sizes] == [pytest.approx(real, rel=0.05)] * 2


def test_a_disk_without_room_for_two_checkpoints(monkeypatch):
    weights = SimpleNamespace(saved=nn.Linear(1000, 250, bias=False))  # 1 MB, and twice as much of AdamW's moments
    state = SimpleNamespace(precision=SimpleNamespace(weights=weights), average=None, config=Config())
    for free, warns in ((6 * 10**6, False), (6 * 10**6 - 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        note = disk_note(state, Path("run"))
        assert "Checkpoints: 3.0 MB" in note and note.startswith("Warning: ") == warns
