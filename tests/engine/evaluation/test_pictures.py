"""Attention rollout against the formula, gradients against finite differences; maps of all kinds of models."""

import os
import random
from pathlib import Path

import numpy as np
import torch
from conftest import each_value
from PIL import Image
from pytest import mark
from timm import create_model
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import Tensor, nn

from configs.schema import Amp, Data
from configs.yaml_io import parse_value
from datasets.decoding.decode import LazyImage
from datasets.transforms.device import Normalize
from datasets.transforms.host import eval_crop
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import (
    attention_rollout,
    explanation_file,
    heat_map,
    input_gradient,
    map_of_image,
    write_attention,
)
from engine.parallel import Strategy
from engine.precision.policy import Precision
from models.blocks import pool_tokens
from utils.files import temporary_path


def evaluator_for(context, **amp) -> Evaluator:
    precision = Precision(Amp.model_validate(amp), context.device)
    return Evaluator(Normalize(Data()), precision, Strategy(), context)


def tiny_vit(is_distilled: bool = False, pools: str = "", **options) -> nn.Module:
    torch.manual_seed(0)
    kind = VisionTransformerDistilled if is_distilled else VisionTransformer
    sizes = parse_value("{img_size: 32, patch_size: 8, embed_dim: 24, depth: 3, num_heads: 2, num_classes: 5}")
    model = kind(**sizes | options).eval()
    if pools:
        pool_tokens(model, pools, 5)
    return model


