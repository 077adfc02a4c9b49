"""The rules of layers: -model, AMP.PRESET, and keys of PaddleViT's earlier files."""

import json

import pytest
from conftest import ROOT

from configs.command_line import parse_command_line, to_yaml
from configs.schema import Amp
from configs.schema.compute import PRESETS
from utils.errors import Findings, UserError


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


# ENABLED, LEVEL, INIT_LOSS_SCALING, INCR_EVERY_N_STEPS, INCR_RATIO, DECR_EVERY_N_NAN_OR_INF, DECR_RATIO
PUBLISHED = {
    "fp32": (False, "O1", 65536, 2000, 2.0, 1, 0.5),
    "torch": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
    "naive": (True, "O2", 65536, 1000, 2.0, 2, 0.5),
    "apex_o1": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
    "apex_o2": (True, "O2", 65536, 2000, 2.0, 1, 0.5),
    "fleet": (True, "O1", 32768, 1000, 2.0, 2, 0.5),
    "paddle": (True, "O1", 1024, 2000, 2.0, 1, 0.5),
    "bf16_stream": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
}


def values(amp: Amp) -> tuple:
    return (
        amp.enabled, amp.level, amp.init_loss_scaling, amp.incr_every_n_steps, amp.incr_ratio,
        amp.decr_every_n_nan_or_inf, amp.decr_ratio,
    )  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_its_published_values(preset):
    command = parse_command_line(["-opts", f"AMP.PRESET={preset}"])
    assert values(command.config.amp) == PUBLISHED[preset]
    (note,) = (note for note in command.notes if "PRESET" in note)
    assert note.startswith(f"AMP.PRESET {preset}: ")


def test_keys_of_the_same_file_win_over_a_preset_and_a_preset_over_lower_layers(tmp_path):
    (tmp_path / "a.yaml").write_text("AMP: {INCR_RATIO: 4.0, PRESET: fleet}")
    amp = parse_command_line([f"-cfg={tmp_path / 'a.yaml'}"]).config.amp
    assert (amp.init_loss_scaling, amp.incr_ratio) == (32768, 4.0)
    (tmp_path / "a.yaml").write_text("AMP: {ENABLED: true, INIT_LOSS_SCALING: 8.0, MIN_LOSS_SCALING: 2.0}")
    recipe = f"-cfg={tmp_path / 'a.yaml'}"
    amp = parse_command_line([recipe, "-opts", "AMP.PRESET=fleet"]).config.amp
    assert (amp.init_loss_scaling, amp.min_loss_scaling) == (32768, 2.0)
    assert not parse_command_line([recipe, "-amp", "-opts", "AMP.PRESET=fp32"]).config.amp.enabled
    (tmp_path / "b.yaml").write_text("AMP: {PRESET: fp32}")
    assert parse_command_line([f"-cfg={tmp_path / 'b.yaml'}", "-amp"]).config.amp.enabled


def test_the_options_of_a_run_keep_their_values(tmp_path):
    config = parse_command_line(["-opts", "AMP.PRESET=naive", "AMP.INIT_LOSS_SCALING=16"]).config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    command = parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"])
    assert command.config.amp == config.amp and not any("PRESET" in note for note in command.notes)


def test_a_half_precision_stream_is_refused_in_float16():
    amp = parse_command_line(["-opts", "AMP.PRESET=bf16_stream"]).config.amp
    assert (amp.dtype, amp.custom_white_list) == ("bfloat16", ("layer_norm", "add"))
    with pytest.raises(UserError, match=r"AMP\.PRESET bf16_stream: .* DTYPE"):
        parse_command_line(["-opts", "AMP.PRESET=bf16_stream", "AMP.DTYPE=float16"])


def parse(folder, text: str, *flags: str):
    (folder / "old.yaml").write_text(text)
    return parse_command_line([f"-cfg={folder / 'old.yaml'}", *flags])


EARLIER = """
MODEL: {TYPE: PiT, NAME: pit_xs, DISTILL: true, RESUME: '', PRETRAINED: '', DROP_PATH: 0.2,
        TRANS: {PATCH_SIZE: 16, STRIDE: 8, BASE_DIMS: [48, 48, 48], DEPTH: [2, 6, 4], HEADS: [2, 4, 8]}}
TRAIN: {RANDAUGMENT: false, NORMALIZE_TARGET: true, MULTI_SCALE_SAMPLER_DDP: false,
        LR_SCHEDULER: {NAME: warmupcosine, MILESTONES: '30, 60, 90', DECAY_EPOCHS: 30, DECAY_RATE: 0.1}}
TAG: default
LOCAL_RANK: 0
NGPUS: -1
"""
UNUSED = {
    *("LOCAL_RANK", "NGPUS", "TAG", "TRAIN.LR_SCHEDULER.DECAY_EPOCHS", "TRAIN.LR_SCHEDULER.DECAY_RATE"),
    *("TRAIN.LR_SCHEDULER.MILESTONES", "TRAIN.MULTI_SCALE_SAMPLER_DDP", "TRAIN.NORMALIZE_TARGET"),
}


