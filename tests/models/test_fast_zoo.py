"""Fast paths over the models of timm, PaddleViT and transformers: an evaluation has the logits of the plain model."""

from collections import Counter
from collections.abc import Iterator

import timm
import torch
from conftest import config_for, each_value, model_for
from pytest import mark
from test_families import FOLDERS
from test_fast import tried
from test_timm_modules import NAMES
from test_transformers_model import FAMILIES
from timm import create_model
from torch import nn
from transformers_models import transformers_model

from models.fast import ATTENTION, CHANNELS_LAST, NORMS
from models.kernels import EXPLICIT, use_attention

# Models of more than 30 million parameters, and two that need 240 to 256 pixels
LEFT_OUT = """
beit_base_patch16_224 crossvit_tiny_240 deepseek_vit_412m gemma4_vit_167m halonet_h1 inception_resnet_v2 inception_v4
mobilenetv5_base naflexvit_base_patch16_parfac_gap nasnetalarge nextvit_small pnasnet5large qwen3_vit_88m
samvit_base_patch16_224 vgg11
"""
SIZES = {"efficientformer_l1": 224, "inception_v3": 128}  # pixels on a side of models that do not run on 64
Named = tuple[str, nn.Module, int]  # with the pixels on a side


def of_timm() -> Iterator[Named]:
    for name in NAMES.split():
        if name in LEFT_OUT.split() or not timm.is_model(name):
            continue
        size = SIZES.get(name, 64)
        try:
            model = create_model(name, num_classes=10, img_size=size)
        except TypeError:  # a model of any size
            model = create_model(name, num_classes=10)
        yield name, model, size


def of_paddlevit() -> Iterator[Named]:
    for folder in FOLDERS:
        config = config_for(f"-cfg={folder / 'model.yaml'}")
        yield folder.name, model_for(config)[0], config.data.image_size


def of_transformers() -> Iterator[Named]:
    for kind, (_, values, *_) in FAMILIES.items():
        yield kind, transformers_model(kind, values), 32


@torch.no_grad()
def trained(model: nn.Module, size: int) -> nn.Module:
    """The model in evaluation mode, with explicit attention, and values as a training might leave them.

    None is 0 or 1, as many are in a new model. Batch norms have statistics near those of noise, but a little wider:
    else a deep model multiplies the rounding of its first layers.
    """
    for name, values in model.named_parameters():
        if values.ndim > 1 and values[0].numel() > 1:
            values.normal_(std=values[0].numel() ** -0.5)
        elif name.endswith("bias"):
            values.uniform_(-0.5, 0.5)
        else:
            values.uniform_(0.5, 1.5)
    norms = [one for one in model.eval().modules() if isinstance(one, nn.BatchNorm2d)]
    for norm in norms:
        norm.train().momentum = 1.0
    model(torch.randn(8, 3, 1, 1) + torch.randn(8, 3, size, size))  # colors that differ, as those of photographs
    for norm in norms:
        deviation = norm.running_var.sqrt()
        norm.running_mean += deviation * torch.empty_like(deviation).uniform_(-0.5, 0.5)
        norm.running_var *= torch.empty_like(deviation).uniform_(0.75, 1.75)
    use_attention(model, EXPLICIT)
    return model.eval()


KEPT = """
models | attention | channels_last | norms
of_timm | 7 | 60 | 40
of_paddlevit | 5 | 15 | 7
of_transformers | 0 | 3 | 1
"""


@mark.slow
@each_value(KEPT)
def test_an_evaluation_has_the_logits_of_the_plain_model(models, attention, channels_last, norms):
    """attention, channels_last, norms: the least numbers of models that keep a path whole."""
    wrong = {}
    kept = Counter()
    torch.manual_seed(0)
    for name, model, size in globals()[models]():
        try:
            text = tried(trained(model, size), size=size)
        except Exception as error:
            text = f"no fast paths ({error!r})"
        if text.startswith("no fast paths"):
            wrong[name] = text
        kept.update(text.split(", "))
    assert not wrong
    assert kept[ATTENTION] >= attention
    assert kept[CHANNELS_LAST] >= channels_last
    assert kept[NORMS] >= norms
