"""Model and data options -> a model on its device: `MODEL.TYPE` -> constructor, weights, trained parameters, kernels.

A family of PaddleViT's is an entry in `configs/schema/families/`, which `build_family` reads.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from timm.models import get_pretrained_cfg
from torch import nn

from configs.schema import Data
from configs.schema.model import Model
from models.blocks import enable_grad_checkpointing, pool_tokens
from models.families import build_family
from models.kernels import select_attention, use_fast_dropout
from models.timm_model import build_timm
from models.tuning import tune
from models.vit import build_vit
from models.weights.fit import count_outputs, load_pretrained, make_heads_zero
from utils.errors import UserError

MODELS: dict[str, Callable[[Any, Data], nn.Module]] = {"vit": build_vit, "timm": build_timm}


def build_model(
    options: Model,
    data: Data,
    device: torch.device,
    needs_head: bool = False,
    head_rows: Sequence[int] | None = None,
    evaluates: bool = False,
    weights_size: tuple[int, int] | None = None,
    zero_head: bool = True,
) -> tuple[nn.Module, list[str]]:
    """The model of `options` on `device`, with its pretrained weights, and log lines about these weights.

    With `needs_head` the weights must include a head of `MODEL.NUM_CLASSES` classes: the model is not trained.
    head_rows: of the classes; evaluates, zero_head, and weights_size, of their images: see `load_pretrained`.
    Raises UserError: the model cannot be built, or the weights do not fit it.
    """
    model = _construct(options, data)
    notes: list[str] = []
    downloaded = options.type == "timm" and options.pretrained == "timm"  # build_timm has loaded the weights
    outputs = getattr(model, "pretrained_cfg", {}).get("num_classes") if downloaded else options.num_logits
    if needs_head and outputs != options.num_logits:
        fix = "remove MODEL.NUM_CLASSES" if outputs else "train with these weights first"
        raise UserError(f"{options.name}: timm's weights have {outputs} outputs, not {options.num_logits}; {fix}")
    if options.pretrained and not downloaded:
        kind = needs_head, options, head_rows, evaluates
        notes = load_pretrained(model, options.pretrained, *kind, weights_size, zero_head)
    if downloaded and zero_head and (outputs != options.num_logits or options.features == "token_avg"):
        notes = [f"{options.name}: new head, of zeros"]
        make_heads_zero(model)
    if not needs_head:
        tune(model, options)
    if options.grad_checkpointing:
        enable_grad_checkpointing(model, options.name)
    select_attention(model, options.attention, device)
    if device.type == "cpu":
        use_fast_dropout(model)
    return model.to(device), notes


def outputs_of_weights(options: Model, data: Data) -> int | None:
    """The number of outputs of the weights MODEL.PRETRAINED; None if they have no head. Builds no tensor.

    Raises UserError: as `build_model`.
    """
    if is_published := options.type == "timm" and options.pretrained == "timm":
        with suppress(RuntimeError):  # an unknown tag
            if published := get_pretrained_cfg(options.name):
                return published.num_classes or None
    with torch.device("meta"):
        model = _construct(options.model_copy(update={"pretrained": None}), data)
    return None if is_published else count_outputs(model, options)


def _construct(options: Model, data: Data) -> nn.Module:
    model = MODELS.get(options.type, build_family)(options, data)
    if options.features != "pre_logits":
        pool_tokens(model, options.features, options.num_logits)
    return model
