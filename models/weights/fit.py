"""Loads the weights of a file into a model: position embeddings of another size, heads of other classes."""

import math
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from warnings import catch_warnings

import torch
from timm.layers import resample_abs_pos_embed, to_2tuple
from timm.models import adapt_input_conv
from torch import nn

from configs.schema.model import Model
from models.weights.choose import FINE_TUNE, Purpose, choose
from models.weights.names import State, head_names, summarize_names
from models.weights.read import LOST, Weights, forget_weights, read_weights
from utils.errors import UserError
from utils.notes import Note

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_POSITIONS = ("pos_embed", "relative_position_bias_table", "attention_biases")
_OF_THE_INPUT = {  # of a transformer: without them it computes something else
    "cls_token", "dist_token", "reg_token", "register_tokens", "pos_embed", "absolute_pos_embed", "norm_pre",
}  # fmt: skip
_COMPUTED = ("relative_position_index", "attn_mask", "attention_bias_idxs")  # they follow from the size of the model


class NewHead(Enum):
    """Why a part of the model is new, in words for the log."""

    OTHER_NUMBER = "{} classes in the file, {} in the model"
    NOT_IN_FILE = "not in the file"
    OTHER_FEATURES = "other features in the file"
    OTHER_NORM = "not in the file, whose norm is of all tokens"
    NO_KNOWN_CLASS = "none of the classes in the file"


@dataclass
class Fitted:
    """How initial weights fit a model.

    source: the file, and the entry in it. others, other_key: as of `Candidate`. remarks: on conversions. new_heads: by
    the name of the part; zero_heads: their last layers are zero. counts: classes in the file and in the model. unused:
    names of tensors in the file.
    """

    source: str
    others: Sequence[str] = ()
    other_key: str = ""
    remarks: list[Note] = field(default_factory=list)
    new_heads: dict[str, NewHead] = field(default_factory=dict)
    zero_heads: bool = False
    counts: tuple[int, int] = (0, 0)
    unused: list[str] = field(default_factory=list)

    def notes(self) -> list[Note]:
        beside = f"; also there: {', '.join(self.others)} (MODEL.WEIGHTS_ENTRY={self.other_key})" if self.others else ""
        head = "new head, of zeros" if self.zero_heads else "new head"
        new = [
            f"{name}: {reason.value.format(*self.counts)}: {'new' if reason is NewHead.OTHER_NORM else head}"
            for name, reason in self.new_heads.items()
        ]
        unused = [f"not used: {summarize_names(self.unused, limit=8)}"] if self.unused else []
        notes = [Note("log", f"weights: {self.source}{beside}"), *self.remarks]
        return notes + [Note("log", text) for text in (*new, *unused)]