def test_an_earlier_file_gives_the_model_of_its_keys_and_one_warning(tmp_path):
    command = parse(tmp_path, EARLIER)
    model, train = command.config.model, command.config.train
    assert (model.depth, model.num_heads, model.base_dims) == ((2, 6, 4), (2, 4, 8), (48, 48, 48))
    assert (model.distilled, model.droppath, model.resume, model.pretrained) == (True, 0.2, None, None)
    assert (train.rand_augment, train.lr_scheduler.name) == (False, "cosine")
    (warning,) = (note for note in command.notes if note.startswith("Warning: "))
    assert set(warning.partition("without effect: ")[2].partition(";")[0].split(", ")) == UNUSED
    assert "MODEL.TRANS.HEADS -> MODEL.NUM_HEADS" in warning and "MODEL.DISTILL -> MODEL.DISTILLED" in warning


def test_the_higher_layer_and_then_the_present_name_win(tmp_path):
    text = "MODEL: {DEPTH: 3, TRANS: {DEPTH: 12, NUM_HEADS: 4, EMBED_DIM: 64}}"
    model = parse(tmp_path, text, "-opts", "MODEL.EMBED_DIM=32").config.model
    assert (model.depth, model.num_heads, model.embed_dim) == (3, 4, 32)
    (tmp_path / "base.yaml").write_text("MODEL: {TYPE: deit, DROPPATH: 0.1, DEPTH: 3}")
    model = parse(tmp_path, "BASE: [base.yaml]\nMODEL: {DROP_PATH: 0.2}").config.model
    assert (model.droppath, model.depth) == (0.2, 3)
    assert not parse(tmp_path, "MODEL: {TYPE: deit, DISTILL: false}").config.model.distilled


def test_the_sizes_of_maes_decoder_have_no_effect(tmp_path):
    sizes = "ENCODER: {EMBED_DIM: 24, DEPTH: 1, NUM_HEADS: 2}"
    text = f"MODEL: {{TYPE: MAE, TRANS: {{{sizes}, DECODER: {{EMBED_DIM: 8, DEPTH: 1, NUM_HEADS: 1}}}}}}"
    model = parse(tmp_path, text).config.model
    assert model.trans.encoder.embed_dim == 24 and not hasattr(model.trans, "decoder")


def test_all_mistakes_are_named_in_one_message(tmp_path):
    text = "SEED: -1\nTAGS: a\nMODEL:\n  TRANS:\n    MLP_DIM: 9\n    DEPHT: 2\nDATA:\n  IMAGE_SIZE: big\ntrain: {}"
    with pytest.raises(Findings) as error:
        parse(tmp_path, text)
    headline, *lines = str(error.value).split("\n")
    assert headline == "6 options are wrong:"
    found = {line.partition(f"{tmp_path / 'old.yaml'}:")[2].partition(";")[0].partition(" is ")[0] for line in lines}
    assert found == {
        *("1: SEED", "2: unknown key TAGS", "5: unknown key MODEL.MLP_DIM", "6: unknown key MODEL.DEPHT"),
        *("8: DATA.IMAGE_SIZE", "9: unknown key train"),
    }


@pytest.mark.parametrize(
    "key", ["TRAIN: {MULTI_SCALE_SAMPLER_DDP: true}", "MODEL: {TYPE: deit, TRANS: {ENCODER: {DEPTH: 2}}}"]
)
def test_an_old_key_that_is_on_is_no_key_without_effect(key, tmp_path):
    with pytest.raises(UserError, match=r"unknown key (TRAIN.MULTI_SCALE|MODEL.ENCODER)"):
        parse(tmp_path, key)


@pytest.mark.parametrize("flag", ["-resume=", "-pretrained="])
def test_an_empty_flag_is_an_error(flag):
    """Such as -pretrained=$WEIGHTS without the variable: a run without the weights would be a wrong result."""
    with pytest.raises(UserError, match=f"^{flag[:-1]} is empty"):
        parse_command_line([flag, "-dataset=digits"])
