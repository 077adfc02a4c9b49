"""The plan of a training with the defaults of timm's train.py."""

import timm
from conftest import ROOT
from pytest import fail, mark
from timm.data import resolve_data_config

from configs.command_line import parse_command_line
from engine.plan.training import plan_training
from engine.run.log import RunLogger

MODELS = """vit_base_patch16_384 vit_base_patch16_224 vit_tiny_patch16_224 deit3_small_patch16_224
    swin_tiny_patch4_window7_224 resnet50 resnet10t resnet18 convnext_tiny efficientnet_b0 efficientnet_b2
    mobilenetv3_large_100 regnety_032
    test_vit mixer_b16_224 cait_xxs24_224 beit_base_patch16_224 poolformer_s12 densenet121 eva02_tiny_patch14_224"""
RECIPE = f"-cfg={ROOT}/configs/programs/timm.yaml"


def data_of(context, *words: str):
    command = parse_command_line([RECIPE, "-dataset=digits", *words])
    return plan_training(command, context, RunLogger(context), lambda *_: fail("a search")).config.data


@mark.parametrize("name", MODELS.split())
def test_the_preprocessing_is_the_published_one_also_from_scratch(name, cpu):
    data = data_of(cpu, f"-model={name}")
    timms = resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    assert data.input_size == timms["input_size"][1:]
    assert (data.crop_pct, data.interpolation) == (timms["crop_pct"], timms["interpolation"])
    assert (data.imagenet_mean, data.imagenet_std) == (timms["mean"], timms["std"])


def test_given_options_win(cpu):
    data = data_of(cpu, "-model=vit_base_patch16_384", "-image_size=192", "-opts", "DATA.CROP_PCT=0.8")
    assert (data.image_size, data.crop_pct, data.imagenet_mean) == (192, 0.8, (0.5, 0.5, 0.5))
