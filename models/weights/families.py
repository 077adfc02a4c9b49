"""PaddleViT's .pdparams of any family -> timm's names and layouts, by the rules in `configs/schema/families/`."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from configs.schema.families.family import Family
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from models.weights.names import paddlevit_to_timm, summarize_names
from utils.errors import UserError

State = dict[str, torch.Tensor]

_STATISTICS = ((r"\._mean$", ".running_mean"), (r"\._variance$", ".running_var"))


def paddle_converter(options: Model, model: nn.Module) -> Callable[[Path, State], State]:
    """Returns a function that converts the state of a .pdparams file to a state of `model`."""
    family = FAMILIES.get(options.type)
    if family is None:
        return paddlevit_to_timm
    return partial(_to_timm, family=family, options=options, model=model)


def _to_timm(file: Path, state: State, family: Family, options: Model, model: nn.Module) -> State:
    """Raises UserError if the file contains a tensor that the model does not have."""
    own = model.state_dict()
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    renames = (*_STATISTICS, *family.renames_for(options))
    result: State = {}
    unknown = []
    for name, tensor in state.items():
        if any(re.fullmatch(pattern, name) for pattern in family.dropped):
            continue
        renamed = name
        for pattern, replacement in renames:
            renamed = re.sub(pattern, replacement, renamed)
        parts = list(_split(renamed, family))
        if not all(part in own for part in parts):
            unknown.append(name)
            continue
        # The kind of the layer tells the layout: the shape of a square weight does not.
        rows = tensor.t() if parts[0] in linear and tensor.ndim == 2 else tensor
        result |= dict(zip(parts, rows.chunk(len(parts)) if len(parts) > 1 else [rows], strict=False))
    if unknown or not result:
        distilled = getattr(options, "distilled", True) is False and any("_dist." in name for name in unknown)
        fix = "set MODEL.DISTILLED=true" if distilled else "give weights of this model, or set MODEL to match"
        raise UserError(f"{file}: contains {summarize_names(unknown)}, which is not in this {family.title}; {fix}")
    computed = {
        name: tensor
        for name, tensor in own.items()
        # Paddle's batch norms have no counters.
        if not tensor.is_floating_point() or any(re.fullmatch(pattern, name) for pattern in family.computed)
    }
    return computed | result


def _split(name: str, family: Family) -> Iterator[str]:
    for pattern, modules in family.split.items():
        if match := re.fullmatch(pattern, name):
            before, kind = match.groups()
            yield from (f"{before}{module}{kind}" for module in modules)
            return
    yield name
