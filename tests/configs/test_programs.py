"""Command lines of other programs: each flag has a row, and the command of the error is the run that was meant."""

import re
import shlex
from operator import attrgetter

import pytest
import timm
import torchvision
from conftest import ROOT, config_for, each_row, line_of

from configs.command_line import Command, parse_command_line
from configs.compare import non_default_options
from configs.flags import entry_parser
from configs.help import all_keys
from configs.load import flatten
from configs.programs import flags_page, name_of_model, paddleclas_keys, programs
from configs.yaml_io import read_yaml

NAMES = {name: text.split() for name, text in read_yaml(ROOT / "tests/configs/program_flags.yaml").items()}
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


def translated(line: str) -> Command:
    """The command that the error about `line` prints, typed."""
    message = line_of(parse_command_line, shlex.split(line))
    typed = message.partition("; use: python main_single_gpu.py ")[2].partition(" (flags of")[0]
    return parse_command_line(shlex.split(typed))


@pytest.mark.parametrize("name", NAMES)
def test_each_flag_of_a_program_is_in_its_table(name):
    assert {flag.lstrip("-") for flag in NAMES[name]} <= {*programs()[name].names}


def test_each_option_of_the_tables_exists():
    targets = re.findall(r"`([^`]+)`", re.sub(r"\| `--?[^|]*\|", "|", flags_page().partition("## PaddleClas")[0]))
    options = {target.partition("=")[0] for target in targets} | {*paddleclas_keys().values()}
    wrong = {one for one in options if one.lstrip("-").partition("=")[0].partition(",")[0] not in KNOWN}
    assert not wrong - {"scripts/export.py", "KEY", "LOGGERS"}
    assert len(options) > 80


def test_the_page_of_the_tables_is_current():
    """Else: python -m configs.programs > docs/flags.md"""
    assert (ROOT / "docs/flags.md").read_text() == flags_page() + "\n"


def test_the_recipe_has_each_default_of_timm_that_differs(tmp_path):
    (tmp_path / "timm.yaml").write_text(TIMM)
    recipe = ROOT / "configs/programs/timm.yaml"
    configs = [config_for(f"-cfg={file}") for file in (tmp_path / "timm.yaml", recipe)]
    assert configs[0] == configs[1]
    given = {key for key, _ in flatten(read_yaml(recipe))}
    assert {key for key in given if not key.startswith("MODEL.")} == {
        key for key in non_default_options(configs[0]) if not key.startswith("MODEL.")
    }


