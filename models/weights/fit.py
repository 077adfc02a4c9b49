"""Loads a state dict into a model: checks, resized position embeddings and tables, heads by class."""

import math
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
from timm.layers import resample_abs_pos_embed
from torch import nn

from configs.schema.model import Model
from configs.weights import find_weights
from models.timm_model import classifiers
from models.weights.names import State, paddle_converter, summarize_names
from models.weights.read import read_weights
from utils.errors import UserError

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NO_KNOWN_CLASS = "none of the classes in the file"
KEPT_BY_NUMBER = "the weights have no class names: the rows of the head keep their numbers"
_POSITIONS = ("pos_embed", "relative_position_bias_table", "attention_biases")
_COMPUTED = ("relative_position_index", "attn_mask", "attention_bias_idxs")  # they follow from the size of the model


def load_pretrained(
    model: nn.Module,
    path: str,
    needs_head: bool = False,
    options: Model | None = None,
    head_rows: Sequence[int] | None = None,
) -> list[str]:
    """Loads a weight file into `model`, which must have no wrapper. Every tensor of the model must be in the file.

    The file may have other parts, such as the decoder of an autoencoder, but no other tensors of the model's own parts:
    a layer scale or further blocks would change what the model computes.

    Exceptions: position embeddings (1, N, D) of another grid are interpolated, tables of relative positions are
    resized, and heads of other classes keep their initialization. The `options` of the model say its family, by
    default ViT. Returns log lines.

    head_rows: for each output of a head, its row in the head of the file, or -1 for a new class; without any known
    class the heads are new. Empty or None: heads of equal shape are kept; if empty, the data has class names.

    Raises:
        UserError: as `read_weights`; a tensor that is missing, has no place, another shape or is not finite; with
            `needs_head`, a head that would keep its initialization. The model is then unchanged.
    """
    file, own = find_weights(path), model.state_dict()
    state, entry = _read_state(file, model, options or Model())
    notes = [f"weights: {file}{entry and f' ({entry})'}, {len(state)} tensors"]
    notes += _keep_fixed(model, state, own)
    notes += _resize_positions(model, state, own)
    other_features = options is not None and options.features != "pre_logits"
    new_heads = _fit_heads(model, state, own, head_rows, other_features)
    if new_heads and needs_head:
        fix = "set MODEL.NUM_CLASSES or MODEL.DISTILLED to match, or give other weights"
        raise UserError(f"{file}: cannot be evaluated ({new_heads[0]}); {fix}")
    notes += new_heads or ([KEPT_BY_NUMBER] if head_rows == [] else [])
    unused = [name for name in state if name not in own]
    if unused:
        notes.append(f"not used: {summarize_names(unused, limit=8)}")
    model.load_state_dict(_check_tensors(file, state, own, _head_names(model)), strict=True)
    return notes


def count_outputs(model: nn.Module, options: Model) -> int | None:
    """The number of outputs of the weights MODEL.PRETRAINED of `model`, which may be on the meta device.

    None if they have no head. Raises UserError as `load_pretrained`.
    """
    state, _ = _read_state(find_weights(str(options.pretrained)), model, options)
    layers = [layer for head in _head_names(model) for layer in _output_layers(head, model.get_submodule(head))]
    return next((len(state[name]) for layer in layers if (name := f"{layer}.weight") in state), None)


def _read_state(file: Path, model: nn.Module, options: Model) -> tuple[State, str]:
    """The tensors of the file by the names of the model, and the entry that they are in."""
    (state, entry), own = read_weights(str(file), paddle_converter(model, options)), model.state_dict()
    if not state.keys() & own.keys():
        head = "".join(_head_names(model)[:1])  # as in the tutorial on Caltech-256: self.model, and self.l0 as its head
        state = {re.sub(r"^l0\b", head, name.removeprefix("model.")): tensor for name, tensor in state.items()}
    if not state.keys() & own.keys():
        raise UserError(
            f"{file}: contains {summarize_names(state)}, but none of this model's tensors ({summarize_names(own)}); "
            "give weights of this model"
        )
    return state, entry


def _keep_fixed(model: nn.Module, state: State, own: State) -> list[str]:
    """Keeps the values of parameters that are never trained: a formula gives them, such as sines and cosines."""
    fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    replaced = [name for name in fixed if name in state and not torch.equal(state[name], own[name])]
    state.update({name: own[name] for name in fixed})
    return [f"fixed by a formula, not read: {summarize_names(replaced)}"] if replaced else []


