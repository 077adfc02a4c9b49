"""Flags of other programs: docs/flags.md, and the recipe of timm's defaults."""

import re

from conftest import ROOT, config_for

from configs.compare import non_default_options
from configs.flags import entry_parser
from configs.help import all_keys
from configs.load import flatten
from configs.yaml_io import read_yaml

KNOWN = {key.name for key in all_keys()} | entry_parser("").parse_args([]).__dict__.keys()
TIMM = """
DATA: {BATCH_SIZE: 128, RANDOM_CROP_SCALE: [0.08, 1.0], RANDOM_CROP_RATIO: [0.75, 1.3333333333333333],
  HFLIP_PROB: 0.5, VFLIP_PROB: 0.0}
MODEL: {TYPE: timm, NAME: resnet50, DROPOUT: 0.0, DROPPATH: null, GRAD_CHECKPOINTING: false}
LOSS: {NAME: cross_entropy, TARGET_THRESHOLD: null, CLASS_WEIGHTS: null, SMOOTH_TO_HALF: true}
TRAIN: {NUM_EPOCHS: 300, ACCUM_ITER: 1, BASE_LR: 0.05, END_LR: 0.0, WARMUP_EPOCHS: 5, WARMUP_START_LR: 1e-5,
  LR_SCHEDULER: {NAME: cosine, DECAY_RATE: 0.1, WARMUP_PREFIX: false},
  OPTIMIZER: {NAME: nesterov, EPS: null, BETAS: null, MOMENTUM: 0.9}, WEIGHT_DECAY: 2e-5, GRAD_CLIP: null,
  LAYER_DECAY: null, SMOOTHING: 0.1, COLOR_JITTER: 0.4, AUGMENT_POLICY: null,
  RANDOM_ERASE_PROB: 0.0, RANDOM_ERASE_MODE: pixel, RANDOM_ERASE_COUNT: 1,
  RANDOM_ERASE_AFTER_MIXUP: true, MIXUP_ALPHA: 0.0, CUTMIX_ALPHA: 0.0,
  CUTMIX_MINMAX: null, MIXUP_PROB: 1.0, MIXUP_SWITCH_PROB: 0.5, MIXUP_MODE: batch, MIXUP_OFF_EPOCH: 0,
  MODEL_EMA: false, MODEL_EMA_DECAY: 0.9998, MODEL_EMA_WARMUP: copy, DISTILLATION_TAU: 4.0}
VALIDATE_FREQ: 1
KEEP_CHECKPOINTS: 10
SEED: 42
"""  # of timm's train.py under the names of the keys; BASE_LR: lr_base * batch / lr_base_size


def test_each_option_of_the_page_exists():
    page = (ROOT / "docs/flags.md").read_text().partition("\n## ")[2]
    targets = re.findall(r"`([^`]+)`", re.sub(r"\n\| [^|]*\|", "", page))
    options = {re.split("[=,]", target)[0] for target in targets}
    assert not {one for one in options if one.lstrip("-") not in KNOWN} - {"scripts/export.py"}
    assert len(options) > 80


def test_the_recipe_has_each_default_of_timm_that_differs(tmp_path):
    (tmp_path / "timm.yaml").write_text(TIMM)
    recipe = ROOT / "configs/programs/timm.yaml"
    configs = [config_for(f"-cfg={file}") for file in (tmp_path / "timm.yaml", recipe)]
    assert configs[0] == configs[1]
    given = {key for key, _ in flatten(read_yaml(recipe)[0])}
    assert {key for key in given if not key.startswith("MODEL.")} == {
        key for key in non_default_options(configs[0]) if not key.startswith("MODEL.")
    }


def test_pretrained_alone_is_timms():
    config = config_for("--model", "resnet18", "--pretrained", "--epochs", "2")
    assert config.model.pretrained == "timm"
    assert config.train.num_epochs == 2
