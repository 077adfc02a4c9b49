"""-model replaces the architecture of a recipe: by another recipe's, or by a timm model."""

import pytest
from conftest import ROOT

from configs.reading.command_line import parse_command_line
from utils.errors import UserError


def model_of(*argv: str):
    return parse_command_line(list(argv)).config.model


def test_a_recipe_of_this_name_gives_its_model():
    model = model_of("-model=vit_small_patch32_224")
    assert model == model_of(f"-cfg={ROOT / 'configs' / 'vit_small_patch32_224.yaml'}")
    assert (model.patch_size, model.embed_dim, model.dropout) == (32, 384, 0.1)  # DROPOUT is from its BASE file


def test_the_model_replaces_that_of_the_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("MODEL: {NAME: mine, PATCH_SIZE: 8, DEPTH: 3, NUM_CLASSES: 7, PRETRAINED: a.pth}\nSEED: 3")
    config = parse_command_line([f"-cfg={recipe}", "-model=vit_tiny_patch16_224"]).config
    model = config.model
    assert (model.name, model.patch_size, model.depth, model.embed_dim) == ("vit_tiny_patch16_224", 16, 12, 192)
    assert (model.num_classes, model.pretrained, config.seed) == (7, "a.pth", 3)
    assert model_of(f"-cfg={recipe}", "-model=vit_digits").num_classes == 7


def test_another_name_is_a_timm_model(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("MODEL: {PATCH_SIZE: 8, DEPTH: 3, DROPPATH: 0.1}")
    model = model_of(f"-cfg={recipe}", "-model=resnet18")
    assert (model.type, model.name, model.droppath, model.num_classes) == ("timm", "resnet18", 0.1, None)


def test_weights_of_timm_need_a_model_of_timm():
    recipe = f"-cfg={ROOT / 'configs' / 'finetune.yaml'}"
    with pytest.raises(UserError, match=r"MODEL.PRETRAINED timm needs MODEL.TYPE timm, not vit"):
        parse_command_line([recipe, "-model=vit_small_patch16_224"])
    assert model_of(recipe, "-model=vit_small_patch16_224", "-pretrained=a.pth").pretrained == "a.pth"
    assert model_of(recipe, "-model=resnet50").pretrained == "timm"


def test_a_path_is_no_model():
    with pytest.raises(UserError, match=r"-model \.\./x: MODEL.NAME is '\.\./x': must be a printable name without /"):
        model_of("-model=../x")
