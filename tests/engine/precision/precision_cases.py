"""A small ViT, and the precisions of its passes."""

import torch
from timm import create_model
from torch import nn

from configs.schema import Amp
from engine.precision.policy import Precision

CPU = torch.device("cpu")
FP32 = torch.float32
BF16 = torch.bfloat16


def vit(depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_classes": 5}
    model = create_model("vit_tiny_patch16_224", depth=depth, **sizes)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def policy(
    level: str = "O1", dtype: str = "bfloat16", device: torch.device = CPU, black: tuple = (), white: tuple = ()
) -> Precision:
    """Level O0 is fp32."""
    lists = {"CUSTOM_BLACK_LIST": black, "CUSTOM_WHITE_LIST": white}
    amp = {"ENABLED": True, "DTYPE": dtype, "LEVEL": level, **lists} if level != "O0" else {}
    return Precision(Amp.model_validate(amp), device)
