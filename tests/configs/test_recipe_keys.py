"""The keys of loss, schedule, average and early stopping: PaddleViT's notation, and a way back from config.yaml."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from utils.errors import UserError

# PaddleViT's image_classification/MAE/configs/vit_base_patch16_224_finetune.yaml has this section.
PADDLEVIT = "TRAIN:\n    LR_SCHEDULER:\n        NAME: 'warmupcosine'\n    OPTIMIZER:\n        NAME: 'AdamW'\n"

RECIPES = [
    ["LOSS={NAME: bce, TARGET_THRESHOLD: 0.2}", "TRAIN.LR_SCHEDULER.NAME=linear"],
    ["LOSS.CLASS_WEIGHTS=balanced", "TRAIN.LR_SCHEDULER={NAME: step, DECAY_EPOCHS: 2.5, DECAY_RATE: 0.97}"],
    ["LOSS.CLASS_WEIGHTS=[1, 2.5]", "TRAIN.MODEL_EMA=true", "EVAL_RAW=true"],
    ["TRAIN.OPTIMIZER.BETAS=(0.9, 0.98)", "AMP.ENABLED=true", "DATA.IMAGE_SIZE=64", "TRAIN.BASE_LR=1e-5", "SEED=3"],
    ["TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 30}", "TRAIN.SQRT_SCALED_LR=512", "TRAIN.PATIENCE=7"],
]


def parsed(*options: str):
    return parse_command_line(["-opts", *options]).config


def test_paddlevits_schedule_is_the_cosine(tmp_path):
    (tmp_path / "mae.yaml").write_text(PADDLEVIT)
    config = parse_command_line([f"-cfg={tmp_path / 'mae.yaml'}"]).config
    assert config == parsed("TRAIN.LR_SCHEDULER.NAME=cosine") == parse_command_line([]).config


@pytest.mark.parametrize("options", RECIPES)
def test_the_resolved_options_make_the_same_config(tmp_path, options):
    config = parsed(*options)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).config
    assert again == config and to_yaml(again) == to_yaml(config)


@pytest.mark.parametrize("name", ["AdamWDL", "adamwdl"])
def test_adamwdl_is_a_name_of_adamw_with_layer_decay(name):
    with pytest.raises(UserError, match=r"AdamWDL needs LAYER_DECAY; set it, such as to 0\.75, or use AdamW"):
        parsed(f"TRAIN.OPTIMIZER.NAME={name}")
    assert parsed(f"TRAIN.OPTIMIZER.NAME={name}", "TRAIN.LAYER_DECAY=0.65").train.layer_decay == 0.65


def test_the_check_of_the_final_decay_knows_the_shortened_warm_up():
    assert parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9}").train.warmup_epochs == 1
    with pytest.raises(UserError, match=r"DECAY_EPOCHS 9.5 and WARMUP_EPOCHS 1 exceed NUM_EPOCHS 10; lower one"):
        parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9.5}")
