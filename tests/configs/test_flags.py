"""Flags: of -predict, of timm's train.py, in the words of other programs, with URLs; `-h KEY` and docs/options.md."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT

from configs.command_line import parse_command_line
from configs.compare import non_default_options
from configs.flags import Prediction, entry_parser
from configs.help import all_keys, options_page
from configs.load import flatten
from configs.parts import TABLES
from configs.resolve import ALL_RULES
from configs.schema.config import known_keys
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS
from configs.yaml_io import read_yaml
from utils.errors import UserError

WEIGHTS = "-pretrained=vit.pth"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-predict", "photos"], Prediction("photos", 5, None, False)),
        (["-predict=photos", "-top_k=1", "-json"], Prediction("photos", 1, None, True)),
        (["-predict=-x.jpg", "-output=o"], Prediction("-x.jpg", 5, Path("o"), False)),  # a dash needs '='
        (["-predict", "-split=val", "-dataset=digits"], Prediction(None, 5, None, False)),
        (["-predict=photos", "-format=excel"], Prediction("photos", 5, None, False, excel=True)),
        (["-predict=photos", "-format=wide"], Prediction("photos", None, None, False)),
        ([], None),
    ],
)
def test_a_prediction(argv, expected):
    command = parse_command_line([WEIGHTS, *argv])
    assert command.prediction == expected
    assert command.name == ("predict" if expected else "train")
    assert command.config.eval.enabled == bool(expected)
    command.require_selection()


SAME = [
    ("-amp=yes", "-amp"),
    ("-b 32", "-batch_size=32"),
    ("--data-path=images --image-size 64", "-data_path=images -image_size=64"),
    ("-j 3", "-num_workers=3"),
    ("-a vit_digits", "-model=vit_digits"),
    ("-c configs/vit_digits.yaml -o SEED=3 NAME=a", "-cfg=configs/vit_digits.yaml -opts SEED=3 NAME=a"),
    ("--config configs/vit_digits.yaml", "-cfg=configs/vit_digits.yaml"),
    ("--local-rank=0 --local_rank 0", ""),
]


def test_a_folder_with_an_equals_sign_is_named_whole(tmp_path):
    folder = tmp_path / "year=2024"
    folder.mkdir()
    with pytest.raises(UserError, match=f"use -data_path={folder} "):
        parse_command_line([str(folder)])


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_a_flag_of_another_program_is_this_programs(theirs, ours):
    assert parse_command_line(theirs.split()).config == parse_command_line(ours.split()).config


def test_a_local_rank_that_differs_from_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert parse_command_line(["--local-rank=1"])
    with pytest.raises(UserError, match="LOCAL_RANK"):
        parse_command_line(["--local-rank=2"])


PAGE = (ROOT / "docs/recipes.md").read_text().partition("## The flags of timm's train.py")[2]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
NAMES = (ROOT / "tests/configs/timm_flags.txt").read_text().split()  # of timm 1.0.29 and 1.0.31
DEFAULTS = """
DATA: {BATCH_SIZE: 128, RANDOM_CROP_SCALE: [0.08, 1.0], RANDOM_CROP_RATIO: [0.75, 1.3333333333333333],
  HFLIP_PROB: 0.5, VFLIP_PROB: 0.0}
MODEL: {DROPOUT: 0.0, DROPPATH: null, GRAD_CHECKPOINTING: false}
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


def test_all_flags_of_timm_are_answered_at_once_with_words_to_type():
    words = "--opt adamw --opt-betas 0.9 0.95 --weight-decay 0.05 --sched cosine --warmup-lr=0 --min-lr 1e-5"
    words += " --drop-path 0.1 --reprob 0.25 --mixup 0.8 --aa rand-m9-mstd0.5 --smoothing 0.1 --model-ema"
    answer = {
        "TRAIN.OPTIMIZER.NAME": "adamw", "TRAIN.OPTIMIZER.BETAS": (0.9, 0.95), "TRAIN.LR_SCHEDULER.NAME": "cosine",
        "TRAIN.END_LR": 1e-5, "MODEL.DROPPATH": 0.1, "TRAIN.RANDOM_ERASE_PROB": 0.25, "TRAIN.MODEL_EMA": True,
        "TRAIN.RANDOM_ERASE_AFTER_MIXUP": True, "LOSS.SMOOTH_TO_HALF": False,
    }  # fmt: skip
    with pytest.raises(UserError) as error:
        parse_command_line(words.split())
    typed = shlex.split(str(error.value).partition("; use ")[2].partition(" (")[0])
    found = dict(flatten(parse_command_line(typed).config.model_dump(by_alias=True)))
    assert typed[0] == "-opts" and found.items() >= answer.items()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--reprob 0.25 --no-prefetcher", {"TRAIN.RANDOM_ERASE_PROB": 0.25, "TRAIN.RANDOM_ERASE_AFTER_MIXUP": False}),
        ("--opt sgd --model-ema", {"TRAIN.OPTIMIZER.NAME": "nesterov", "TRAIN.MODEL_EMA_WARMUP": "copy"}),
        ("MODEL.TYPE=timm MODEL.NAME=nest_tiny --sched step", {"MODEL.DROPOUT": 0.0, "MODEL.DROPPATH": None}),
        ("--task multi --smoothing 0.1 --reprob=0", {"TRAIN.SMOOTHING": 0.1, "LOSS.SMOOTH_TO_HALF": True}),
    ],
)
def test_the_words_to_type_have_timms_meaning(words, expected):
    with pytest.raises(UserError) as error:
        parse_command_line(words.split())
    typed = shlex.split(str(error.value).partition("; use ")[2].partition(" (")[0])
    found = dict(flatten(parse_command_line(typed).config.model_dump(by_alias=True)))
    assert found.items() >= expected.items()


