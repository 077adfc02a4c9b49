"""Resuming a checkpoint of an earlier version (format 4).

The fixture was trained for 3 steps. `after_25_steps.safetensors` has the weights of the earlier version after 25 steps.
"""

import shutil

import pytest
import torch
from conftest import GREY, TINY_VIT, train
from safetensors.torch import load_file

from configs.command_line import parse_command_line
from engine.checkpoint.reader import FORMAT, load_checkpoint

OPTIONS = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=1e-3", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"]
OPTIONS += ["TRAIN.GRAD_CLIP=1.0", "TRAIN.MAX_STEPS=25"]


@pytest.fixture
def stopped(tmp_path, request):
    fixture = request.config.rootpath / "tests" / "fixtures" / "checkpoint_format_4"
    return shutil.copytree(fixture, tmp_path / "train-20260101-12-00")


def test_resumed_run_ends_with_the_weights_of_the_earlier_version(stopped, cpu):
    """The earlier version measured attention speeds, chose fused attention, and saved this choice in the checkpoint.

    The gradient of a key bias is zero; AdamW amplifies its rounding errors, so those biases are not compared.
    """
    argv = ["-dataset=digits", "-batch_size=64", f"-resume={stopped}", "-opts", *OPTIONS, "MODEL.ATTENTION=fused"]
    train(argv, cpu)
    state = load_checkpoint(stopped / "last.pth")
    assert state["format"] == FORMAT
    for name, expected in load_file(stopped / "after_25_steps.safetensors").items():
        part, _, key = name.partition(".")
        difference = (state[part][key] - expected).abs()
        if key.endswith("qkv.bias"):
            query, _, value = difference.chunk(3)
            difference = torch.cat([query, value])
        assert difference.max() < 1e-5, name
    assert "MODEL.ATTENTION" not in (stopped / "log.txt").read_text().partition("options that differ")[2]
    assert len((stopped / "metrics.csv").read_text().splitlines()) == 2


def test_changed_attention_is_reported(stopped, cpu):
    argv = ["-dataset=digits", "-batch_size=64", f"-resume={stopped}", "-opts", *OPTIONS, "TRAIN.MAX_STEPS=4"]
    train(argv, cpu)
    assert "MODEL.ATTENTION: fused, now auto" in (stopped / "log.txt").read_text()


def test_config_file_of_the_earlier_version_is_valid(stopped):
    config = parse_command_line([f"-cfg={stopped / 'config.yaml'}"]).config
    assert config.train.model_ema_decay == 0.9
