"""Models of transformers with random weights."""

from typing import Any

import torch
from pytest import importorskip
from torch import nn

from configs.schema import Data
from configs.schema.families.family import TransformersModel
from models.build import build_model


def transformers_model(
    kind: str, values: dict[str, Any], size: int = 32, device: str = "cpu", **keys: Any
) -> nn.Module:
    """values: of its configuration; keys: of the section MODEL."""
    importorskip("transformers")
    options = TransformersModel.model_validate({"NAME": kind, "KWARGS": {"model_type": kind} | values} | keys)
    return build_model(options, Data.model_validate({"IMAGE_SIZE": size}), torch.device(device))[0]