def test_the_block_has_each_default_of_timm_that_differs_and_is_a_recipe(tmp_path):
    """The keys of the block are the ones of `DEFAULTS` that differ from the defaults here, with timm's values."""
    configs = []
    for name, text in (("timm", DEFAULTS), ("block", re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])):
        (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "mine.yaml").write_text(f"BASE: [{name}.yaml]\nMODEL: {{TYPE: timm, NAME: resnet50}}\n")
        configs.append(parse_command_line([f"-cfg={tmp_path / 'mine.yaml'}"]).config)
    assert configs[0] == configs[1]
    block = {key for key, _ in flatten(read_yaml(tmp_path / "block.yaml")[0])}
    assert block == non_default_options(configs[0]).keys() - {"MODEL.TYPE", "MODEL.NAME"}


@pytest.mark.parametrize("url", ["https://me:hunter2@host/d", "s3://b/d?X-Sig=hunter2", "ftp://me:hun/ter2@host/d"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(url, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"DATA:\n  DATA_PATH: {url}\n")
    for argv in ([f"-data_path={url}"], [f"-cfg={tmp_path / 'recipe.yaml'}"], ["-opts", f"DATA.DATA_PATH={url}"]):
        with pytest.raises(UserError, match=r"DATA\.DATA_PATH: the \w+ URL contains .*; ") as error:
            parse_command_line(argv)
        assert "ter2" not in str(error.value) and "\n" not in str(error.value)


def test_home_is_expanded_in_flags_files_and_lists(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text("")
    (tmp_path / "base.yaml").write_text("SEED: 3\n")
    (tmp_path / "run.yaml").write_text(
        "BASE: [~/base.yaml]\nSAVE: ~/out\nDATA: {CACHE_DIR: '~/cache'}\nPLUGINS: [~/own.py]\n"
    )
    words = ["-cfg=~/run.yaml", "-data_path", "~/images", "-plugin=~/own.py", "-opts", "TRAIN.TEACHER_MODEL=~/t.pth"]
    config = parse_command_line([*words, "MODEL.PRETRAINED='~/a.pth'"]).config
    data = config.data
    weights = (config.model.pretrained, config.train.teacher_model)
    found = config.save, data.cache_dir, data.data_path, *weights
    assert found == tuple(f"{tmp_path}/{name}" for name in ("out", "cache", "images", "a.pth", "t.pth"))
    assert config.seed == 3 and config.plugins[0].startswith(f"{tmp_path}/own.py#")
    for words in (["-output=~"], ["-opts", "SAVE=~/"]):
        assert Path(parse_command_line(words).config.save) == tmp_path
    with pytest.raises(UserError, match=r"no user has this home folder; write the path, or \./~nobody-x/out for"):
        parse_command_line(["-output=~nobody-x/out"])


def test_quoted_values_are_read_with_a_note():
    options = {
        "TRAIN.BASE_LR": "1e-3", "SAVE_FREQ": "4", "AMP": "False", "EVAL": "False", "DATA.NUM_WORKERS": "None",
        "TRAIN.OPTIMIZER.BETAS": "(0.9, 0.95)", "TRAIN.MODEL_EMA": "True",
    }  # fmt: skip
    quoted, plain = (
        parse_command_line(["-opts", "MODEL.NAME='4'", *(f"{key}={mark}{text}{mark}" for key, text in options.items())])
        for mark in ("'", "")
    )
    assert quoted.config == plain.config and quoted.config.model.name == "4" and quoted.config.train.base_lr == 1e-3
    assert len(set(quoted.notes) - set(plain.notes)) == 1


def test_the_page_of_all_options_is_current(monkeypatch):
    """Else: python -m configs.help > docs/options.md"""
    for table in TABLES:  # other tests of this process may have added parts
        for name in [name for name, (part, _) in table.items() if part]:
            monkeypatch.delitem(table, name)
    assert (ROOT / "docs/options.md").read_text() == options_page() + "\n"


@pytest.mark.parametrize("family", MODEL_SECTIONS)
def test_each_key_of_a_family_has_help(family):
    keys = [key for key in all_keys() if key.section != "LOSS.KWARGS"]  # of one loss
    described = {key.name for key in keys if not key.types or family in key.types}
    with_one_value = {f"MODEL.{key}" for key in (*FIXED_KEYS.get(family, ()), "FREEZE_BACKBONE")}
    assert set(known_keys(family)) - {key.section for key in keys} - with_one_value == described
    assert all(key.meaning for key in all_keys())


def test_help_on_rules_has_each_rule(capsys):
    with pytest.raises(SystemExit) as end:
        parse_command_line(["-h", "RULES"])
    printed = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert all(" ".join(rule.__doc__.partition("\n\n")[0].split()) in printed for rule in ALL_RULES)
