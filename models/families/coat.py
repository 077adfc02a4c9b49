"""CoaT as in PaddleViT."""

import copy
from typing import Any

import timm
from torch import nn


def coat(**arguments: Any) -> nn.Module:
    """timm's CoaT, whose parallel blocks have an MLP for each of their three scales instead of one MLP for all."""
    model: Any = timm.create_model("coat_lite_tiny", **arguments)
    for block in model.parallel_blocks or ():
        block.mlp3, block.mlp4 = (copy.deepcopy(block.mlp2).apply(model._init_weights) for _ in range(2))
    return model
