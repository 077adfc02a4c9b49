"""The keys of loss, schedule, average and early stopping: PaddleViT's notation, and a way back from config.yaml."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from utils.errors import UserError

RECIPES = [
    ["LOSS={NAME: bce, TARGET_THRESHOLD: 0.2}", "TRAIN.LR_SCHEDULER.NAME=linear"],
    ["LOSS.CLASS_WEIGHTS=balanced", "TRAIN.LR_SCHEDULER={NAME: step, DECAY_EPOCHS: 2.5, DECAY_RATE: 0.97}"],
    ["LOSS.CLASS_WEIGHTS=[1, 2.5]", "TRAIN.MODEL_EMA=true", "EVAL_RAW=true"],
    ["TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 30}", "TRAIN.SQRT_SCALED_LR=512", "TRAIN.PATIENCE=7"],
]


def parsed(*options: str):
    return parse_command_line(["-opts", *options]).config


@pytest.mark.parametrize("options", RECIPES)
def test_the_resolved_options_make_the_same_config(tmp_path, options):
    config = parsed(*options)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).config
    assert again == config and to_yaml(again) == to_yaml(config)


def test_paddlevits_schedule_is_the_cosine():
    assert parsed("TRAIN.LR_SCHEDULER.NAME=warmupcosine") == parse_command_line([]).config


def test_adamwdl_is_a_name_of_adamw_with_layer_decay():
    with pytest.raises(UserError, match=r"AdamWDL needs LAYER_DECAY"):
        parsed("TRAIN.OPTIMIZER.NAME=adamwdl")
    assert parsed("TRAIN.OPTIMIZER.NAME=AdamWDL", "TRAIN.LAYER_DECAY=0.65").train.layer_decay == 0.65


def test_the_check_of_the_final_decay_knows_the_shortened_warm_up():
    assert parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9}").train.warmup_epochs == 1
    with pytest.raises(UserError, match=r"DECAY_EPOCHS 9.5 and WARMUP_EPOCHS 1 exceed NUM_EPOCHS 10; lower one"):
        parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9.5}")
