"""The options of model families: their defaults, checks, and options that PaddleViT's code ignores."""

import re

import pytest

from configs.command_line import parse_command_line
from configs.schema.model import FIXED_KEYS
from configs.yaml_io import format_value
from utils.errors import UserError


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


TEACHER = "-teacher_model_path=./regnety_160.pdparams"


def test_xcit_with_a_teacher_distils_as_paddlevits_script_does():
    assert parse("MODEL.TYPE=xcit").train.distillation_type == "none"
    assert parse("MODEL.TYPE=xcit", flags=[TEACHER]).train.distillation_type == "hard"
    assert parse("MODEL.TYPE=xcit", "TRAIN.DISTILLATION_TYPE=soft", flags=[TEACHER]).train.distillation_type == "soft"


@pytest.mark.parametrize("options", [["SEED=0"], ["MODEL.TYPE=xcit", "TRAIN.DISTILLATION_TYPE=none"]])
def test_a_teacher_without_distillation_is_an_error(options):
    with pytest.raises(UserError, match=r"^-teacher_model_path: TRAIN.TEACHER_WEIGHTS needs a distillation"):
        parse(*options, flags=[TEACHER])
    assert parse(*options, flags=[TEACHER, "-eval", "-pretrained=a.pth"]).eval.enabled


@pytest.mark.parametrize("family", FIXED_KEYS)
def test_a_key_with_one_value_is_accepted_with_it_and_stored_nowhere(family):
    options = [f"MODEL.TYPE={family}", "DATA.IMAGE_SIZE=256"]
    for key, value in FIXED_KEYS[family].items():
        given = "0.75" if value is ... else format_value(value)
        assert parse(*options, f"MODEL.{key}={given}") == parse(*options)
        if value is not ...:
            with pytest.raises(UserError, match=rf"^-opts: MODEL.{key} is 0.75: only {re.escape(given)} is available"):
                parse(*options, f"MODEL.{key}=0.75")


MISTAKES = {
    ("poolformer", "MODEL.EMBED_DIMS=[64, 64, 320, 512]"): "MODEL.EMBED_DIMS",
    ("cait", "DATA.IMAGE_SIZE=230"): "DATA.IMAGE_SIZE 230 is not a multiple of 16, .* 224",
    ("beit", "MODEL.NUM_HEADS=5"): "MODEL.EMBED_DIM 768 is not a multiple of NUM_HEADS 5",
    ("crossvit", "MODEL.IMG_SIZE=[240, 225]"): "MODEL.IMG_SIZE 225 is not a multiple of its PATCH_SIZE 16",
    ("crossvit", "MODEL.DEPTH=[[1, 4], [1, 4]]"): r"MODEL.DEPTH \[1, 4\] of a stage must have three values",
    ("halo", "MODEL.DEPTH=[3, 4, 6, 3]"): "MODEL.ACT is not given",
    ("cait", "MODEL.TYPE=null"): "MODEL.TYPE is None: give one of vit, ",
    ("mixer", "MODEL.MIXER.MLP_RATIO=3"): "unknown key MODEL.MIXER.MLP_RATIO of MODEL.TYPE mixer.*key of .*resmlp",
    ("mobilevit", "MODEL.HIDDEN_DIMS=[96, 121, 144]"): "MODEL.HIDDEN_DIMS is 121: .* multiple of 8",
    ("mobileone", "MODEL.STRIDES=[1, 2, 2, 2, 2]"): "MODEL.NUM_BLOCKS must begin with 1 and STRIDES with 2",
    ("vit", "MODEL={POS_EMBED: sincos2d, EMBED_DIM: 30, NUM_HEADS: 3}"): "MODEL.POS_EMBED sincos2d needs",
    ("cait", "MODEL.TYPE=focal"): "MODEL.TYPE: unknown family focal",
    ("cait", "MODEL.TYPE=swn"): "MODEL.TYPE: unknown family swn; did you mean swin",
    ("deit", "MODEL=null"): "MODEL is None: must be a section of keys",
    ("deit", "TRAIN=3"): "TRAIN is 3: must be a section of keys",
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: f"{case[0]} {case[1]}")
def test_mistakes_name_the_key(case):
    with pytest.raises(UserError, match=MISTAKES[case]) as error:
        parse(f"MODEL.TYPE={case[0]}", case[1])
    assert "\n" not in str(error.value)