def _resize_positions(model: nn.Module, state: State, own: State) -> list[str]:
    """Resizes position embeddings (1, N, D) of a square grid, and tables of relative positions, by timm's functions.

    Tensors that they cannot resize stay unchanged: the check of shapes refuses them.
    """
    for name in [name for name in state if name.endswith(_COMPUTED)]:
        del state[name]
    state.update({name: tensor for name, tensor in own.items() if name.endswith(_COMPUTED)})
    timm_model: Any = model
    resize_table: Any = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    resized = []
    for name, target in own.items():
        source = state.get(name)
        if source is None or source.shape == target.shape or not name.endswith(_POSITIONS):
            continue
        with suppress(Exception), catch_warnings(action="ignore"):  # of many types, by shape and dtype of the source
            if name == "pos_embed":
                grid = timm_model.patch_embed.grid_size
                prefix_tokens = target.shape[1] - math.prod(grid)  # class token and others outside the grid
                found = resample_abs_pos_embed(source, list(grid), num_prefix_tokens=prefix_tokens)
            else:
                found = resize_table({name: source}, model)[name]
            if found.shape == target.shape:
                state[name] = found
                resized.append(f"{name} from {_shape(source)} to {_shape(target)}")
    return [f"positions: resized as timm does: {summarize_names(resized)}"] if resized else []


def _fit_heads(
    model: nn.Module, state: State, own: State, rows: Sequence[int] | None, other_features: bool
) -> list[str]:
    """Copies the model's own head to `state` if the file has no head of these classes, and its rows of new classes."""
    notes, is_other = list[str](), max(rows or (0,)) < 0
    for head in _head_names(model):
        names = [name for name in own if name.startswith(f"{head}.")]
        in_file = [name for name in names if name in state]
        if rows and not is_other:
            _keep_rows(_output_layers(head, model.get_submodule(head)), state, own, torch.tensor(rows))
        weights = [name for name in in_file if own[name].ndim > 1 and state[name].shape[1:] == own[name].shape[1:]]
        counts = [(len(state[name]), len(own[name])) for name in weights if len(state[name]) != len(own[name])]
        matrices = [name for name in in_file if state[name].ndim == 2 == own[name].ndim]
        if counts:
            reason = f"{counts[0][0]} classes in the file, {counts[0][1]} in the model"
        elif names and not in_file:
            reason = "not in the file"
        elif other_features and not set(matrices) <= set(weights):
            reason = "other features in the file"
        elif names and is_other:
            reason = NO_KNOWN_CLASS
        else:
            continue
        notes.append(f"{head}: {reason}: new head")
        state.update({name: own[name] for name in names})
    return notes


def _keep_rows(layers: list[str], state: State, own: State, rows: torch.Tensor) -> None:
    """Gives each class its row of the file; a new class, of row -1, gets the row of the model."""
    for name in (f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")):
        source, target = state.get(name), own.get(name)
        if source is not None and target is not None and source.ndim == target.ndim and source.numel():
            is_kept = ((rows >= 0) & (rows < len(source))).view(-1, *[1] * (target.ndim - 1))
            kept = source[rows.clamp(0, len(source) - 1)]
            if kept.shape == target.shape and kept.dtype in _FLOAT_DTYPES:  # else the check of shapes refuses it
                state[name] = torch.where(is_kept, kept.to(target.dtype), target)


def _output_layers(head: str, module: nn.Module) -> list[str]:
    """The layers whose rows are the classes: the last one in a head, of several heads the last one in each."""
    if isinstance(module, nn.ModuleList):
        return [layer for name, part in module.named_children() for layer in _output_layers(f"{head}.{name}", part)]
    return [name for name, part in module.named_modules(prefix=head) if isinstance(part, nn.Linear | nn.Conv2d)][-1:]


def _head_names(model: nn.Module) -> list[str]:
    """The paths of the modules that timm calls the classifier: 'head', 'fc', 'head.fc', or two if distilled."""
    heads = classifiers(model)
    return [name for name, module in model.named_modules() if any(module is head for head in heads)]


def _check_tensors(file: Path, state: State, own: State, heads: list[str]) -> State:
    """The tensors of `state` that the model has, cast to the model's dtypes.

    Raises UserError if a tensor is missing, or its shape, dtype or values are wrong; if a part of the model apart from
    `heads`, such as `blocks`, has tensors in `state` that the model lacks.
    """
    parts = {_part(name) for name in own if "." in name} - {_part(head) for head in heads}

    def refuse(names: list[str], what: str, remedy: str = "give weights of this model, or set MODEL to match") -> None:
        if names:
            raise UserError(f"{file}: {what}: {summarize_names(names)}; {remedy}")

    refuse([name for name in own if name not in state], "missing tensors")
    misfits = [name for name in own if state[name].shape != own[name].shape]
    refuse([f"{name} {_shape(state[name])}, not {_shape(own[name])}" for name in misfits], "wrong shapes")
    refuse([name for name in state if name not in own and _part(name) in parts], "the model has no place for")
    kinds = [name for name in own if own[name].is_floating_point() != (state[name].dtype in _FLOAT_DTYPES)]
    refuse([f"{name} {state[name].dtype}" for name in kinds], "wrong dtypes")
    cast = {name: state[name].to(own[name].dtype) for name in own}
    refuse([name for name in own if not cast[name].isfinite().all()], "NaN or infinite values", "give other weights")
    return cast


def _part(name: str) -> str:
    return name.partition(".")[0]


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
