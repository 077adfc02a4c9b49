"""The families of PaddleViT that timm has: options -> timm's constructor and arguments."""

import importlib
import re
from collections.abc import Callable

import timm
from torch import nn

from configs.schema import Data
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from models.timm_model import check_image_size, errors_of_building, shared_arguments


def build_family(options: Model, data: Data) -> nn.Module:
    """The model of `options`, by the table `FAMILIES`: images (B, C, S, S) -> logits (B, classes).

    Raises:
        UserError: an argument or an image size that this model does not accept.
    """
    family = FAMILIES[options.type]
    arguments = shared_arguments(options, data) | family.arguments(options, data)
    with errors_of_building(f"MODEL.TYPE: {options.type}", data):
        model = _constructor(family.timm_for(options))(**arguments)
    for name, module in model.named_modules():
        for pattern, eps in family.norm_eps.items():
            if re.fullmatch(pattern, name):
                module.eps = eps
    check_image_size(model, family.title, data)
    return model


def _constructor(timm_name: str) -> Callable[..., nn.Module]:
    module, colon, attribute = timm_name.partition(":")
    if colon:
        return getattr(importlib.import_module(module), attribute)
    return lambda **arguments: timm.create_model(timm_name, **arguments)
