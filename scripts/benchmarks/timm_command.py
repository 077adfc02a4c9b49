"""The command line of timm's train.py that trains the same model in the same way as a configuration of ours."""

from pathlib import Path
from typing import Any

import timm

from configs.schema import Config, Loss, LRScheduler
from utils.device import visible_gpus
from utils.errors import UserError

# Options with a flag in `timm_flags`, options that do not change the result, and those of the run's files
_COMPARABLE = {
    "": {"NAME", "SAVE", "SAVE_FREQ", "SAVE_FREQ_STEPS", "SAVE_FREQ_MINUTES", "KEEP_CHECKPOINTS", "REPORT_FREQ",
         "VALIDATE_FREQ", "SEED", "DETERMINISTIC", "TIMEOUT_SECONDS"},
    "AMP": {"ENABLED", "DTYPE", "TF32"},
    "DATA": {"BATCH_SIZE", "BATCH_SIZE_EVAL", "IMAGE_SIZE", "IMAGE_CHANNELS", "CROP_PCT", "NUM_WORKERS",
             "IMAGENET_MEAN", "IMAGENET_STD", "VAL_FRACTION", "SPLIT_SEED", "RANDOM_CROP_SCALE", "RANDOM_CROP_RATIO",
             "HFLIP_PROB"},
    "MODEL": {"NAME", "NUM_CLASSES", "DROPOUT", "ATTENTION_DROPOUT", "DROPPATH", "ATTENTION", "PATCH_SIZE", "EMBED_DIM",
              "NUM_HEADS", "DEPTH", "MLP_RATIO", "QKV_BIAS", "GRAD_CHECKPOINTING"},
    "TRAIN": {"NUM_EPOCHS", "WARMUP_EPOCHS", "WEIGHT_DECAY", "BASE_LR", "WARMUP_START_LR", "END_LR",
              "BASE_LR_BATCH_SIZE", "GRAD_CLIP", "ACCUM_ITER", "COMPILE", "SMOOTHING", "MODEL_EMA", "MODEL_EMA_DECAY",
              "MIXUP_ALPHA", "MIXUP_PROB", "MIXUP_SWITCH_PROB", "CUTMIX_ALPHA", "OPTIMIZER", "RANDOM_ERASE_PROB",
              "RANDOM_ERASE_MODE"},
}  # fmt: skip


def check_comparable(config: Config) -> None:
    """Raises UserError if timm's train.py has no equivalent of the configuration."""
    if not timm.is_model(config.model.name):
        raise UserError(f"MODEL.NAME {config.model.name}: timm has no model of this name; use a name that timm has")
    if config.model.freeze_backbone or config.train.layer_decay:
        raise UserError("FREEZE_BACKBONE, LAYER_DECAY: the comparison with timm does not support them; remove them")
    if config.loss != Loss() or config.train.lr_scheduler != LRScheduler():
        raise UserError("LOSS, LR_SCHEDULER: the comparison with timm does not support them; remove them")


def check_recipe(config: Config) -> None:
    """Raises UserError for an option that changes the result and has no equal in timm's train.py.

    An option that is not in the table counts as one.
    """
    check_comparable(config)
    if config.model.type != "vit":
        raise UserError(f"MODEL.TYPE: {config.model.type} is not supported by the comparison with timm; use vit")
    for section, comparable in _COMPARABLE.items():
        options = getattr(config, section.lower()) if section else config
        for key, field in type(options).model_fields.items():
            changed = getattr(options, key) != field.get_default(call_default_factory=True)
            if changed and key.upper() not in comparable and (section or key.upper() not in _COMPARABLE):
                name = f"{section}.{key.upper()}".lstrip(".")
                raise UserError(f"{name}: the comparison with timm does not support it; remove it")
    train = config.train
    if train.warmup_epochs % 1 or train.warmup_epochs >= train.num_epochs:
        raise UserError(
            f"TRAIN.WARMUP_EPOCHS {train.warmup_epochs:g}: timm's train.py needs a whole number below NUM_EPOCHS "
            f"{train.num_epochs}; change it"
        )


