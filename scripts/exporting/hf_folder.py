"""The format hf: a folder with config.json and model.safetensors, as timm saves it for the Hugging Face Hub.

`timm.create_model("local-dir:FOLDER", pretrained=True)` and the TimmWrapper classes of transformers read it.
"""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf
from torch import nn

from configs.schema import Config, Data
from configs.schema.families.registry import FAMILIES
from configs.schema.families.vit import ViT
from models.timm_model import shared_arguments
from scripts.exporting.compare import Forward
from scripts.weights.files import write_safetensors
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError

_VIT = "vit_base_patch16_224"  # a name of timm's VisionTransformer whose arguments can all be given
# Families whose builder is not a name of timm's -> names of timm's that may have the same modules.
_SIMILAR = {
    "mae": [_VIT],
    "mixer": ["mixer_*"],
    "resmlp": ["resmlp_*"],
    "gatedmlp": ["gmlp_*"],
    "volo": ["volo_*"],
    "convmixer": ["convmixer_*"],
    "poolformer": ["poolformer_*"],
    "coat": ["coat_*"],
    "coat_lite": ["coat_lite_*"],
    "halo": ["halonet*"],
    "mobileone": ["mobileone_*"],
    "mobilevit": ["mobilevit_*"],
}
# timm describes its own weights: only these keys are true of the model.
_KEPT_OF_TIMM = ("architecture", "input_size", "fixed_input_size", "pool_size", "first_conv", "classifier")


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Raises UserError if timm's `create_model` cannot rebuild the model."""
    rebuilt = _as_timm_builds_it(model, trained.config)
    rebuilt.pretrained_cfg = {key: rebuilt.pretrained_cfg.get(key) for key in _KEPT_OF_TIMM}
    names = {"label_names": trained.class_names} if trained.class_names else {}
    try:
        save_for_hf(rebuilt, str(path), names, data_config=_data_config(trained))
    except ValueError as error:
        raise _not_rebuilt(trained.config, str(error)) from None
    _complete(path / "config.json", trained.config.data.multi_label)
    (path / "pytorch_model.bin").unlink()  # timm's .safetensors lacks metadata, and tensors may not share memory
    write_safetensors(path / "model.safetensors", model.state_dict(), trained.metadata())


def _complete(file: Path, multi_label: bool) -> None:
    """Removes the number of classes from the arguments: transformers passes it too, and timm reads it elsewhere.

    transformers computes probabilities by `problem_type`: softmax, or sigmoid for several labels per image.
    """
    config = json.loads(file.read_text())
    config.get("model_args", {}).pop("num_classes", None)
    config["problem_type"] = "multi_label_classification" if multi_label else "single_label_classification"
    file.write_text(json.dumps(config, indent=2) + "\n")


def load(trained: TrainedModel, path: Path) -> Forward:
    """The model that timm makes of the folder."""
    return timm.create_model(f"local-dir:{path}", pretrained=True).eval()


def _data_config(trained: TrainedModel) -> dict[str, Any]:
    values = trained.description["preprocessing"]
    return {
        "input_size": (values["channels"], values["image_size"], values["image_size"]),
        "interpolation": values["interpolation"],
        "mean": tuple(values["mean"]),
        "std": tuple(values["std"]),
        "crop_pct": values["crop_pct"],
        "crop_mode": "center",
    }


def _as_timm_builds_it(model: nn.Module, config: Config) -> nn.Module:
    """A model of timm's `create_model`, with the shapes of `model`; its weights do not matter."""
    options, data = config.model, config.data
    if options.type == "timm":
        return model
    if options.type == "vit":
        rebuilt = timm.create_model(_VIT, **_vit_arguments(options, data))
        if _shapes(rebuilt) != _shapes(model):
            raise _not_rebuilt(config, "its ViT has no MODEL.ATTN_HEAD_SIZE")
        return rebuilt
    family = FAMILIES[options.type]
    if ":" not in family.timm_for(options):
        return model
    arguments = shared_arguments(options, data) | {"img_size": data.image_size}
    shapes = _shapes(model)
    for name in timm.list_models(_SIMILAR.get(options.type, [])):
        for given in (arguments | family.arguments(options, data), arguments, _without_size(arguments)):
            try:
                with torch.device("meta"):
                    candidate = timm.create_model(name, **given)
            except Exception:  # arguments that this name does not accept, of many types
                continue
            if _shapes(candidate) == shapes:
                return candidate
    raise _not_rebuilt(config, f"no {family.title} of timm's has these modules")


def _vit_arguments(options: ViT, data: Data) -> dict[str, Any]:
    """The arguments of `models.vit.build_vit` that change the forward pass in evaluation."""
    return {
        "img_size": data.image_size,
        "patch_size": options.patch_size,
        "in_chans": data.image_channels,
        "num_classes": options.num_logits,
        "embed_dim": options.embed_dim,
        "depth": options.depth,
        "num_heads": options.num_heads,
        "mlp_ratio": options.mlp_ratio,
        "qkv_bias": options.qkv_bias,
        "global_pool": options.global_pool,
        "class_token": options.global_pool == "token",
        "fc_norm": False,
    }


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _without_size(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "img_size"}


def _not_rebuilt(config: Config, reason: str) -> UserError:
    return UserError(
        f"-format hf: timm.create_model cannot rebuild this model (MODEL.TYPE {config.model.type}): {reason}; use "
        "another format"
    )
