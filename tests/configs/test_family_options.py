"""The options of model families: their defaults, checks, and options that PaddleViT's code ignores."""

from pathlib import Path

import pytest

from configs.reading.command_line import parse_command_line
from configs.schema.families.registry import MODEL_SECTIONS, NOT_IN_TIMM
from utils.errors import UserError

ROOT = Path(__file__).parents[2]


def parse(*options, flags=()):
    return parse_command_line([*flags, "-opts", *options]).config


# MODEL.TYPE -> values of its config.py in PaddleViT, read apart from our tables: mean, crop share, drop-path; epochs,
# warm-up, weight decay; base, first and last learning rate, its batch size; average of the weights; erasing.
DEFAULTS = {
    "BEiT": (0.5, 0.875, 0.1, 100, 20, 0.05, 4e-3, 0.0, 1e-6, 512, True, 0.25),
    "cait": (0.485, 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25),
    "xcit": (0.485, 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 1e-5, 512, False, 0.25),
    "PiT": (0.485, 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25),
    "CrossViT": (0.485, 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 1e-5, 512, False, 0.25),
    "volo": (0.485, 0.875, 0.0, 300, 3, 0.05, 1e-3, 1e-6, 1e-5, 128, False, 0.25),  # END_LR is 49 there
    "Mixer": (0.5, 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25),
    "ResMLP": (0.485, 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25),
    "GatedMLP": (0.5, 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25),
    "MAE": (0.485, 0.875, 0.0, 800, 40, 0.05, 1.5e-4, 1e-6, 0.0, 256, False, 0.0),
    "deit": (0.485, 0.875, 0.0, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25),
    "swin": (0.485, 0.9, 0.1, 300, 20, 0.05, 5e-4, 5e-7, 5e-6, 512, False, 0.25),
    "vit": (0.5, 0.875, 0.0, 300, 32, 0.3, 3e-3, 1e-6, 0.0, None, False, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_family(name):
    config = parse(f"MODEL.TYPE={name}")
    data, model, train = config.data, config.model, config.train
    assert DEFAULTS[name] == (
        *(data.imagenet_mean[0], data.crop_pct, model.droppath, train.num_epochs, train.warmup_epochs),
        *(train.weight_decay, train.base_lr, train.warmup_start_lr, train.end_lr, train.linear_scaled_lr),
        *(train.model_ema, train.random_erase_prob),
    )


def test_options_override_the_defaults_of_the_family():
    config = parse("MODEL.TYPE=cait", "TRAIN.MODEL_EMA=false", "DATA.IMAGENET_MEAN=[0, 0, 0]", "MODEL.DROPPATH=0")
    assert (config.train.model_ema, config.data.imagenet_mean, config.model.droppath) == (False, (0, 0, 0), 0)
    assert config.data.imagenet_std == (0.229, 0.224, 0.225)


def test_a_model_is_distilled_if_the_training_distils():
    assert not parse("MODEL.TYPE=pit").model.distilled
    assert parse("MODEL.TYPE=pit", "TRAIN.DISTILLATION_TYPE=hard").model.distilled
    assert parse("MODEL.TYPE=pit", "MODEL.DISTILLED=true").model.distilled


@pytest.mark.parametrize("name", ["volo", "mae"])
def test_weights_of_paddlevit_have_1000_classes_where_its_code_ignores_their_number(name):
    options = f"MODEL.TYPE={name}", "MODEL.NUM_CLASSES=7"
    assert parse(*options).model.num_classes == 7
    assert parse(*options, flags=["-pretrained=a.pdparams"]).model.num_classes == 7  # for training
    assert parse(*options, flags=["-eval", "-pretrained=a.pth"]).model.num_classes == 7
    assert parse(*options, flags=["-eval", "-pretrained=a.pdparams"]).model.num_classes == 1000


def test_one_run_does_not_change_the_defaults_of_the_next():
    optimizer = parse_command_line(["-opts", "MODEL.TYPE=mae", "TRAIN.OPTIMIZER.NAME=SGD"])
    assert "TRAIN.OPTIMIZER.BETAS" in optimizer.family_defaults
    assert optimizer.config.train.optimizer.betas == (0.9, 0.95)
    assert parse_command_line(["-opts", "MODEL.TYPE=mae"]).config.train.optimizer.name == "AdamW"


def test_the_users_rule_to_scale_the_rates_replaces_the_familys():
    train = parse_command_line(["-opts", "MODEL.TYPE=swin", "TRAIN.SQRT_SCALED_LR=512"]).config.train
    assert (train.linear_scaled_lr, train.sqrt_scaled_lr) == (None, 512)


def test_the_flag_model_leaves_data_and_training_to_the_recipe():
    recipe = f"-cfg={ROOT / 'configs' / 'folder_small.yaml'}"
    plain, swin = (parse_command_line([recipe, *flags]).config for flags in ([], ["-model=pvtv2_b0"]))
    assert (swin.train, swin.data) == (plain.train, plain.data)
    assert (swin.model.type, swin.model.droppath) == ("pvtv2", 0.1)


def test_own_weights_without_extension_keep_their_number_of_classes(tmp_path):
    argv = ["-eval", f"-pretrained={tmp_path / 'best'}", "-opts", "MODEL.TYPE=volo", "MODEL.NUM_CLASSES=10"]
    (tmp_path / "best.pth").touch()
    assert parse_command_line(argv).config.model.num_classes == 10
    (tmp_path / "best.pdparams").touch()
    assert parse_command_line(argv).config.model.num_classes == 1000


def test_options_that_have_no_effect_are_accepted_with_their_only_value(tmp_path):
    recipe = tmp_path / "beit.yaml"
    recipe.write_text("MODEL: {TYPE: beit}\nDATA:\n  SECOND_IMAGE_SIZE: 112")
    parse_command_line([f"-cfg={recipe}"])
    recipe.write_text("MODEL: {TYPE: beit}\nDATA:\n  SECOND_IMAGE_SIZE: 100")
    with pytest.raises(UserError, match=r":3: DATA.SECOND_IMAGE_SIZE: BEiT accepts only 112; remove it"):
        parse_command_line([f"-cfg={recipe}"])
    recipe.write_text("MODEL: {TYPE: cait}\nDATA:\n  SECOND_IMAGE_SIZE: 112")
    with pytest.raises(UserError, match=r":3: unknown key DATA.SECOND_IMAGE_SIZE"):
        parse_command_line([f"-cfg={recipe}"])


def test_a_section_that_is_no_section(tmp_path):
    for text in ("MODEL: {TYPE: deit}\nTRAIN: 3", "MODEL: {TYPE: swin}\nDATA: [1]"):
        recipe = tmp_path / "a.yaml"
        recipe.write_text(text)
        with pytest.raises(UserError, match=r":2: (TRAIN|DATA) is .*: must be a section of keys"):
            parse_command_line([f"-cfg={recipe}"])


MISTAKES = {
    ("poolformer", "MODEL.DOWNSAMPLES=[true, false, true, true]"): "MODEL.DOWNSAMPLES must be true in all stages",
    ("swin", "MODEL.STAGE_DEPTHS=[0, 2, 2, 2]"): r"MODEL.STAGE_DEPTHS is .* must be at least 1",
    ("swin", "MODEL.STAGE_DEPTHS=[2, 2]"): "MODEL.STAGE_DEPTHS has 2 values, NUM_HEADS 4; give one per stage",
    ("beit", "MODEL.NUM_HEADS=5"): "MODEL.EMBED_DIM 768 is not a multiple of NUM_HEADS 5",
    ("beit", "MODEL.QK_SCALE=0.5"): "MODEL.QK_SCALE is 0.5: input should be (None|null)",
    ("cait", "DATA.IMAGE_SIZE=230"): "DATA.IMAGE_SIZE 230 is not a multiple of MODEL.PATCH_SIZE 16",
    ("xcit", "MODEL.PATCH_SIZE=12"): "MODEL.PATCH_SIZE is 12: input should be 8 or 16",
    ("xcit", "MODEL.EMBED_DIM=20"): "MODEL.EMBED_DIM 20 must be a multiple of 8",
    ("pit", "MODEL.DEPTH=[1, 2]"): "MODEL.NUM_HEADS has 3 values, DEPTH 2",
    ("pit", "MODEL.DEPTH=[1, 2, 0]"): r"MODEL.DEPTH is \[1, 2, 0\]: .* at least 1",
    ("pit", "MODEL.BASE_DIMS=[32, 48, 64]"): "MODEL.BASE_DIMS x NUM_HEADS gives 384 and then 1024 channels",
    ("pit", "DATA.IMAGE_SIZE=10"): "DATA.IMAGE_SIZE 10 is less than MODEL.PATCH_SIZE 14",
    ("pit", "MODEL.ETA=1.0"): "unknown key MODEL.ETA of MODEL.TYPE pit.*key of xcit",
    ("crossvit", "MODEL.DEPTH=[[1, 4], [1, 4]]"): r"MODEL.DEPTH \[1, 4\] of a stage must have three values",
    ("crossvit", "MODEL.IMG_SIZE=[240]"): "MODEL.IMG_SIZE has 1 values; this family needs 2",
    ("crossvit", "MODEL.IMG_SIZE=[240, 225]"): "MODEL.IMG_SIZE 225 is not a multiple of its PATCH_SIZE 16",
    ("crossvit", "MODEL.EMBED_DIM=[384, 769]"): "MODEL.EMBED_DIM 769 is not a multiple of its NUM_HEADS 12",
    ("crossvit", "MODEL.MLP_RATIO=[4, 4]"): "MODEL.MLP_RATIO has 2 values; give three",
    ("crossvit", "MODEL={MULTI_CONV: true, PATCH_SIZE: [8, 16], TYPE: crossvit}"): "must be of 12 and 16",
    ("volo", "MODEL.TRANS.LAYERS=[1, 1, 1]"): "MODEL.TRANS.EMBED_DIMS has 4 values, LAYERS 3",
    ("volo", "MODEL.TRANS.DOWNSAMPLES=[false, false, false, false]"): "MODEL.TRANS.DOWNSAMPLES must be true once",
    ("volo", "MODEL.TRANS.EMBED_DIMS=[384, 768, 768, 384]"): "MODEL.TRANS.EMBED_DIMS 768 to 384: ",
    ("volo", "DATA.IMAGE_SIZE=232"): "DATA.IMAGE_SIZE 232 is not a multiple of 16",
    ("mixer", "MODEL.MIXER.PATCH_SIZE=8"): "MODEL.MIXER.PATCH_SIZE is 8: input should be 16",
    ("mixer", "MODEL.MIXER.MLP_RATIO=3"): "unknown key MODEL.MIXER.MLP_RATIO of MODEL.TYPE mixer.*key of .*resmlp",
    ("mixer", "MODEL.PATCH_SIZE=16"): "unknown key MODEL.PATCH_SIZE of MODEL.TYPE mixer",
    ("resmlp", "MODEL.ATTENTION_DROPOUT=0.1"): "MODEL.ATTENTION_DROPOUT is 0.1: input should be 0.0",
    ("gatedmlp", "DATA.IMAGE_SIZE=8"): "DATA.IMAGE_SIZE 8 is not a multiple of MODEL.MIXER.PATCH_SIZE 16",
    ("gatedmlp", "MODEL.MIXER={EMBED_DIM: 5, MLP_RATIO: 1.0}"): "MLP_RATIO 1 x EMBED_DIM 5 gives 5 channels",
    ("cait", "MODEL.TYPE=null"): "MODEL.TYPE is None: give one of vit, ",
    ("cait", "MODEL=3"): "MODEL is 3: must be a section of keys",
    ("mae", "MODEL.TRANS.ENCODER.NUM_HEADS=5"): "MODEL.TRANS.ENCODER.EMBED_DIM 768 is not a multiple of NUM_HEADS 5",
    ("mae", "MODEL.MAE_PRETRAIN=true"): "MODEL.MAE_PRETRAIN is True: pre-training is not available",
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: f"{case[0]} {case[1]}")
def test_mistakes_name_the_key(case):
    with pytest.raises(UserError, match=MISTAKES[case]) as error:
        parse(f"MODEL.TYPE={case[0]}", case[1])
    assert "\n" not in str(error.value)


def test_each_missing_family_has_near_ones():
    with pytest.raises(UserError, match=r"MODEL.TYPE focal: .*Focal Transformer; .*: swin, pvtv2"):
        parse("MODEL.TYPE=focal")
    assert not NOT_IN_TIMM.keys() & MODEL_SECTIONS.keys()
    assert all(set(nearest) < MODEL_SECTIONS.keys() for _, nearest in NOT_IN_TIMM.values())