def timm_flags(config: Config, data: Path, output: Path, interval: int, val_split: str = "") -> list[str]:
    """Flags of train.py: crop and flip, no checkpoint before the end of an epoch that is evaluated.

    Args:
        data: has a folder for each split.
        output: gets a folder for the run.
        interval: steps between log lines.
        val_split: evaluated every VALIDATE_FREQ epochs and at the end; '' for no evaluation.
    """
    on_gpu = visible_gpus() > 0
    values = {
        "data-dir": data, "train-split": "train", "val-split": val_split, "output": output,
        "val-interval": config.validate_freq, "log-interval": interval, "seed": config.seed,
        "device": "cuda" if on_gpu else "cpu", "workers": config.data.num_workers,
        **_data_values(config), **_model_values(config), **_optimizer_values(config), **_regularization_values(config),
    }  # fmt: skip
    if config.amp.enabled:
        values["amp-dtype"] = config.amp.dtype or ("float16" if on_gpu else "bfloat16")
    # timm's cosine starts after the warm-up, as ours does, with the warm-up as a prefix only.
    switches = ["sched-on-updates", "warmup-prefix"]
    switches += [*(["amp"] if config.amp.enabled else []), *(["pin-mem"] if on_gpu else [])]
    if config.train.model_ema:
        switches.append("model-ema")
    if config.train.compile != "none":
        switches.append("torchcompile")
        values |= {"torchcompile-mode": "max-autotune"} if config.train.compile == "max" else {}
    return [f"--{name}" for name in switches] + [
        word for name, value in values.items() if value is not None for word in (f"--{name}", *_words(value))
    ]


def _data_values(config: Config) -> dict[str, Any]:
    data = config.data
    return {
        "batch-size": data.batch_size, "validation-batch-size": data.eval_batch_size,
        "img-size": data.image_size, "in-chans": data.image_channels,
        "mean": data.imagenet_mean, "std": data.imagenet_std,
        "scale": data.random_crop_scale, "ratio": data.random_crop_ratio, "hflip": data.hflip_prob,
        "color-jitter": 0, "train-interpolation": "bicubic", "interpolation": "bicubic", "crop-pct": data.crop_pct,
    }  # fmt: skip


def _model_values(config: Config) -> dict[str, Any]:
    """Only a Vision Transformer gets its shape and drop rates: other models have other names, and keep timm's."""
    data, model = config.data, config.model
    values = {"model": model.name, "num-classes": model.num_logits, "drop-path": model.droppath}
    if model.type == "vit":
        arguments = {
            "pos_drop_rate": model.dropout, "proj_drop_rate": model.dropout, "attn_drop_rate": model.attention_dropout,
            "img_size": data.image_size, "patch_size": model.patch_size, "embed_dim": model.embed_dim,
            "depth": model.depth, "num_heads": model.num_heads, "mlp_ratio": model.mlp_ratio,
            "qkv_bias": model.qkv_bias,
        }  # fmt: skip
        values["model-kwargs"] = [f"{name}={value}" for name, value in arguments.items()]
    return values


def _optimizer_values(config: Config) -> dict[str, Any]:
    train, optimizer = config.train, config.train.optimizer
    warmup_epochs = int(train.warmup_epochs)
    return {
        "opt": optimizer.name.lower(), "opt-eps": optimizer.eps, "opt-betas": optimizer.betas,
        "momentum": optimizer.momentum, "weight-decay": train.weight_decay, "clip-grad": train.grad_clip or None,
        "lr": train.base_lr, "warmup-lr": train.warmup_start_lr, "min-lr": train.end_lr,
        "sched": "cosine", "epochs": train.num_epochs - warmup_epochs, "warmup-epochs": warmup_epochs,
        "grad-accum-steps": train.accum_iter,
    }  # fmt: skip


def _regularization_values(config: Config) -> dict[str, Any]:
    train = config.train
    return {
        "smoothing": train.smoothing,
        "mixup": train.mixup_alpha, "cutmix": train.cutmix_alpha,
        "mixup-prob": train.mixup_prob, "mixup-switch-prob": train.mixup_switch_prob, "mixup-mode": "batch",
        "reprob": train.random_erase_prob, "remode": train.random_erase_mode,
        "model-ema-decay": train.model_ema_decay,
    }  # fmt: skip


def _words(value: Any) -> list[str]:
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else [str(value)]
