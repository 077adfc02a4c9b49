"""The table of docs/recipes.md has each flag of timm's train.py, and options that exist."""

import re

import pytest
from conftest import ROOT

from configs.reading.checks import key_of_flag
from configs.reading.command_line import parse_command_line
from configs.reading.compare import non_default_options
from configs.reading.flags import entry_parser
from configs.reading.key_help import all_keys
from configs.reading.option_layers import flatten
from configs.reading.yaml_io import read_yaml
from utils.errors import UserError

PAGE = (ROOT / "docs/recipes.md").read_text().partition("## The flags of timm's train.py")[2]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
NAMES = (ROOT / "tests/configs/timm_flags.txt").read_text().split()  # of timm 1.0.29
DEFAULTS = """
DATA: {BATCH_SIZE: 128, RANDOM_CROP_SCALE: [0.08, 1.0], RANDOM_CROP_RATIO: [0.75, 1.3333333333333333],
  HFLIP_PROB: 0.5, VFLIP_PROB: 0.0}
MODEL: {DROPOUT: 0.0, DROPPATH: 0.0, GRAD_CHECKPOINTING: false}
LOSS: {NAME: cross_entropy, TARGET_THRESHOLD: null, CLASS_WEIGHTS: null}
TRAIN: {NUM_EPOCHS: 300, ACCUM_ITER: 1, BASE_LR: 0.05, END_LR: 0.0, WARMUP_EPOCHS: 5, WARMUP_START_LR: 1e-5,
  LR_SCHEDULER: {NAME: cosine, DECAY_RATE: 0.1, WARMUP_PREFIX: false},
  OPTIMIZER: {NAME: sgd, EPS: null, BETAS: null, MOMENTUM: 0.9}, WEIGHT_DECAY: 2e-5, GRAD_CLIP: null,
  LAYER_DECAY: null, SMOOTHING: 0.1, COLOR_JITTER: 0.4, AUGMENT_POLICY: null,
  RANDOM_ERASE_PROB: 0.0, RANDOM_ERASE_MODE: pixel, RANDOM_ERASE_COUNT: 1, MIXUP_ALPHA: 0.0, CUTMIX_ALPHA: 0.0,
  CUTMIX_MINMAX: null, MIXUP_PROB: 1.0, MIXUP_SWITCH_PROB: 0.5, MIXUP_MODE: batch, MIXUP_OFF_EPOCH: 0,
  MODEL_EMA: false, MODEL_EMA_DECAY: 0.9998, MODEL_EMA_WARMUP: false, DISTILLATION_TAU: 4.0}
VALIDATE_FREQ: 1
KEEP_CHECKPOINTS: 10
SEED: 42
"""  # of timm's train.py under the names of the keys; BASE_LR: lr_base * batch / lr_base_size


def test_each_flag_of_timm_is_in_one_row():
    listed = [name for theirs, _, _ in ROWS for name in re.findall(r"`([^`]+)`", theirs)]
    assert sorted(listed) == sorted(NAMES) and len(NAMES) > 170


def test_each_option_of_the_table_exists():
    known = {key.name for key in all_keys()} | entry_parser("").parse_args([]).__dict__.keys()
    for _, ours, note in ROWS:
        options = [name.removeprefix("-") for name in re.findall(r"`([^`]+)`", ours)]
        assert set(options) <= known, ours
        assert options or (ours in ("default", "no", "the same") and note), ours
        mentioned = re.findall(r"`((?:TRAIN|MODEL|DATA|AMP|LOSS|PARALLEL)\.[A-Z_.]+)", note)
        assert set(mentioned) <= known, note


def test_the_answer_to_a_flag_of_timm_is_a_key_of_its_row():
    ours = {name: row[1] for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    own = entry_parser("")._option_string_actions
    answers = {name: key for name in NAMES if name not in own and (key := key_of_flag(name))}
    assert len(answers) > 50
    assert {name: key for name, key in answers.items() if f"`{key}`" not in ours[name]} == {}


@pytest.mark.parametrize(("flag", "answer"), [
    ("--seed", " SEED=VALUE"), ("--weight_decay", "TRAIN.WEIGHT_DECAY=VALUE"), ("--loss", "LOSS.NAME=VALUE"),
("--aug-splits", None), ("--outptu", "-output"),
])  # fmt: skip
def test_an_unknown_flag_gets_a_fitting_hint_or_none(flag, answer):
    with pytest.raises(UserError) as error:
        parse_command_line([f"{flag}=1"])
    text = str(error.value)
    assert answer in text if answer else "did you mean" not in text and "-opts" not in text


def test_the_block_has_each_default_of_timm_that_differs_and_is_a_recipe(tmp_path):
    """The keys of the block are the ones of `DEFAULTS` that differ from the defaults here, with timm's values."""
    configs = []
    for name, text in (("timm", DEFAULTS), ("block", re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])):
        (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "mine.yaml").write_text(f"BASE: [{name}.yaml]\nMODEL: {{TYPE: timm, NAME: resnet50}}\n")
        configs.append(parse_command_line([f"-cfg={tmp_path / 'mine.yaml'}"]).config)
    assert configs[0] == configs[1]
    block = {key for key, _ in flatten(read_yaml(tmp_path / "block.yaml")[0])}
    assert block == {key for key in non_default_options(configs[0]) if not key.startswith("MODEL.")}
