"""The other families -> timm's names and arguments."""

import copy

import timm
import torch
from torch import nn

from configs.schema import Config
from utils.errors import UserError, did_you_mean


def build_timm(config: Config) -> nn.Module:
    """Any model of timm's by `MODEL.NAME`; `MODEL.PRETRAINED: timm` downloads its published weights.

    Raises:
        UserError: an unknown name, an argument that this family does not take, weights that cannot be had.
    """
    model, data = config.model, config.data
    if not timm.is_model(model.name):
        raise UserError(f"MODEL.NAME: timm has no model {model.name}{did_you_mean(model.name, timm.list_models())}")
    arguments = {
        "num_classes": model.num_classes,
        "in_chans": data.image_channels,
        "drop_rate": model.dropout,
        "drop_path_rate": model.droppath,
        "attn_drop_rate": model.attention_dropout,
        "img_size": data.image_size,
    }
    rates = ("drop_rate", "drop_path_rate", "attn_drop_rate")
    arguments = {key: value for key, value in arguments.items() if key not in rates or value}
    try:
        built = _create(model.name, arguments, pretrained=model.pretrained == "timm")
    except TypeError as error:
        raise UserError(f"MODEL.NAME {model.name} does not take an option that was set: {error}") from None
    except (OSError, RuntimeError, AssertionError) as error:
        raise UserError(f"MODEL.NAME {model.name} cannot be built: {_first_line(error)}") from None
    _check_image_size(built, config)
    return built


def _check_image_size(model: nn.Module, config: Config) -> None:
    """Some families find out in their forward pass only that a size is none for them.

    It is tried without memory first; what fails there may be a model that cannot do without, and is tried for real.
    """
    data = config.data
    for device in ("meta", "cpu"):
        image = torch.empty((1, data.image_channels, data.image_size, data.image_size), device=device)
        try:
            with torch.no_grad():
                copy.deepcopy(model).eval().to(device)(image)
            return
        except (RuntimeError, AssertionError) as error:
            reason = _first_line(error)
    raise UserError(f"DATA.IMAGE_SIZE {data.image_size}: MODEL.NAME {config.model.name} does not take it: {reason}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _create(name: str, arguments: dict, pretrained: bool) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=pretrained, **arguments)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
    # A convolutional family has no input size of its own.
    return timm.create_model(name, pretrained=pretrained, **{k: v for k, v in arguments.items() if k != "img_size"})
