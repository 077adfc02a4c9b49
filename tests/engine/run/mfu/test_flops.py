"""FLOPs of a model equal closed-form expressions."""

import pytest
import timm
import torch

from configs.reading.command_line import parse_command_line
from engine.run.flops import forward_flops, training_flops
from models.build import build_model

CPU = torch.device("cpu")


def config(*argv: str):
    return parse_command_line(list(argv)).config


def vit_forward_flops(
    embed_dim: int, depth: int, image_size: int, patch_size: int, channels: int, classes: int
) -> tuple[int, int]:
    """FLOPs of the whole model, and of its patch embedding; a multiply-add counts as two."""
    patches = (image_size // patch_size) ** 2
    tokens = patches + 1
    embedding = 2 * patches * channels * patch_size**2 * embed_dim
    # Linear layers of attention and MLP; then q k^T and its product with v.
    block = 2 * tokens * 12 * embed_dim**2 + 2 * 2 * tokens**2 * embed_dim
    return embedding + depth * block + 2 * embed_dim * classes, embedding


@pytest.mark.parametrize(
    ("recipe", "sizes"),
    [("vit_base_patch16_224", (768, 12, 224, 16, 3, 1000)), ("vit_tiny_patch16_224", (192, 12, 224, 16, 3, 1000))],
)
def test_flops_of_a_vit_equal_the_closed_form(recipe, sizes):
    options = config(f"-cfg=configs/{recipe}.yaml")
    model, _ = build_model(options.model, options.data, torch.device("meta"))
    forward, embedding = vit_forward_flops(*sizes)
    assert forward_flops(model, options.data) == forward
    assert training_flops(model, options.data) == 3 * forward - embedding  # images have no gradient
    assert model.patch_embed.proj.weight.grad is None
    for block in model.blocks:
        block.attn.fused_attn = not block.attn.fused_attn
    assert training_flops(model, options.data) == 3 * forward - embedding


def test_frozen_backbone_counts_its_forward_pass_only():
    options = config("-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.FREEZE_BACKBONE=true")
    model, _ = build_model(options.model, options.data, CPU)
    forward, _ = vit_forward_flops(192, 12, 224, 16, 3, 1000)
    assert training_flops(model, options.data) == forward + 2 * 192 * 1000


def test_grouped_convolutions_are_counted_per_group():
    """The backward pass costs twice the forward pass; the stem computes no gradient of the images."""
    options = config("-opts", "MODEL.TYPE=timm", "MODEL.NAME=efficientnet_b0", "DATA.IMAGE_SIZE=64")
    model = timm.create_model("efficientnet_b0")
    stem = 2 * 32**2 * 3 * 3**2 * 32
    assert training_flops(model, options.data) == 3 * forward_flops(model, options.data) - stem


@pytest.mark.parametrize("family", ["PiT", "CaiT"])
def test_a_view_of_the_class_token_that_is_passed_to_a_module_is_counted(family):
    options = config(f"-cfg=tests/fixtures/families/{family}/model.yaml")
    model, _ = build_model(options.model, options.data, CPU)
    assert 2.7 * forward_flops(model, options.data) < training_flops(model, options.data)
