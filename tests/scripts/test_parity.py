"""parity.py: the translation of a recipe for timm's train.py, images and results. No test runs timm's train.py."""

import json
from pathlib import Path

import pytest
import timm
import torch

from configs.command_line import parse_command_line
from engine.training.batch_size import build_state
from scripts.benchmarks import parity
from scripts.benchmarks.parity import RECIPE
from scripts.benchmarks.programs import check_recipe, timm_flags


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def config_of(*options: str):
    return parse_command_line([RECIPE, "-opts", "SEED=0", *options]).config


def flags_of(*options: str) -> dict[str, str]:
    """Flag of train.py -> its values."""
    found: dict[str, list[str]] = {}
    for word in timm_flags(config_of(*options), Path("/data"), Path("/out"), interval=50, val_split="val"):
        if word.startswith("--"):
            found[word[2:]] = values = []
        else:
            values.append(word)
    return {name: " ".join(values) for name, values in found.items()}


TRANSLATED = [
    ("AMP.DTYPE=float16", {"amp": "", "amp-dtype": "float16"}),
    ("DATA.IMAGE_SIZE=8 DATA.CROP_PCT=0.9", {"img-size": "8", "crop-pct": "0.9", "interpolation": "bicubic"}),
    ("DATA.RANDOM_CROP_SCALE=[0.3,0.9] DATA.HFLIP_PROB=0.25", {"scale": "0.3 0.9", "hflip": "0.25"}),
    ("MODEL.NUM_CLASSES=11 MODEL.DROPPATH=0.3", {"num-classes": "11", "drop-path": "0.3"}),
    ("TRAIN.NUM_EPOCHS=9 TRAIN.WARMUP_EPOCHS=3", {"epochs": "6", "warmup-epochs": "3", "warmup-prefix": ""}),
    ("TRAIN.BASE_LR=3e-3 TRAIN.END_LR=1e-6", {"lr": "0.003", "min-lr": "1e-06", "sched": "cosine"}),
    ("TRAIN.WEIGHT_DECAY=0.2 TRAIN.GRAD_CLIP=0.5", {"weight-decay": "0.2", "clip-grad": "0.5"}),
    ("TRAIN.OPTIMIZER.NAME=Adam TRAIN.OPTIMIZER.EPS=1e-6", {"opt": "adam", "opt-eps": "1e-06"}),
    ("TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9", {"model-ema-warmup": "", "model-ema-decay": "0.9"}),
    ("TRAIN.MIXUP_ALPHA=0.8 TRAIN.MIXUP_PROB=0.7", {"mixup": "0.8", "mixup-prob": "0.7"}),
    ("TRAIN.COMPILE=max", {"torchcompile": "", "torchcompile-mode": "max-autotune"}),
    ("SEED=3 VALIDATE_FREQ=2", {"seed": "3", "val-interval": "2", "val-split": "val"}),
]


def test_options_and_flags():
    for options, expected in TRANSLATED:
        check_recipe(config_of(*options.split()), config_of())
        found = flags_of(*options.split())
        assert {name: found[name] for name in expected} == expected, options
    check_recipe(config_of("AMP.ENABLED=false"), config_of())
    switches = {"amp", "amp-dtype", "model-ema", "model-ema-warmup", "torchcompile"}
    assert not switches & flags_of("AMP.ENABLED=false").keys()


def test_timms_model_is_ours_with_the_same_initial_weights(tmp_path, cpu):
    options = ["AMP.ENABLED=false", "MODEL.QKV_BIAS=false", "MODEL.MLP_RATIO=3", "MODEL.DROPOUT=0.1"]
    options.append("MODEL.ATTENTION_DROPOUT=0.2")
    config, flags = config_of(*options), flags_of(*options)
    parity.timm_command(Path("train.py"), ["-opts", "SEED=0", *options], 0, tmp_path, tmp_path / "a")
    ours = build_state(config, cpu).precision.weights.master.eval()
    given = dict(text.split("=") for text in flags["model-kwargs"].split())
    arguments = {name: json.loads(text.lower()) for name, text in given.items()}
    model = timm.create_model(
        flags["model"], num_classes=int(flags["num-classes"]), in_chans=int(flags["in-chans"]),
        drop_path_rate=float(flags["drop-path"]), checkpoint_path=str(tmp_path / "a.pth"), **arguments,
    ).eval()  # fmt: skip
    torch.nn.init.normal_(ours.head.weight, generator=torch.Generator().manual_seed(0))
    model.head.load_state_dict(ours.head.state_dict())
    images = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Each logit is a chain of about 10 sums of up to 288 terms of size 1 or less: in float64 below 1e-11.
    torch.testing.assert_close(model.double()(images), ours.double()(images), rtol=0, atol=1e-11)
    rates = [(one.pos_drop.p, one.blocks[0].attn.attn_drop.p, one.blocks[3].mlp.drop1.p) for one in (model, ours)]
    assert rates[0] == rates[1] == (0.1, 0.2, 0.1)
    assert model.blocks[3].drop_path1.drop_prob == ours.blocks[3].drop_path1.drop_prob == pytest.approx(0.1)
    parity.timm_command(Path("train.py"), [], 1, tmp_path, tmp_path / "b")
    one, other = (torch.load(path) for path in (tmp_path / "a.pth", tmp_path / "b.pth"))
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], other["blocks.0.attn.qkv.weight"])