def load_pretrained(
    model: nn.Module,
    path: str,
    options: Model | None = None,
    purpose: Purpose = FINE_TUNE,
    image_size: tuple[int, int] | None = None,
) -> Fitted:
    """Loads a weight file into `model`, which must have no wrapper. Every tensor of the model must be in the file.

    The file may have other parts, such as the decoder of an autoencoder, but no other tensors of the model's own parts:
    a layer scale or further blocks would change what the model computes.

    Exceptions: position embeddings (1, N, D) of another grid are interpolated, tables of relative positions are
    resized, the first convolution may have 1 or 3 channels, and a head of other classes is new.

    options: of the model, by default a ViT. image_size: height and width of the images of the weights; None if they do
    not state it: position embeddings of another number of tokens are then of a square.
    Raises UserError: as `read_weights` and `choose`; a tensor that is missing, has no place, another shape or is not
    finite; a new head where the purpose needs one of the file. The model is then unchanged.
    """
    options = options or Model()
    try:
        weights = read_weights(path)
        chosen = choose(weights, model, options, purpose)
    finally:
        forget_weights()
    state, own = dict(chosen.state), model.state_dict()
    entry = f" ({summarize_names([chosen.path])})" if chosen.path else ""
    fitted = Fitted(
        source=f"{weights.file}{entry}, {len(state)} tensors",
        others=chosen.others,
        other_key=chosen.other_key,
        remarks=[chosen.note] if chosen.note else [],
        zero_heads=purpose.zero_head,
    )
    for name, target in own.items():  # from RGB to gray and from gray to RGB, by the sum of the channels
        source = state.get(name, target)
        channels = (*source.shape[1:2], *target.shape[1:2])
        if source.ndim == target.ndim == 4 and channels in ((3, 1), (1, 3)):
            state[name] = adapt_input_conv(1, source) if channels == (3, 1) else source.repeat(1, 3, 1, 1) / 3
            text = f"{name}: from {channels[0]} to {channels[1]} channels, as timm does"
            fitted.remarks.append(Note("log", text))
    # The values of parameters that are never trained stay: a formula gives them, such as sines and cosines.
    fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if replaced := [name for name in fixed if name in state and not torch.equal(state[name], own[name])]:
        fitted.remarks.append(Note("log", f"fixed by a formula, not read: {summarize_names(replaced)}"))
    computed = [name for name in own if name.endswith(_COMPUTED)]
    counts = [name for name in own if name.endswith(".num_batches_tracked") and name not in state]  # torch before 0.4.1
    state = {name: tensor for name, tensor in state.items() if not name.endswith(_COMPUTED)}
    state |= {name: own[name] for name in (*fixed, *computed, *counts)}
    fitted.remarks += _resize_positions(model, state, own, image_size)
    new = {name: tensor for name, tensor in own.items() if name.startswith("fc_norm.")}
    if new and not state.keys() & new.keys() and "norm.weight" not in own and "norm.weight" in state:
        state.update(new)  # weights of a class token, such as MAE's, in a model that averages the patches
        fitted.new_heads["fc_norm"] = NewHead.OTHER_NORM
    heads = head_names(model)
    for head in heads:
        _fit_head(fitted, model, head, state, own, purpose.head_rows, options.features != "pre_logits")
    fix = weights.advice(options.name) or f"give weights of {options.name}, or set MODEL to match (-model=NAME)"
    checked = _check_tensors(weights, state, own, heads, fix)
    if fitted.new_heads and purpose.needs_head:
        fix = "set MODEL.NUM_CLASSES or MODEL.DISTILLED to match, or give other weights"
        if fitted.new_heads.keys() >= set(heads) and NewHead.NOT_IN_FILE in fitted.new_heads.values():
            fix = "train with these weights first, or give weights with a head"
        name, reason = next(iter(fitted.new_heads.items()))
        problem = f"{weights.file}: cannot be evaluated ({name}: {reason.value.format(*fitted.counts)})"
        raise UserError(f"{problem}; {fix}")
    fitted.unused = [name for name in state if name not in own]
    hidden = [name for name in fitted.unused if _part(name) == "pre_logits"]  # of ViTs of ImageNet-21k
    if hidden and purpose.needs_head:
        text = "the results differ from the results of the weights' own program"
        layer = f"this model lacks their layer before the head: {summarize_names(hidden)}"
        fitted.remarks.append(Note("warning", f"{text}: {layer}"))
    model.load_state_dict(checked, strict=True)
    if purpose.zero_head:
        _make_zero(model, fitted.new_heads)
    return fitted


def fit_published(model: nn.Module, options: Model, purpose: Purpose) -> Fitted:
    """How the weights that timm publishes, and its constructor has loaded, fit `model`.

    Raises UserError: the purpose needs a head of other classes.
    """
    outputs = getattr(model, "pretrained_cfg", {}).get("num_classes")
    if purpose.needs_head and outputs != options.num_logits:
        fix = "remove MODEL.NUM_CLASSES" if outputs else "train with these weights first"
        raise UserError(f"{options.name}: timm's weights have {outputs} outputs, not {options.num_logits}; {fix}")
    fitted = Fitted(f"timm's {options.name}", zero_heads=purpose.zero_head)
    if outputs != options.num_logits or options.features == "token_avg":
        same = NewHead.OTHER_FEATURES if outputs == options.num_logits else NewHead.OTHER_NUMBER
        fitted.new_heads["head"] = same if outputs else NewHead.NOT_IN_FILE
        fitted.counts = (outputs or 0, options.num_logits)
        if purpose.zero_head:
            _make_zero(model, head_names(model))
    return fitted


