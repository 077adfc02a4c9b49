"""The command line of timm's train.py that trains the same model in the same way as a configuration of ours."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import timm
from pydantic import BaseModel

from configs.schema import Config, Loss, LRScheduler
from scripts.flags import add_flag
from utils.device import visible_gpus
from utils.errors import UserError

EXPLICIT_ATTENTION = ["env", "TIMM_FUSED_ATTN=0"]  # in front of a command


def add_timm_flag(parser: argparse.ArgumentParser, required: bool = False) -> None:
    path = "train.py of a checkout of timm"
    add_flag(parser, "timm_train", type=_train_script, metavar="PATH", required=required, help=path)


def _train_script(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file; name the train.py of a checkout of timm")
    return Path(text).resolve()


def check_comparable(config: Config) -> None:
    """Raises UserError if timm's train.py has no equivalent of the configuration."""
    if not timm.is_model(config.model.name):
        raise UserError(f"MODEL.NAME {config.model.name}: timm has no model of this name; use a name that timm has")
    model, train = config.model, config.train
    unsupported = model.tune.kind, train.layer_decay, train.head_lr_scale, config.loss, train.lr_scheduler
    if unsupported != ("full", None, 1, Loss(), LRScheduler()):
        keys = "TUNE, LAYER_DECAY, HEAD_LR_SCALE, LOSS, LR_SCHEDULER"
        raise UserError(f"{keys}: the comparison with timm does not support them; remove them")


def check_recipe(config: Config, recipe: Config) -> None:
    """Raises UserError for an option that differs from the recipe and has no flag of train.py."""
    check_comparable(config)
    flags = partial(timm_flags, data_root=Path("data"), output=Path("output"), interval=1)
    for section in ("", "amp", "data", "model", "train"):
        options, defaults = (getattr(one, section) if section else one for one in (config, recipe))
        for key in type(options).model_fields:
            if isinstance(getattr(options, key), BaseModel) and not section:
                continue
            changed = defaults.model_copy(update={key: getattr(options, key)})
            changed = recipe.model_copy(update={section: changed}) if section else changed
            if changed != recipe and flags(changed) == flags(recipe):
                name = f"{section}.{key}".lstrip(".").upper()
                raise UserError(f"{name}: the comparison with timm does not support it; remove it")
    epochs = config.train.warmup_epochs
    if epochs % 1 or epochs >= config.train.num_epochs:
        raise UserError(f"TRAIN.WARMUP_EPOCHS {epochs:g}: timm's needs a whole number below NUM_EPOCHS; change it")


def timm_flags(config: Config, data_root: Path, output: Path, interval: int, val_split: str = "") -> list[str]:
    """Flags of train.py: crop and flip, no checkpoint before the end of an epoch that is evaluated.

    data_root: has a folder for each split. output: gets a folder for the run. interval: steps between log lines.
    val_split: evaluated every VALIDATE_FREQ epochs and at the end; '' for no evaluation.
    """
    data, model, train, (height, width) = config.data, config.model, config.train, config.data.input_size
    on_gpu, warmup_epochs = visible_gpus() > 0, int(train.warmup_epochs)
    arguments = getattr(model, "kwargs", None) or {}  # of TYPE timm: other models keep timm's shape and drop rates
    if model.type == "vit":
        arguments = {
            "pos_drop_rate": model.dropout, "proj_drop_rate": model.dropout, "attn_drop_rate": model.attention_dropout,
            "img_size": data.image_size, "patch_size": model.patch_size, "embed_dim": model.embed_dim,
            "depth": model.depth, "num_heads": model.num_heads, "mlp_ratio": model.mlp_ratio,
            "qkv_bias": model.qkv_bias,
        }  # fmt: skip
    size = {"img-size": height} if height == width else {"input-size": (data.image_channels, height, width)}
    # True: a switch; None, False: left out. timm's loader needs a worker. Its cosine starts after the warm-up, as ours
    # does, with the warm-up as a prefix only.
    values: dict[str, Any] = size | {
        "data-dir": data_root, "train-split": "train", "val-split": val_split, "output": output,
        "val-interval": config.validate_freq, "log-interval": interval, "seed": config.seed,
        "device": "cuda" if on_gpu else "cpu", "workers": max(1, data.num_workers or 0), "pin-mem": on_gpu,
        "batch-size": data.batch_size, "validation-batch-size": data.eval_batch_size,
        "in-chans": data.image_channels, "mean": data.imagenet_mean, "std": data.imagenet_std,
        "scale": data.random_crop_scale, "ratio": [bound * (width / height) for bound in data.random_crop_ratio],
        "hflip": data.hflip_prob, "vflip": data.vflip_prob or None,
        "train-interpolation": data.interpolation, "interpolation": data.interpolation,
        "color-jitter": 0, "crop-pct": data.crop_pct,
        "model": model.name, "num-classes": model.num_logits, "drop-path": model.droppath,
        "model-kwargs": [f"{name}={value}" for name, value in arguments.items()] or None,
        "opt": train.optimizer.name.lower(), "opt-eps": train.optimizer.eps, "opt-betas": train.optimizer.betas,
        "opt-kwargs": [f"{name}={value}" for name, value in (train.optimizer.kwargs or {}).items()] or None,
        "momentum": train.optimizer.momentum, "weight-decay": train.weight_decay, "clip-grad": train.grad_clip or None,
        "lr": train.base_lr, "warmup-lr": train.warmup_start_lr, "min-lr": train.end_lr,
        "sched": "cosine", "epochs": train.num_epochs - warmup_epochs, "warmup-epochs": warmup_epochs,
        "sched-on-updates": True, "warmup-prefix": True,
        "grad-accum-steps": train.accum_iter, "smoothing": train.smoothing,
        "mixup": train.mixup_alpha, "cutmix": train.cutmix_alpha,
        "mixup-prob": train.mixup_prob, "mixup-switch-prob": train.mixup_switch_prob, "mixup-mode": "batch",
        "reprob": train.random_erase_prob, "remode": train.random_erase_mode,
        "model-ema": train.model_ema, "model-ema-warmup": train.model_ema and train.model_ema_warmup,
        "model-ema-decay": train.model_ema_decay,
        "torchcompile": train.compiles,
        "torchcompile-mode": "max-autotune" if train.compile == "max" else None,
        "amp": config.amp.enabled,
        "amp-dtype": (config.amp.dtype or ("float16" if on_gpu else "bfloat16")) if config.amp.enabled else None,
    }  # fmt: skip
    words = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return words