# Line; optimizer, rate, weight decay, schedule, size, policy; other options
ROWS = """
line | expected | others
# timm's documented commands
--data-dir D --model seresnet34 --sched cosine --epochs 150 --warmup-epochs 5 --lr 0.4 --reprob 0.5 -b 256 -j 4 | \
nesterov 0.4 2e-05 cosine 224 None | TRAIN.RANDOM_ERASE_AFTER_MIXUP=True; DATA.IMAGENET_MEAN=(0.485, 0.456, 0.406)
D --model efficientnet_b2 -b 128 --sched step --epochs 450 --decay-epochs 2.4 --decay-rate .97 --opt rmsproptf \
--opt-eps .001 --warmup-lr 1e-6 --weight-decay 1e-5 --drop 0.3 --drop-path 0.2 --model-ema --model-ema-decay 0.9999 \
--aa rand-m9-mstd0.5 --remode pixel --reprob 0.2 --amp --lr .016 | rmsproptf 0.016 1e-05 step 224 rand-m9-mstd0.5 | \
AMP.ENABLED=True; TRAIN.LR_SCHEDULER.DECAY_EPOCHS=2.4; MODEL.DROPPATH=0.2; TRAIN.WARMUP_EPOCHS=5
D --model resnet50 --opt lamb --batch-size 512 --grad-accum-steps 2 --bce-loss --reprob 0.1 --no-prefetcher | lamb \
0.2 2e-05 cosine 224 None | LOSS.NAME=bce; TRAIN.RANDOM_ERASE_AFTER_MIXUP=False
# of values that timm refuses, or that are not here
D --model resnet50 --sched cosine --lr-base-size 0 --input-size 1 160 192 --clip-mode agc | nesterov 0.05 2e-05 \
cosine (160, 192) None | DATA.IMAGE_CHANNELS=1
D --model vit_small_patch16_224 --task multilabel --opt adamw --opt-betas 0.9 0.95 --opt-kwargs caution=true | adamw \
0.070711 2e-05 cosine 224 None | DATA.MULTI_LABEL=True; TRAIN.OPTIMIZER.BETAS=(0.9, 0.95); \
TRAIN.OPTIMIZER.KWARGS={'caution': True}
# torchvision's
--data-path D --model regnet_y_400mf --epochs 100 --batch-size 128 --wd 0.00005 --lr=0.8 \
--lr-scheduler=cosineannealinglr --lr-warmup-method=linear --lr-warmup-epochs=5 --lr-warmup-decay=0.1 | SGD 0.8 \
5e-05 cosine 224 None | MODEL.NAME=regnety_004; TRAIN.WARMUP_START_LR=0.08; DATA.INTERPOLATION=bilinear
--model convnext_tiny --batch-size 128 --opt adamw --lr 1e-3 --lr-scheduler cosineannealinglr --lr-warmup-epochs 5 \
--auto-augment ta_wide --epochs 600 --random-erase 0.1 --label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0 \
--weight-decay 0.05 --train-crop-size 176 --model-ema --val-resize-size 232 | AdamW 0.001 0.05 cosine 176 tv_ta_wide \
| TRAIN.MODEL_EMA_DECAY=0.99999573; DATA.CROP_PCT=0.965517; TRAIN.RANDOM_ERASE_MODE=const
--model vit_b_16 --epochs 300 --batch-size 512 --opt adamw --lr 0.003 --wd 0.3 --auto-augment ra --ra-magnitude 10 \
--clip-grad-norm 1 --ra-sampler --amp | AdamW 0.003 0.3 step 224 tv_ra-m10 | MODEL.NAME=vit_base_patch16_224; \
TRAIN.GRAD_CLIP=1; DATA.REPEATED_AUGMENTATION=3
# PyTorch's example
-a resnet18 --dist-backend nccl --multiprocessing-distributed --world-size 1 --lr 0.01 | SGD 0.01 0.0001 step 224 \
None | DATA.BATCH_SIZE=256; TRAIN.OPTIMIZER.KWARGS={'filter_bias_and_bn': False}
# DeiT's and MAE's
--model deit_small_patch16_224 --batch-size 64 --data-path D --output_dir out --input-size 192 --drop-path 0.2 \
--aa rand-m9 --weight-decay 0.05 --dist-eval | AdamW 0.003 0.05 cosine 192 rand-m9 | MODEL.DROPPATH=0.2; \
DATA.BATCH_SIZE=64; MODEL.NAME=deit_small_patch16_224
--model resnet18 --finetune mae.pth --blr 5e-4 --layer_decay 0.65 --epochs 7 --data_path D --accum_iter 4 | AdamW \
0.003 0.3 cosine 224 None | TRAIN.LAYER_DECAY=0.65; MODEL.PRETRAINED=mae.pth; TRAIN.ACCUM_ITER=4
# transformers'; the model is a name of timm's, as no repository can be read here
--train_dir D/train --validation_dir D/val --model vit_small_patch16_224 --do_train --do_eval --learning_rate 2e-5 \
--num_train_epochs 5 --per_device_train_batch_size 8 --seed 1337 --resume_from_checkpoint auto --fp16 | AdamW 2e-05 \
0 linear 224 None | AMP.DTYPE=float16; SEED=1337; MODEL.RESUME=auto; DATA.BATCH_SIZE=8; DATA.DATA_PATH=D
"""


def shown(value: object, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


@each_row(ROWS)
def test_the_printed_command_is_the_run_that_was_meant(line, expected, others):
    config = translated(line).config
    keys = ("optimizer.name", "base_lr", "weight_decay", "lr_scheduler.name")
    figures = [*attrgetter(*keys)(config.train), config.data.image_size, config.train.augment_policy]
    assert " ".join(shown(figure, 5) for figure in figures) == expected
    values = {key: attrgetter(key.lower())(config) for key in re.findall(r"([A-Z_.]+)=", others)}
    assert "; ".join(f"{key}={shown(value, 8)}" for key, value in values.items()) == others


def test_the_devices_are_part_of_timms_rate(monkeypatch):
    assert translated("D --model resnet50 --sched cosine -ngpus 8").config.train.base_lr == pytest.approx(0.4)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert translated("D --model resnet50 --sched cosine -b 128").config.train.base_lr == pytest.approx(0.2)


def test_pretrained_alone_is_timms():
    config = config_for("--model", "resnet18", "--pretrained", "--epochs", "2")
    assert config.model.pretrained == "timm"
    assert config.train.num_epochs == 2


def test_torchvisions_names_of_models_are_timms():
    """All models of torchvision that timm has; it has none of three old families."""
    names = torchvision.models.list_models(module=torchvision.models)
    unknown = {name for name in names if not timm.is_model(name_of_model(name) or name)}
    assert {name.partition("net")[0] for name in unknown} == {"alex", "google", "shuffle", "squeeze"}
