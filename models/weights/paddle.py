"""PaddleViT's weights: .pdparams -> tensors -> timm's names and layouts, by the rules in `configs/schema/families/`.

The file is a pickle; `utils.file_formats.plain_pickle` runs no code of it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from configs.schema.families.family import Family
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from models.weights.names import State, Weights, find_entry, summarize_names
from utils.errors import UserError
from utils.file_formats.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle

Converter = Callable[[Path, State], State]

_VIT = replace(FAMILIES["deit"], title="ViT")  # DeiT's names are the names of PaddleViT's ViT and of its head
# RegNetY-16GF (Radosavovic et al., 2020), the teacher of PaddleViT's distillations; no value of MODEL.TYPE.
_REGNET = Family(
    title="RegNet",
    keys=Model,
    timm="regnety_160",
    arguments=lambda options, data: {},
    defaults={},
    renames=[
        (r"^stem\.0\.", "stem.conv."),
        (r"^stem\.1\.", "stem.bn."),
        (r"^stages\.(\d)\.blocks\.(\d+)\.", lambda match: f"s{int(match[1]) + 1}.b{int(match[2]) + 1}."),
        (r"\.conv(\d)\.", r".conv\1.conv."),
        (r"\.bn(\d)\.", r".conv\1.bn."),
        (r"\.downsample\.conv1x1\.", ".downsample.conv."),
        (r"\.se\.conv(\d)_1x1\.", r".se.fc\1."),
        (r"^head\.2\.", "head.fc."),
    ],
)
_STATISTICS = ((r"\._mean$", ".running_mean"), (r"\._variance$", ".running_var"))
# u2: bfloat16, which numpy does not have; i4 and i8: tables of indices, such as Swin's
_CODES = ("f2", "f4", "f8", "u2", "i4", "i8")
_PARAMETER_NAMES = "StructuredToParameterName@@"  # a table of PaddlePaddle's parameter names, not a tensor


def paddle_converter(model: nn.Module, options: Model) -> Converter:
    """Returns a function that converts the state of a .pdparams file to a state of `model`.

    The function raises UserError if the file contains a tensor that the model does not have.
    """
    is_regnet = options.type == "timm" and options.name.partition(".")[0] == _REGNET.timm
    family = _REGNET if is_regnet else FAMILIES.get(options.type, _VIT)
    renames = (*_STATISTICS, *family.renames_for(options))
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}

    def convert(file: Path, state: State) -> State:
        own = model.state_dict()
        result: State = {}
        biases: State = {}
        unknown = []
        for name, tensor in state.items():
            if any(re.fullmatch(pattern, name) for pattern in family.dropped):
                continue
            renamed = name
            for pattern, replacement in renames:
                renamed = re.sub(pattern, replacement, renamed)
            parts = list(_split(renamed, family))
            if not all(part in own for part in parts):
                mean = renamed.replace(".conv.bias", ".bn.running_mean")
                if mean in own:
                    biases[mean] = tensor
                else:
                    unknown.append(name)
                continue
            # The kind of the layer tells the layout: the shape of a square weight does not.
            rows = tensor.t() if parts[0] in linear and tensor.ndim == 2 else tensor
            result |= dict(zip(parts, rows.chunk(len(parts)) if len(parts) > 1 else [rows], strict=False))
        if unknown or not result:
            raise UserError(
                f"{file}: contains {summarize_names(unknown)}, which is not in this {family.title}; give weights of "
                "this model, or set MODEL (DISTILLED for two heads) to match"
            )
        for mean in biases.keys() & result.keys():  # the batch norm subtracts the mean: the same function
            result[mean] = result[mean].float() - biases[mean].float()
        return {name: tensor for name, tensor in own.items() if _is_computed(name, tensor, family)} | result

    return convert


def _is_computed(name: str, tensor: torch.Tensor, family: Family) -> bool:
    """Returns whether a tensor of the model is not in .pdparams files, as the counters of batch norms."""
    return not tensor.is_floating_point() or any(re.fullmatch(pattern, name) for pattern in family.computed)


def _split(name: str, family: Family) -> Iterator[str]:
    for pattern, modules in family.split.items():
        if match := re.fullmatch(pattern, name):
            before, kind = match.groups()
            yield from (f"{before}{module}{kind}" for module in modules)
            return
    yield name


def read_pdparams(file: Path) -> Weights:
    """The model's state; of a training checkpoint, `model_ema` if it has one, else `model`, as PaddleViT's scripts.

    Linear weights are (in, out).

    Raises:
        UserError: the file refers to a function or class, or contains a value that is not an array of numbers.
        Exception: of almost any type, from a damaged pickle.
    """
    with open(file, "rb") as stream:
        try:
            content = read_plain_pickle(stream)
        except ForbiddenName as error:
            name = summarize_names([str(error)])
            raise UserError(f"{file}: refers to {name}, which is not data; give a file you trust") from None
    state, entry = find_entry(content)
    if not isinstance(state, dict):
        raise UserError(f"{file}: contains no dict of weights; give the .pdparams of a model")
    arrays = {name: _to_record(file, name, value) for name, value in state.items() if name != _PARAMETER_NAMES}
    if sum(len(array.content) for array in arrays.values()) > file.stat().st_size:
        raise UserError(f"{file}: uses one array for many tensors; give the .pdparams of a model")
    return Weights({name: as_tensor(array.array().astype(array.dtype.code)) for name, array in arrays.items()}, entry)


def _to_record(file: Path, name: Any, value: Any) -> ArrayRecord:
    if isinstance(value, tuple | list) and len(value) == 2:
        value = value[1]  # (PaddlePaddle's own name, array)
    is_array = isinstance(value, ArrayRecord) and isinstance(value.content, bytes | str)
    if not (is_array and value.dtype and value.dtype.code in _CODES):
        raise UserError(f"{file}: {summarize_names([name])} is not an array of numbers; give the .pdparams of a model")
    return value


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same shape. Elements of two bytes without a numpy type are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
