"""The options of model families: their defaults, checks, and options that PaddleViT's code ignores."""

import re
from ast import literal_eval
from operator import attrgetter

from conftest import config_for, each_row, refused
from pytest import mark

from configs.schema.model import FIXED_KEYS
from configs.yaml_io import format_value


def parse(*options):
    return config_for("-opts", *options)


OF_FAMILY = """
data.imagenet_mean data.crop_pct model.droppath train.num_epochs train.warmup_epochs train.weight_decay train.base_lr
train.warmup_start_lr train.end_lr train.linear_scaled_lr train.model_ema train.random_erase_prob
"""
# MODEL.TYPE -> these values of its config.py in PaddleViT, read apart from our tables. The learning rates are the
# base, the first and the last one, and its batch size.
DEFAULTS = """
name | values
BEiT | [0.5, 0.5, 0.5], 0.875, 0.1, 100, 20, 0.05, 4e-3, 0.0, 1e-6, 512, True, 0.25
cait | [0.485, 0.456, 0.406], 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25
xcit | [0.485, 0.456, 0.406], 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 1e-5, 512, False, 0.25
PiT | [0.485, 0.456, 0.406], 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25
CrossViT | [0.485, 0.456, 0.406], 0.875, 0.1, 300, 5, 0.05, 5e-4, 1e-6, 1e-5, 512, False, 0.25
volo | [0.485, 0.456, 0.406], 0.875, 0.0, 300, 3, 0.05, 1e-3, 1e-6, 1e-5, 128, False, 0.25  # END_LR is 49 there
Mixer | [0.5, 0.5, 0.5], 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25
ResMLP | [0.485, 0.456, 0.406], 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25
GatedMLP | [0.5, 0.5, 0.5], 0.875, 0.1, 300, 20, 0.1, 1e-3, 1e-6, 1e-5, 512, False, 0.25
MAE | [0.485, 0.456, 0.406], 0.875, 0.0, 800, 40, 0.05, 1.5e-4, 1e-6, 0.0, 256, False, 0.0
deit | [0.485, 0.456, 0.406], 0.875, 0.0, 300, 5, 0.05, 5e-4, 1e-6, 0.0, 512, True, 0.25
swin | [0.485, 0.456, 0.406], 0.9, 0.1, 300, 20, 0.05, 5e-4, 5e-7, 5e-6, 512, False, 0.25
vit | [0.5, 0.5, 0.5], 0.875, 0.0, 300, 32, 0.3, 3e-3, 1e-6, 0.0, None, False, 0.0
"""


@each_row(DEFAULTS)
def test_defaults_are_those_of_the_family(name, values):
    mean, *others = attrgetter(*OF_FAMILY.split())(parse(f"MODEL.TYPE={name}"))
    assert [[*mean], *others] == [*literal_eval(values)]


TEACHERS = """
words | kind
-opts MODEL.TYPE=xcit | none
-teacher_model_path=./regnety_160.pdparams -opts MODEL.TYPE=xcit | hard
-teacher_model_path=./regnety_160.pdparams -opts MODEL.TYPE=xcit TRAIN.DISTILLATION_TYPE=soft | soft
-teacher_model_path=./regnety_160.pdparams -eval -pretrained=a.pth | none  # which needs no distillation
"""


@each_row(TEACHERS)
def test_xcit_with_a_teacher_distils_as_paddlevits_script_does(words, kind):
    assert config_for(*words.split()).train.distillation_type == kind


BETAS = """
optimizer | betas
AdamW | (0.9, 0.95)
adamwdl | (0.9, 0.95)
lion | None
"""


@each_row(BETAS)
def test_another_optimizer_than_the_one_of_a_family_has_its_own_betas(optimizer, betas):
    """For users of MAE's recipe with lion (0.9, 0.99) or adan, whose betas are three. None: the optimizer's own."""
    config = config_for("-opts", "MODEL.TYPE=MAE", f"TRAIN.OPTIMIZER.NAME={optimizer}", "TRAIN.LAYER_DECAY=0.75")
    assert config.train.optimizer.betas == literal_eval(betas)


@mark.parametrize("family", FIXED_KEYS)
def test_a_key_with_one_value_is_accepted_with_it_and_stored_nowhere(family):
    options = [f"MODEL.TYPE={family}", "DATA.IMAGE_SIZE=256"]
    for key, value in FIXED_KEYS[family].items():
        given = "0.75" if value is ... else format_value(value)
        assert parse(*options, f"MODEL.{key}={given}") == parse(*options)
        if value is not ...:
            with refused(rf"^-opts: MODEL.{key} is 0.75: only {re.escape(given)} is available"):
                parse(*options, f"MODEL.{key}=0.75")
