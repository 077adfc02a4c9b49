"""The format hf: a folder with config.json and model.safetensors, as timm saves it for the Hugging Face Hub.

`timm.create_model("local-dir:FOLDER", pretrained=True)` and the TimmWrapper classes of transformers read it.
"""

import json
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf
from torch import nn

from configs.schema import Config
from models.families import CONSTRUCTORS
from models.vit import evaluation_arguments
from scripts.exporting.files import write_safetensors
from scripts.weights.trained_model import Forward, TrainedModel
from utils.errors import UserError

_VIT = "vit_base_patch16_224"  # a name of timm's VisionTransformer whose arguments can all be given
# timm describes its own weights: only these keys are true of the model.
_KEPT_OF_TIMM = ("architecture", "input_size", "fixed_input_size", "pool_size", "first_conv", "classifier")


def write_hf(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Raises UserError if timm's `create_model` cannot rebuild the model."""
    rebuilt = _as_timm_builds_it(model, trained.config)
    rebuilt.pretrained_cfg = {key: rebuilt.pretrained_cfg.get(key) for key in _KEPT_OF_TIMM}
    names = {"label_names": trained.class_names} if trained.class_names else {}
    try:
        save_for_hf(rebuilt, str(path), names, data_config=data_config(trained.description["preprocessing"]))
    except ValueError as error:
        raise _not_rebuilt(trained.config, str(error)) from None
    _complete(path / "config.json", trained.config.data.multi_label)
    (path / "pytorch_model.bin").unlink()  # timm's .safetensors lacks metadata, and tensors may not share memory
    write_safetensors(model, trained, path / "model.safetensors")


def load_hf(trained: TrainedModel, path: Path) -> Forward:
    """The model that timm makes of the folder."""
    return timm.create_model(f"local-dir:{path}", pretrained=True).eval()


def _complete(file: Path, multi_label: bool) -> None:
    """Removes the number of classes from the arguments: transformers passes it too, and timm reads it elsewhere.

    transformers computes probabilities by `problem_type`: softmax, or sigmoid for several labels per image.
    """
    config = json.loads(file.read_text())
    config.get("model_args", {}).pop("num_classes", None)
    config["problem_type"] = "multi_label_classification" if multi_label else "single_label_classification"
    file.write_text(json.dumps(config, indent=2) + "\n")


def data_config(values: dict[str, Any]) -> dict[str, Any]:
    """The preprocessing of a checkpoint, as from `describe_data`, in timm's names."""
    resize, size = values.get("resize", "crop"), values["image_size"]  # earlier checkpoints have no `resize`
    return {
        "input_size": (values["channels"], *(size if isinstance(size, list) else (size, size))),
        "interpolation": values["interpolation"],
        "mean": tuple(values["mean"]),
        "std": tuple(values["std"]),
        "crop_pct": values["crop_pct"],
        "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[resize],
    }


def _as_timm_builds_it(model: nn.Module, config: Config) -> nn.Module:
    """A model of timm's `create_model`, with the shapes of `model`; its weights do not matter."""
    options: Any = config.model
    if options.features not in ("pre_logits", getattr(model, "global_pool", None)):
        raise _not_rebuilt(config, f"timm has no MODEL.FEATURES={options.features} of it")
    if options.type == "vit":
        if options.attn_head_size and options.attn_head_size * options.num_heads != options.embed_dim:
            raise _not_rebuilt(config, "its ViT has no MODEL.ATTN_HEAD_SIZE")
        if options.stem:
            raise _not_rebuilt(config, "timm's ViT has no MODEL.STEM")
        return timm.create_model(_VIT, **evaluation_arguments(options, config.data))
    if options.type in CONSTRUCTORS:
        raise _not_rebuilt(config, "no name of timm's accepts its options")
    return model


def _not_rebuilt(config: Config, reason: str) -> UserError:
    return UserError(
        f"-format hf: timm.create_model cannot rebuild this model (MODEL.TYPE {config.model.type}): {reason}; use "
        "another format"
    )
