"""Recipes and options -> models: sizes, initialization, frozen backbones, timm's families; the features of a model."""

import copy

import numpy as np
import torch
from conftest import ROOT, cells_of, cli, config_for, each_row, model_for, refused, seeded
from pytest import mark
from test_families import NoInitialization, error_of
from timm.models import VisionTransformer
from torch.testing import assert_close

from configs.schema import Config
from models.blocks import FeatureModel
from models.vit import build_vit
from models.weights.fit import load_pretrained

CPU = torch.device("cpu")
# Recipes and their millions of parameters: PaddleViT's recipes, then published sizes
SIZES = """
vit_tiny_patch16_224 | 5.717
vit_tiny_patch16_384 | 5.790
vit_small_patch32_224 | 22.879
vit_small_patch32_384 | 22.915
vit_small_patch16_224 | 22.051
vit_small_patch16_384 | 22.197
vit_base_patch32_224 | 88.224
vit_base_patch32_384 | 88.297
vit_base_patch16_224 | 86.568
vit_base_patch16_384 | 86.859
vit_large_patch32_224 | 306.535
vit_large_patch32_384 | 306.633
vit_large_patch16_224 | 304.327
vit_large_patch16_384 | 304.716
vit_huge_patch14_224 | 632.046
deit_tiny_patch16_224 | 5.717
deit_tiny_distilled_patch16_224 | 5.911
deit_small_patch16_224 | 22.051
deit_small_distilled_patch16_224 | 22.436
deit_base_patch16_224 | 86.568
deit_base_distilled_patch16_224 | 87.338
deit3_small_patch16_224 | 22.059
deit3_base_patch16_224 | 86.585
vit_lite_cifar10 | 3.722
swin_tiny_patch4_window7_224 | 28.288
convnext_tiny_224 | 28.589
pvtv2_b0 | 3.667
"""
MILLIONS = {recipe: float(millions) for recipe, millions in cells_of(SIZES)}


@mark.parametrize("recipe", sorted(MILLIONS.keys() | {path.stem for path in (ROOT / "configs").glob("*.yaml")}))
def test_every_recipe_builds(recipe, monkeypatch):
    for module in ("build", "timm_model"):
        monkeypatch.setattr(f"models.{module}.check_image_size", lambda *_: None)  # the pass below
    config = config_for(f"-cfg={ROOT}/configs/{recipe}.yaml").with_model(pretrained=None)
    if recipe in MILLIONS:
        config = config.with_model(num_classes=10 if "cifar10" in recipe else 1000)
    with torch.device("meta"), NoInitialization():
        model, _ = model_for(config, "meta")
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert recipe not in MILLIONS or round(millions, 3) == MILLIONS[recipe]
    if isinstance(model, VisionTransformer):
        model.blocks = model.blocks[:1]  # the others have its shapes
    shape = (1, config.data.image_channels, config.data.image_size, config.data.image_size)
    assert model(torch.empty(shape, device="meta")).shape == (1, config.model.num_logits)


def vit_config(*options: str) -> Config:
    tiny = cli("MODEL.EMBED_DIM=24 MODEL.DEPTH=2 MODEL.NUM_HEADS=3 MODEL.NUM_CLASSES=5")
    return config_for("-image_size=32", "-opts", *tiny, *options)


def tiny_vit(*options: str) -> VisionTransformer:
    config = vit_config(*options)
    return build_vit(config.model, config.data)


def test_forward_pass_equals_timms():
    model = tiny_vit("MODEL.DROPOUT=0.5", "MODEL.ATTENTION_DROPOUT=0.5", "MODEL.DROPPATH=0.5").eval()
    sizes = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
    plain = VisionTransformer(num_classes=5, **sizes).eval()
    model.head.reset_parameters()
    plain.load_state_dict(model.state_dict())
    images = torch.randn(4, 3, 32, 32)  # of which a training would keep two
    assert plain(images).any()
    assert torch.equal(model(images), plain(images))


def test_dropout_rates_are_at_paddlevits_places():
    model = tiny_vit("MODEL.DROPOUT=0.25", "MODEL.ATTENTION_DROPOUT=0.5", "MODEL.DROPPATH=0.125")
    block = model.blocks[1]
    assert (model.pos_drop.p, block.attn.proj_drop.p, block.mlp.drop1.p, block.mlp.drop2.p) == (0.25,) * 4
    assert block.attn.attn_drop.p == 0.5
    assert block.drop_path1.drop_prob == 0.125
    assert model.head_drop.p == 0.0


