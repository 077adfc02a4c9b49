"""Parameter groups and the optimizer."""

from typing import Any

import timm.optim
import torch
from torch import nn

from configs.schema import Train
from configs.schema.train import Optimizer
from utils.errors import UserError, did_you_mean
from utils.sharded import is_sharded

_FUSED = ("adam", "adamw", "sgd")
# Those that train sharded weights as whole ones (tests/engine/parallel/test_sharding.py). Not Muon and Adafactor.
SHARDED_OPTIMIZERS = {"adam", "adamw", "adamwdl", "lamb", "lars", "lion", "nadam", "nadamw", "sgd"}
_PADDLEVIT_NAMES = {"adamwdl": "adamw"}  # AdamW with layer decay, which TRAIN.LAYER_DECAY sets here


def build_optimizer(model: nn.Module, options: Train) -> torch.optim.Optimizer:
    """timm's optimizer of that name, without weight decay on biases, norms and tokens; fused if torch has a kernel.

    With LAYER_DECAY the learning rate of a layer is scaled as in BEiT (Bao et al., 2021): timm's
    `param_groups_layer_decay`, with the layers of the model's `group_matcher`.

    Raises:
        UserError: timm has no optimizer of that name, or cannot build it; LAYER_DECAY for a model without layers.
    """
    chosen = options.optimizer
    name = _PADDLEVIT_NAMES.get(chosen.name.lower(), chosen.name.lower())
    if options.layer_decay is not None and not hasattr(model, "group_matcher"):
        raise UserError("TRAIN.LAYER_DECAY: this model does not define its layers (no group_matcher); set it to null")
    known = [str(one) for one in timm.optim.list_optimizers()]
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"TRAIN.OPTIMIZER.NAME: unknown optimizer {chosen.name[:80]}{hint}")
    info = timm.optim.get_optimizer_info(name)
    arguments: dict[str, Any] = {}
    if info.has_betas:
        arguments["betas"] = chosen.betas
    if info.has_eps:
        arguments["eps"] = chosen.eps
    if name in _FUSED and not (name == "sgd" and is_sharded(model)):  # torch has no fused SGD of sharded weights
        arguments["fused"] = True
    try:
        optimizer = timm.optim.create_optimizer_v2(
            model,
            opt=name,
            lr=options.base_lr,
            weight_decay=options.weight_decay,
            momentum=chosen.momentum,
            layer_decay=options.layer_decay,
            **arguments,
        )
    except Exception as error:  # some of timm's optimizers need other packages or options
        raise UserError(f"TRAIN.OPTIMIZER.NAME: {chosen.name} cannot be built here: {error}; use AdamW") from error
    if isinstance(optimizer, torch.optim.SGD) and chosen.momentum:
        _zero_momentum(optimizer)
    return optimizer


def check_sharded_optimizer(options: Optimizer) -> None:
    """Raises UserError if it is unknown whether the optimizer trains sharded weights as whole ones."""
    if options.name.lower() not in SHARDED_OPTIMIZERS:
        names = ", ".join(sorted(SHARDED_OPTIMIZERS))
        raise UserError(
            f"TRAIN.OPTIMIZER.NAME: {options.name[:80]} is not known to train sharded weights as whole ones; use one "
            f"of {names}, or PARALLEL.STRATEGY=ddp"
        )


def _zero_momentum(optimizer: torch.optim.SGD) -> None:
    """Initializes the momentum: if torch's fused SGD skips its first step, it keeps uninitialized buffers."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
