"""Checkpoints that timm reads; files of other programs where a checkpoint or a folder is expected."""

import shutil

import pytest
import safetensors.torch
import timm
import torch
from conftest import CPU
from timm.models import load_state_dict

from configs.command_line import parse_command_line
from engine.checkpoint.files import CheckpointWriter, load_checkpoint
from engine.checkpoint.weights_record import read_record
from engine.evaluation.session import build_eval_model
from engine.plan.evaluation import options_of_weights
from utils.errors import UserError


@pytest.fixture(scope="module")
def checkpoint(trained_digits, tmp_path_factory):
    """A copy with another ending, outside the folder of its run."""
    run = trained_digits("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")
    return shutil.copy(run / "best.pth", tmp_path_factory.mktemp("copy") / "best.ckpt")


@pytest.mark.parametrize(("entry", "key", "use_ema"), [("raw", "model", False), ("average", "state_dict_ema", True)])
def test_timm_and_this_program_read_the_raw_weights_and_the_average(checkpoint, entry, key, use_ema):
    expected = load_checkpoint(checkpoint)[key]
    options = [] if use_ema else ["-opts", f"MODEL.WEIGHTS_ENTRY={entry}"]  # of a run, the average is the default
    command = parse_command_line(["-eval", f"-pretrained={checkpoint}", *options])
    model = build_eval_model(options_of_weights(command)[0], CPU).fp32
    for state in (load_state_dict(str(checkpoint), use_ema), model.state_dict()):
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert read_record(str(checkpoint)).class_names == list("0123456789")


def test_weights_in_a_checkpoint_are_contiguous(checkpoint, tmp_path):
    state = load_checkpoint(checkpoint)
    weight = torch.rand(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    writer = CheckpointWriter(tmp_path, 0, lambda *_: None)
    writer.save(state | {"model": {"conv.weight": weight}, "state_dict_ema": None}, is_best=False, periodic=None)
    writer.wait()
    saved = load_checkpoint(tmp_path / "last.pth")
    safetensors.torch.save_file(saved["model"], tmp_path / "x.safetensors")
    assert torch.equal(saved["model"]["conv.weight"], weight) and saved["state_dict_ema"] is None


def test_an_evaluation_takes_the_model_that_the_file_of_another_program_names(tmp_path):
    """As timm's train.py and DeiT write it; a given model stays."""
    model = timm.create_model("test_vit2", num_classes=3)
    torch.save({"arch": "test_vit2", "state_dict": model.state_dict()}, tmp_path / "x.pth.tar")
    words = ["-eval", f"-pretrained={tmp_path / 'x.pth.tar'}"]
    options = options_of_weights(parse_command_line(words))[0]
    built = build_eval_model(options, CPU).fp32
    assert options.model.num_classes == 3
    assert all(torch.equal(built.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(UserError, match="-model=test_vit2"):
        build_eval_model(options_of_weights(parse_command_line([*words, "-model=test_vit3"]))[0], CPU)


def test_the_normalization_follows_one_channel():
    """`timm`: ImageNet's, of the published weights; a given value stays."""
    published = timm.get_pretrained_cfg("resnet10t").mean
    for options, mean in (([], (0.5,)), (["DATA.IMAGENET_MEAN=[0.4]"], (0.4,))):
        command = ["-model=resnet10t", "-opts", "DATA.IMAGE_CHANNELS=1", *options]
        data = parse_command_line(command).config.data
        assert (data.imagenet_mean, data.imagenet_std) == (mean, (0.5,))
    family = parse_command_line(["-opts", "MODEL.TYPE=swin", "DATA.IMAGE_CHANNELS=1"]).config.data
    assert family.imagenet_mean == pytest.approx((sum(published) / 3,))
    weights = parse_command_line(["-eval", "-model=resnet10t", "-pretrained=timm", "-opts", "DATA.IMAGE_CHANNELS=1"])
    assert options_of_weights(weights)[0].data.imagenet_mean == pytest.approx((sum(published) / 3,))