FIXED = """
kind | intervals | order
sincos2d | 6 | sin y, sin x, cos y, cos x
sincos2d_bigvision | 5 | sin x, cos x, sin y, cos y
"""


@each_row(FIXED)
@mark.parametrize("pool", ["avg", "token"])
def test_fixed_position_embedding(pool, kind, intervals, order):
    """sin and cos of both coordinates at wavelengths from 2 pi to 20,000 pi; the class token has zeros."""
    model = tiny_vit(f"MODEL.POS_EMBED={kind}", f"MODEL.GLOBAL_POOL={pool}")
    embedding = model.pos_embed[0, model.num_prefix_tokens :].view(2, 2, 24)
    assert not model.pos_embed.requires_grad
    assert model.num_prefix_tokens == (pool == "token")
    assert not model.pos_embed[0, : model.num_prefix_tokens].any()
    wavelengths = 1e4 ** (torch.arange(6) / int(intervals))
    for y, x in np.ndindex(2, 2):
        angles = {"y": y / wavelengths, "x": x / wavelengths}
        waves = [getattr(torch, wave)(angles[axis]) for wave, axis in map(str.split, order.split(", "))]
        assert torch.allclose(embedding[y, x], torch.cat(waves), atol=1e-6)


KINDS = ("learned", "sincos2d", "sincos2d_bigvision")


@mark.parametrize("size", [(32, 32), (48, 48), (16, 64)])
@mark.parametrize("theirs", KINDS)
def test_positions_that_differ_from_the_formula_are_refused(theirs, size, saved):
    """Of the formula, another grid has the positions of its own. size: of the weights; here 32."""
    source = tiny_vit(f"MODEL.POS_EMBED={theirs}", f"DATA.IMAGE_SIZE={list(size)}")
    weights = saved(source.state_dict())
    for kind in KINDS[1:]:
        config = vit_config(f"MODEL.POS_EMBED={kind}", f"MODEL.PRETRAINED={weights}")
        model = build_vit(config.model, config.data)
        expected = model.pos_embed.clone()
        if kind == theirs:
            load_pretrained(model, weights, config.model, image_size=size)
            assert torch.equal(model.pos_embed, expected)
            assert torch.equal(model.cls_token, source.cls_token)
            continue
        with refused(r"of the formula MODEL\.POS_EMBED; give -opts MODEL\.POS_EMBED=learned$"):
            load_pretrained(model, weights, config.model, image_size=size)
    wider = vit_config("MODEL.POS_EMBED=sincos2d", "MODEL.EMBED_DIM=48")
    with refused("wrong shapes"):
        load_pretrained(build_vit(wider.model, wider.data), weights, wider.model, image_size=size)


@mark.parametrize("weights", ["vit", "checkpoint.pdparams"])
def test_paddlevits_recipe_and_weights_give_its_logits(weights):
    """With and without the file extension. PaddlePaddle 3.3.1 computed the reference logits."""
    fixtures = ROOT / "tests" / "fixtures" / "paddlevit_small"
    assert error_of(fixtures / "vit.yaml", fixtures / weights) < 1e-5


IMAGES = torch.randn(2, 3, 32, 32, generator=seeded(0))


@mark.parametrize("features, width", [("token", 24), ("avg", 24), ("token_avg", 48)])
def test_tokens_of_a_vit(features, width):
    config = vit_config(f"MODEL.FEATURES={features}")
    model = model_for(config)[0].eval()
    with torch.inference_mode():
        tokens = model.forward_features(IMAGES)
        parts = {"token": tokens[:, 0], "avg": tokens[:, 1:].mean(1)}
        found = FeatureModel(copy.deepcopy(model), "vit")(IMAGES)
        assert found.shape == (2, width)
        assert model(IMAGES).shape == (2, 5)
        assert torch.equal(found, torch.cat([parts[name] for name in features.split("_")], dim=1))
        copied = copy.deepcopy(model)
        copied.head.weight.data.fill_(1.0)  # the copy uses its own head
        assert_close(copied(IMAGES), found.sum(1, keepdim=True) + copied.head.bias)