def layers_by_hand(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention matrices (B, H, T, T) of each block, computed from its query and key weights."""
    tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    layers = []
    for block in model.blocks:
        attention = block.attn
        normed = block.norm1(tokens)
        qkv = attention.qkv(normed).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        layers.append((qkv[0] * attention.scale @ qkv[1].mT).softmax(-1))
        tokens = block(tokens)
    return layers


# Options; the first token of the output and the one after the last; the tokens before the patches
KINDS = """
options | first | end | prefix
{} | 0 | 1 | 1
{global_pool: avg, class_token: false} | 0 | 16 | 0
{reg_tokens: 2} | 0 | 1 | 3
{is_distilled: true} | 0 | 2 | 2
{pools: avg} | 1 | 17 | 1  # with a class token
"""


@each_value(KINDS)
def test_rollout_is_the_product_over_the_layers(options, first, end, prefix, cpu):
    model = tiny_vit(**options)
    images = torch.randn(2, 3, 32, 32)
    for block in model.blocks:
        block.attn.fused_attn = True
    with torch.no_grad():
        product = torch.eye(16 + prefix)
        for layer in layers_by_hand(model, images):
            product = (layer.mean(1) + torch.eye(16 + prefix)) / 2 @ product
    seen = product[:, first:end, prefix:].mean(1)
    low = seen.min(1, keepdim=True).values
    high = seen.max(1, keepdim=True).values
    expected = ((seen - low) / (high - low)).view(2, 4, 4)
    assert torch.allclose(attention_rollout(model, images, evaluator_for(cpu)), expected, atol=1e-4)
    assert not any(module._forward_hooks for module in model.modules())
    assert all(block.attn.fused_attn for block in model.blocks)


def test_a_map_is_laid_over_the_picture(tmp_path, cpu):
    """Over a black image, of which 40% is visible, the highest attention is light yellow, and the lowest black."""
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert write_attention(tmp_path, {7: images[0]}, tiny_vit(), evaluator_for(cpu)) is None
    with Image.open(tmp_path / "7-attention.jpg") as picture:
        pixels = np.asarray(picture).astype(int).reshape(-1, 3)
    assert pixels.shape == (160 * 160, 3)
    assert abs(pixels[pixels.sum(1).argmax()] - [151, 153, 98]).max() < 15
    assert pixels.sum(1).min() < 20


@mark.parametrize(
    "options",
    [
        None, {"block_fn": ParallelThingsBlock}, {"global_pool": "map"}, {"pools": "token_avg"}
    ]
)  # fmt: skip
def test_models_whose_output_is_no_rollout_say_so(options, cpu, monkeypatch):
    """No identity of all patches is made for them: at 512 pixels it would take gigabytes."""
    model = create_model("resnet18") if options is None else tiny_vit(**options)
    monkeypatch.setattr(torch, "eye", None)
    found = attention_rollout(model.eval(), torch.randn(1, 3, 32, 32), evaluator_for(cpu))
    assert f"attention maps need a ViT{' with one attention per block' if options else ': '}" in found


def test_the_gradient_is_that_of_finite_differences(cpu):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 4))
    images = torch.randn(1, 3, 8, 8)
    with torch.inference_mode():  # as in an evaluation
        found = input_gradient(model, images, evaluator_for(cpu))[0]
    exact = images.double()
    step = 1e-5 * torch.eye(192, dtype=torch.double).view(-1, 3, 8, 8)
    model = model.double()
    best = model(exact).argmax()
    slopes = (model(exact + step)[:, best] - model(exact - step)[:, best]) / 2e-5
    expected = (slopes.view(3, 8, 8) * exact[0]).sum(0).abs()
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert images.grad is None


OF_TIMM = """
name | options | cells
swinv2_tiny_window8_256 | {img_size: 64, window_size: 2, embed_dim: 24, depths: [1, 1, 1, 1]} | 14
deit_tiny_distilled_patch16_224 | {img_size: 32, depth: 2} | 2
"""


@each_value(OF_TIMM)
def test_every_kind_of_model_has_maps(name, options, cells, cpu):
    model = create_model(name, num_classes=5, **options).eval()
    nn.init.normal_(next(model.head.parameters()))
    images = torch.randn(2, 3, options["img_size"], options["img_size"])
    with torch.inference_mode():
        maps = heat_map(model, images, evaluator_for(cpu, ENABLED=True))
    assert maps.shape == (2, cells, cells)
    assert maps.isfinite().all()
    assert maps.amax((1, 2)).tolist() == [1, 1]
    assert maps.amin((1, 2)).tolist() == [0, 0]


def test_the_names_of_files_are_safe_and_unique(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 64)
    hostile = ["a/é.png", "b/é.jpg", "../../x.png", "=cmd|'/C'!A.png", "y" * 300, "\n", "", "con\0.png", "tar:1/..png"]
    hostile += ["a/Hu\u0308te.png", "\U00020000" * 80, "\udcff.png"]
    files = [explanation_file(index, name) for index, name in enumerate(hostile)]
    assert len({file.partition("-")[0] for file in files}) == len(files)
    for file in files:
        folder, _, name = file.partition("/")
        assert folder == "explanations"
        assert len(os.fsencode(temporary_path(Path(name)).name)) <= 255
        assert name.removesuffix(".png").replace("-", "").replace("_", "").isalnum()
    assert files[9] == "explanations/000009-Hüte.png"


CROPS = """
resize | crop_pct
crop | 0.8
crop | 1.25
squash | 1
pad | 1
"""


@each_value(CROPS)
def test_the_crop_of_a_whole_map_is_the_map_of_the_crop(resize, crop_pct):
    """Outside of the crop it is 0, so that the spots are where the model has found them."""
    data = Data.model_validate({"IMAGE_SIZE": [32, 32], "RESIZE": resize, "CROP_PCT": crop_pct})
    data = data.model_copy(update={"interpolation": "bilinear", "imagenet_mean": (0.0,)})
    heat = torch.zeros(4, 4)
    heat[1, 2] = heat[2, 1] = heat[2, 2] = 1
    for height, width in ((90, 200), (200, 90), (100, 100)):
        whole = map_of_image(heat, data, height, width)
        assert whole.shape == (height, width)
        image = LazyImage((255 * whole)[None].byte())
        shown = eval_crop(data, image, random.Random())[0].float() / 255
        levels = Image.fromarray(heat.numpy()).resize((32, 32), Image.Resampling.BILINEAR)
        is_inside = shown > 0  # of a border there is no map
        expected = torch.from_numpy(np.array(levels))
        assert (shown - expected)[is_inside].abs().max() < 0.12
        assert is_inside[8:24, 8:24].sum() >= 0.8 * (expected > 0)[8:24, 8:24].sum()
        if crop_pct == 0.8:
            assert whole[:, 0].max() == whole[0].max() == 0
