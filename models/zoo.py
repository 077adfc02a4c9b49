"""The other families -> timm's names and arguments."""

import timm
from torch import nn

from configs.schema import Config
from utils.errors import UserError, nearest


def build_timm(config: Config) -> nn.Module:
    """Any model of timm's by `MODEL.NAME`; `MODEL.PRETRAINED: timm` downloads its published weights.

    Raises:
        UserError: an unknown name, an argument that this family does not take, weights that cannot be had.
    """
    model, data = config.model, config.data
    if not timm.is_model(model.name):
        raise UserError(f"MODEL.NAME: timm has no model {model.name}{nearest(model.name, timm.list_models())}")
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
        return _create(model.name, arguments, pretrained=model.pretrained == "timm")
    except TypeError as error:
        raise UserError(f"MODEL.NAME {model.name} does not take an option that was set: {error}") from None
    except (OSError, RuntimeError) as error:
        raise UserError(f"MODEL.NAME {model.name} cannot be built: {str(error).splitlines()[0]}") from None


def _create(name: str, arguments: dict, pretrained: bool) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=pretrained, **arguments)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
    # A convolutional family has no input size of its own.
    return timm.create_model(name, pretrained=pretrained, **{k: v for k, v in arguments.items() if k != "img_size"})
