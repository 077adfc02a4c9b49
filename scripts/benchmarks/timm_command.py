"""The command line of timm's train.py that trains the same model in the same way as a configuration of ours."""

import argparse
from pathlib import Path
from typing import Any

from timm import is_model

from configs.schema import Config, Loss, LRScheduler
from utils.distributed import visible_gpus
from utils.errors import UserError


def check_comparable(config: Config) -> None:
    """Raises UserError if timm's train.py has no equivalent of the configuration."""
    if not is_model(config.model.name):
        raise UserError(f"MODEL.NAME {config.model.name}: timm has no model of this name; use a name that timm has")
    if config.model.freeze_backbone or config.train.layer_decay:
        raise UserError("FREEZE_BACKBONE, LAYER_DECAY: the comparison with timm does not support them; remove them")
    if config.loss != Loss() or config.train.lr_scheduler != LRScheduler():
        raise UserError("LOSS, LR_SCHEDULER: the comparison with timm does not support them; remove them")


def timm_flags(config: Config, flags: argparse.Namespace, folder: Path) -> list[str]:
    """Flags of train.py: crop and flip only, no evaluation, no checkpoint before the end of the epoch.

    Args:
        folder: has the images in `data`; train.py writes to `timm`.
    """
    data, model, train = config.data, config.model, config.train
    on_gpu = visible_gpus() > 0
    values = {
        "data-dir": folder / "data", "train-split": "train", "val-split": "", "output": folder / "timm",
        "model": model.name, "num-classes": model.num_logits, "img-size": data.image_size,
        "model-kwargs": [f"{name}_drop_rate={rate}" for name, rate in _drop_rates(config).items()],
        "drop-path": model.droppath, "device": "cuda" if on_gpu else "cpu",
        "batch-size": data.batch_size, "workers": data.num_workers,
        "opt": train.optimizer.name.lower(), "opt-eps": train.optimizer.eps, "opt-betas": train.optimizer.betas,
        "lr": train.base_lr, "weight-decay": train.weight_decay, "clip-grad": train.grad_clip or None,
        "sched": "cosine", "epochs": train.num_epochs, "warmup-epochs": int(train.warmup_epochs),
        "mean": data.imagenet_mean, "std": data.imagenet_std, "smoothing": train.smoothing,
        "scale": data.random_crop_scale, "ratio": data.random_crop_ratio, "hflip": data.hflip_prob,
        "color-jitter": 0, "train-interpolation": "bicubic", "log-interval": flags.interval, "seed": config.seed,
    }  # fmt: skip
    if config.amp.enabled:
        values["amp-dtype"] = config.amp.dtype or ("float16" if on_gpu else "bfloat16")
    switches = ["sched-on-updates", *(["amp"] if config.amp.enabled else []), *(["pin-mem"] if on_gpu else [])]
    if train.compile != "none":
        switches.append("torchcompile")
        values |= {"torchcompile-mode": "max-autotune"} if train.compile == "max" else {}
    return [f"--{name}" for name in switches] + [
        word for name, value in values.items() if value is not None for word in (f"--{name}", *_words(value))
    ]


def _drop_rates(config: Config) -> dict[str, float]:
    """timm's argument names for a Vision Transformer. Other models have other names and keep their default rates."""
    if config.model.type != "vit":
        return {}
    dropout = config.model.dropout
    return {"pos": dropout, "proj": dropout, "attn": config.model.attention_dropout}


def _words(value: Any) -> list[str]:
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else [str(value)]