def _resize_positions(
    model: nn.Module, state: State, own: State, image_size: tuple[int, int] | None = None
) -> list[Note]:
    """Resizes position embeddings (1, N, D), and tables of relative positions, by timm's functions.

    image_size: as in `load_pretrained`. As many tokens may have another grid (8 x 2 and 4 x 4), which timm overlooks.
    Tensors that they cannot resize stay unchanged: the check of shapes refuses them.
    """
    patches: Any = getattr(model, "patch_embed", None)
    grid = list(getattr(patches, "grid_size", None) or ())
    patch = to_2tuple(getattr(patches, "patch_size", 1))
    old_grid = [side // length for side, length in zip(image_size or (), patch, strict=False)]
    resize_table: Any = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    resized, about = [], ""
    for name in (name for name in own if name in state and name.endswith(_POSITIONS)):
        source, target = state[name], own[name]
        prefix_tokens = target.shape[1] - math.prod(grid)  # class token and others outside the grid
        is_grid = name == "pos_embed" and source.ndim == 3 and bool(grid)
        is_known = is_grid and bool(old_grid) and math.prod(old_grid) == source.shape[1] - prefix_tokens
        if source.shape == target.shape and not (is_known and old_grid != grid):
            if is_grid and not is_known and grid[0] != grid[1]:
                about = f"positions: the weights state no image size; read as {grid[0]} x {grid[1]} tokens"
            continue
        with suppress(Exception), catch_warnings(action="ignore"):  # of many types, by shape and dtype of the source
            if name == "pos_embed":
                old = old_grid if is_known else [math.isqrt(source.shape[1] - prefix_tokens)] * 2
                found = resample_abs_pos_embed(source, grid, old, num_prefix_tokens=prefix_tokens)
                if grid[0] != grid[1] or old[0] != old[1]:
                    about = f"positions: {' x '.join(map(str, old))} tokens become {' x '.join(map(str, grid))}"
            else:
                found = resize_table({name: source}, model)[name]
            if found.shape == target.shape:
                state[name] = found
                resized.append(f"{name} from {_shape(source)} to {_shape(target)}")
    notes = [Note("screen", about)] if about else []
    return notes + ([Note("log", f"positions: resized as timm does: {summarize_names(resized)}")] if resized else [])


def _fit_head(
    fitted: Fitted, model: nn.Module, head: str, state: State, own: State, rows: Sequence[int] | None, is_pooled: bool
) -> None:
    """Gives each class its row of the file, or makes the head new if the file has none of these classes.

    is_pooled: MODEL.FEATURES changes its inputs.
    """
    is_other = max(rows or (0,)) < 0
    names = [name for name in own if name.startswith(f"{head}.")]
    in_file = [name for name in names if name in state]
    layers = output_layers(model, head) if rows and not is_other else []
    for name in (f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")):
        source, target, row = state.get(name), own.get(name), torch.tensor(rows)
        if source is not None and target is not None and source.ndim == target.ndim and source.numel():
            is_kept = ((row >= 0) & (row < len(source))).view(-1, *[1] * (target.ndim - 1))
            kept = source[row.clamp(0, len(source) - 1)]
            if kept.shape == target.shape and kept.dtype in _FLOAT_DTYPES:  # else the check of shapes refuses it
                state[name] = torch.where(is_kept, kept.to(target.dtype), 0)  # the row of a new class, -1, is zero
    weights = [name for name in in_file if own[name].ndim > 1 and state[name].shape[1:] == own[name].shape[1:]]
    counts = [(len(state[name]), len(own[name])) for name in weights if len(state[name]) != len(own[name])]
    matrices = [name for name in in_file if state[name].ndim == 2 == own[name].ndim]
    if counts:
        fitted.counts, reason = counts[0], NewHead.OTHER_NUMBER
    elif names and not in_file:
        reason = NewHead.NOT_IN_FILE
    elif is_pooled and not set(matrices) <= set(weights):
        reason = NewHead.OTHER_FEATURES
    elif names and is_other:
        reason = NewHead.NO_KNOWN_CLASS
    else:
        return
    fitted.new_heads[head] = reason
    state |= {name: own[name] for name in names}


def _make_zero(model: nn.Module, heads: Collection[str]) -> None:
    """Makes the last layers of new heads zero.

    Their inputs are features that other training has learned. The rows of timm, with a standard deviation of up to 0.4
    (EfficientNet, MobileNet), destroy them in the first steps.
    """
    layers = [layer for head in head_names(model) if head in heads for layer in output_layers(model, head)]
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[0] in layers:
            tensor.zero_()


def output_layers(model: nn.Module, head: str) -> list[str]:
    """The layers whose rows are the classes: the last one in a head, of several heads the last one in each."""
    module = model.get_submodule(head)
    if isinstance(module, nn.ModuleList):
        return [layer for name, _ in module.named_children() for layer in output_layers(model, f"{head}.{name}")]
    return [name for name, part in module.named_modules(prefix=head) if isinstance(part, nn.Linear | nn.Conv2d)][-1:]


def _check_tensors(weights: Weights, state: State, own: State, heads: list[str], fix: str) -> State:
    """The tensors of `state` that the model has, cast to the model's dtypes.

    Raises UserError if a tensor is missing, or its shape, dtype or values are wrong; if a part of the model apart from
    `heads`, such as `blocks`, or the input of the blocks, has tensors in `state` that the model lacks.
    """

    def refuse(names: list[str], what: str, remedy: str = fix) -> None:
        if names:
            raise UserError(f"{weights.file}: {what}: {summarize_names(names)}; {remedy}")

    missing = [name for name in own if name not in state]
    if lost := [name for name in missing if any(f".{one}".endswith(f".{name}") for one in weights.lost)]:
        raise UserError(LOST.format(weights.file, summarize_names(lost)))
    refuse(missing, "missing tensors")
    misfits = [name for name in own if state[name].shape != own[name].shape]
    refuse([f"{name} {_shape(state[name])}, not {_shape(own[name])}" for name in misfits], "wrong shapes")
    parts = {_part(name) for name in own if "." in name} - {_part(head) for head in heads}
    parts |= _OF_THE_INPUT if "patch_embed" in parts else set()
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
