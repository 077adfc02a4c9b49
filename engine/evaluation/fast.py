"""Which fast paths an evaluation tries: those that `auto` chooses, where they save more than their proof takes."""

import torch
from torch import nn

from configs.schema import Config
from engine.precision.policy import Precision
from models.blocks import FeatureModel
from models.fast import ATTENTION, CHANNELS_LAST, NORMS, noise, use_fast_paths
from models.kernels import AUTO, is_convolutional, plain_attention
from models.weights.choose import EVALUATE, Purpose
from utils.notes import Note

# Images from which on a path is tried. Their proof takes four to six images, and at most 24 more. Fused attention saves
# 3%, channels last 27%; in most networks folding takes as long as 15 to 161 images save (docs/log.md).
_FROM = {ATTENTION: 200, CHANNELS_LAST: 32, NORMS: 200}


def speed_up(
    model: nn.Module,
    config: Config,
    precision: Precision,
    number: int,
    purpose: Purpose = EVALUATE,
    keeps_weights: bool = False,
) -> list[Note]:
    """Gives `model`, which computes an evaluation of `number` images, the fast paths that it proves; notes for the log.

    Options that were given are kept. Attention is fused, and batch norms are folded, in float32 on a CPU only. With
    FEATURES the features are compared in place of logits, and batch norms stay, as if it `keeps_weights`.
    """
    is_fp32 = precision.dtype == torch.float32
    is_exact = is_fp32 and precision.device.type == "cpu"
    has_norms = any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    options = config.model
    is_possible = {
        ATTENTION: is_exact and options.attention == AUTO and bool(plain_attention(model)),
        CHANNELS_LAST: options.channels_last == AUTO and is_convolutional(model),
        NORMS: is_exact and has_norms and not keeps_weights and purpose is EVALUATE,
    }
    names = [name for name, least in _FROM.items() if is_possible[name] and number >= least]
    if not names:
        return []
    forward = model if purpose is EVALUATE else FeatureModel(model, options.name)
    tolerance = 1e-4 if is_fp32 and (is_exact or not precision.tf32) else 1e-2
    images = noise(config.data.image_shape, precision.device)
    text = use_fast_paths(model, names, images, tolerance, precision.autocast, forward)
    return [Note("log", f"Kernels: {text}")] if text else []
