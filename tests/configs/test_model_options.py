"""-model replaces the architecture of a recipe: by another recipe's, or by a timm model."""

import json

import pytest
from conftest import ROOT

from configs.reading.command_line import parse_command_line, to_yaml
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
    model = model_of(f"-cfg={recipe}", "-model=resnet18")  # a name that is no recipe
    assert (model.type, model.name, model.num_classes) == ("timm", "resnet18", 7)


def test_weights_of_timm_need_a_model_of_timm():
    recipe = f"-cfg={ROOT / 'configs' / 'finetune.yaml'}"
    with pytest.raises(UserError, match=r"MODEL.PRETRAINED timm needs MODEL.TYPE timm, not vit"):
        parse_command_line([recipe, "-model=vit_small_patch16_224"])
    assert model_of(recipe, "-model=vit_small_patch16_224", "-pretrained=a.pth").pretrained == "a.pth"
    assert model_of(recipe, "-model=resnet50").pretrained == "timm"


def test_a_folder_of_timms_gives_the_architecture(tmp_path):
    """Its config.json is read once: the options of the run describe the model without it."""
    folder, cfg = tmp_path / "hf", {"input_size": [3, 64, 64], "global_pool": "avg"}
    folder.mkdir()
    arguments = {"img_size": [64, 64], "num_classes": 9, "reg_tokens": 4, "depth": 2}
    content = {"architecture": "test_vit", "model_args": arguments, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(content))
    argv = [f"-model=local-dir:{folder}", "-opts", "MODEL.KWARGS={depth: 3, qk_norm: true}"]
    command = parse_command_line([*argv, "MODEL.PRETRAINED=timm"])
    model = command.config.model
    assert (model.type, model.name, command.run_name, model.pretrained) == ("timm", "test_vit", "test_vit", str(folder))
    assert model.kwargs == {"global_pool": "avg", "reg_tokens": 4, "depth": 3, "qk_norm": True}
    assert model.num_classes is None and model_of(*argv).pretrained is None
    recipe = tmp_path / "config.yaml"
    recipe.write_text(to_yaml(command.config))
    (folder / "config.json").unlink()
    assert parse_command_line([f"-cfg={recipe}"]).config == command.config
    assert model_of(f"-cfg={recipe}", "-model=resnet18").kwargs is None


@pytest.mark.parametrize("content", [None, "{", '{"architectures": ["X"]}', '{"architecture": "x", "model_args": 1}'])
def test_a_folder_without_a_model_of_timms_is_refused(tmp_path, content):
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=rf"^{tmp_path}/config\.json: [^\n]*$"):
        model_of(f"-model=local-dir:{tmp_path}")
