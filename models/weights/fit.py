"""Chooses the weights in a file (entry, prefix of the names, raw weights or average) and loads them into a model."""

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
from timm.layers import resample_abs_pos_embed, to_2tuple
from timm.models import adapt_input_conv
from torch import nn

from configs.schema.model import Model
from configs.weights import find_weights
from models.timm_model import classifiers
from models.weights.names import Convert, State, body_names, paddle_converter, summarize_names, to_model_names
from models.weights.read import Weights, forget_weights, read_weights
from utils.errors import UserError
from utils.notes import Note

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_POSITIONS = ("pos_embed", "relative_position_bias_table", "attention_biases")
_OF_THE_INPUT = {  # of a transformer: without them it computes something else
    "cls_token", "dist_token", "reg_token", "register_tokens", "pos_embed", "absolute_pos_embed", "norm_pre",
}  # fmt: skip
_COMPUTED = ("relative_position_index", "attn_mask", "attention_bias_idxs")  # they follow from the size of the model
_MAX_PREFIX, _MAX_PREFIXES = 8, 32  # parts of a prefix; prefixes of an entry
_ROOT = "the file itself"
# Modules that PyTorch puts around parts of a model: torch.compile, FSDP, activation checkpointing
_WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Two networks of one training, the one that its program uses last: DINO, iBOT and DINOv2; MoCo; MoCo v3; BYOL
_PAIRS = {"student": "teacher", "encoder_k": "encoder_q"}
_PAIRS |= {"momentum_encoder": "base_encoder", "target_encoder": "online_encoder"}


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

    source: the file, and the entry in it. others: the entries that fit as well; other_key: the
    MODEL.WEIGHTS_ENTRY of another one. remarks: on conversions. new_heads: by
    the name of the part; zero_heads: their last layers are zero. counts: classes in the file and in the model. unused:
    names of tensors in the file.
    """

    source: str
    others: list[str] = field(default_factory=list)
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
        notes = [Note("screen", f"weights: {self.source}{beside}"), *self.remarks]
        return notes + [Note("screen", text) for text in new] + [Note("log", text) for text in unused]


def load_pretrained(
    model: nn.Module,
    path: str,
    needs_head: bool = False,
    options: Model | None = None,
    head_rows: Sequence[int] | None = None,
    evaluates: bool = False,
    image_size: tuple[int, int] | None = None,
    zero_head: bool = True,
) -> Fitted:
    """Loads a weight file into `model`, which must have no wrapper. Every tensor of the model must be in the file.

    The file may have other parts, such as the decoder of an autoencoder, but no other tensors of the model's own parts:
    a layer scale or further blocks would change what the model computes.

    Exceptions: position embeddings (1, N, D) of another grid are interpolated, tables of relative positions are
    resized, and the last layer of a head of other classes is zero: the first steps then keep the features of the
    weights. The `options` of the model say its family, by default ViT.

    head_rows: for each output of a head, its row in the head of the file, or -1 for a new class, whose row is zero;
    without any known class the heads are new. None: heads of equal shape are kept.
    evaluates: see `choose`.
    image_size: height and width of the images of the weights; None if they do not state it: position embeddings of
    another number of tokens are then of a square.
    zero_head: False leaves the last layer of a new head as it is, for an optimizer that never leaves zero.
    Raises UserError: as `read_weights`; a tensor that is missing, has no place, another shape or is not finite; with
    `needs_head`, a head that would keep its initialization. The model is then unchanged.
    """
    file, options = find_weights(path), options or Model()
    try:
        weights = read_weights(path)
        chosen, others, key = choose(file, weights, model, options, evaluates)
    finally:
        forget_weights()
    state, own = dict(chosen.state), model.state_dict()
    entry = f" ({summarize_names([chosen.path])})" if chosen.path else ""
    fitted = Fitted(
        source=f"{file}{entry}, {len(state)} tensors",
        others=others,
        other_key=key,
        remarks=[*filter(None, [chosen.note])],
        zero_heads=zero_head,
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
    replaced = [name for name in fixed if name in state and not torch.equal(state[name], own[name])]
    state.update({name: own[name] for name in fixed})
    if replaced:
        fitted.remarks.append(Note("log", f"fixed by a formula, not read: {summarize_names(replaced)}"))
    fitted.remarks += _resize_positions(model, state, own, image_size)
    new = {name: tensor for name, tensor in own.items() if name.startswith("fc_norm.")}
    if new and not state.keys() & new.keys() and "norm.weight" not in own and "norm.weight" in state:
        state.update(new)  # weights of a class token, such as MAE's, in a model that averages the patches
        fitted.new_heads["fc_norm"] = NewHead.OTHER_NORM
    counts = {name for name in own if name.endswith(".num_batches_tracked")}  # torch before 0.4.1 had none
    state.update({name: own[name] for name in counts - state.keys()})
    _fit_heads(fitted, model, state, own, head_rows, options.features != "pre_logits")
    checked = _check_tensors(file, weights, state, own, _head_names(model))
    if fitted.new_heads and needs_head:
        fix = "set MODEL.NUM_CLASSES or MODEL.DISTILLED to match, or give other weights"
        if fitted.new_heads.keys() >= set(_head_names(model)) and NewHead.NOT_IN_FILE in fitted.new_heads.values():
            fix = "train with these weights first, or give weights with a head"
        name, reason = next(iter(fitted.new_heads.items()))
        raise UserError(f"{file}: cannot be evaluated ({name}: {reason.value.format(*fitted.counts)}); {fix}")
    fitted.unused = [name for name in state if name not in own]
    model.load_state_dict(checked, strict=True)
    return fitted


def count_outputs(model: nn.Module, options: Model) -> int | None:
    """The number of outputs of the weights MODEL.PRETRAINED of `model`, which may be on the meta device.

    None if they have no head. Raises UserError as `load_pretrained`.
    """
    file = find_weights(str(options.pretrained))
    state = choose(file, read_weights(str(file)), model, options, evaluates=True)[0].state
    layers = [layer for head in _head_names(model) for layer in _output_layers(head, model.get_submodule(head))]
    return next((state[name].shape[0] for layer in layers if (name := f"{layer}.weight") in state), None)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Tensors of a file with the names of the model. path: their entry and the prefix of their names in the file."""

    path: str
    state: State
    score: tuple[int, int]
    note: Note | None

    def is_named(self, name: str) -> bool:
        return f".{name}." in f".{self.path or _ROOT}."


class SeveralFit(UserError):
    """`problem`: without the key that chooses."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; choose with -opts MODEL.WEIGHTS_ENTRY=NAME")
        self.problem = problem


def choose(
    file: Path, weights: Weights, model: nn.Module, options: Model, evaluates: bool
) -> tuple[Candidate, list[str], str]:
    """The candidate that fits the model best, the others that fit as well, and the MODEL.WEIGHTS_ENTRY of another one.

    options: of the model. evaluates: by default another program's raw weights have priority over their average,
    as in timm's and DeiT's validation; else the average.
    Raises UserError: nothing fits; several fit equally well, or none is MODEL.WEIGHTS_ENTRY: the line names the key.
    """
    convert = paddle_converter(file, model, options) if weights.is_paddle else partial(to_model_names, model)
    own, body, wanted = model.state_dict(), body_names(model), options.weights_entry
    found = list[Candidate]()
    for entry, state in weights.states.items():
        if weights.is_paddle:
            found.append(_candidate(entry, "", state, own, body, convert))
        else:
            found += _candidates(entry, state, own, body, convert)
    found = [one for one in found if any(one.score)]
    if 4 * (most := max((one.score[1] for one in found), default=0)) < len(body):
        largest = max(weights.states.values(), key=len, default={})
        fix = "give weights of this model with timm's names"
        if "_conv_stem.weight" in largest:
            fix = "the names are efficientnet_pytorch's: give -model, such as tf_efficientnet_lite0"
        if weights.architecture:
            fix = f"give -model={weights.architecture}, which the file names"
        text = f"{file}: contains {summarize_names(largest)}, but {most or 'none'} of this model's {len(body)} tensors"
        raise UserError(f"{text} ({summarize_names(own)}); {fix}")
    best = _best(found)
    averages = [one for one in best if weights.average.search(one.path)]
    raws = [one for one in best if one not in averages]
    if wanted in (None, "raw", "average"):
        takes_average = wanted == "average" if wanted else weights.is_result or not evaluates
        chosen = (averages if takes_average else raws) or ([] if wanted else best)
    else:
        named = [one for one in found if one.is_named(wanted)]
        chosen = _best([one for one in named if one.path == wanted] or named)
    second = [name for name, first in _PAIRS.items() if any(one.is_named(first) for one in chosen)]
    if not all(one.is_named("backbone") for one in chosen):  # the student is the result of a distillation
        second = [name for name in second if name != "student"]
    chosen = [one for one in chosen if not any(map(one.is_named, second))]
    paths = summarize_names([one.path or _ROOT for one in chosen or found], limit=6)
    if not chosen:
        problem = f"{file}: has no weights {wanted} (MODEL.WEIGHTS_ENTRY), but {paths}"
        raise UserError(f"{problem}; change the key or remove it")
    one = chosen[0]
    if not all(_are_equal(one.state, other.state) for other in chosen[1:]):
        raise SeveralFit(f"{file}: the entries {paths} fit equally well")
    others = [summarize_names([other.path or _ROOT]) for other in best if other is not one]
    key = "raw" if one in averages and raws else "average" if averages and one in raws else (*others, "")[0]
    return one, others, key


def _best(candidates: list[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.score == max(other.score for other in candidates)]


def _are_equal(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def _candidates(entry: str, state: State, own: State, body: set[str], convert: Convert) -> list[Candidate]:
    """The parts of a state that fit best, by the longest prefix of their names."""
    state = {_WRAPPERS.sub("", name): tensor for name, tensor in state.items()}
    sizes = Counter[str]()
    for name in state:
        sizes.update(name[:end] for end in (0, *(dot.end() for dot in islice(re.finditer(r"\.", name), _MAX_PREFIX))))
    large = [prefix for prefix, count in sizes.most_common(_MAX_PREFIXES) if 4 * count >= len(body)]
    best = _best([_candidate(entry, prefix, state, own, body, convert) for prefix in large])
    return [one for one in best if not any(other.path.startswith(one.path) for other in best if other is not one)]


def _candidate(entry: str, prefix: str, state: State, own: State, body: set[str], convert: Convert) -> Candidate:
    part, note = convert({name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)})
    outside = {name: one for name, one in state.items() if not name.startswith(prefix) and name not in part}
    layers = {name.rpartition(".")[0] for name in outside}
    for head in (name for name in own if name not in body and name not in part | outside):  # beside the backbone
        ends = [name for name in outside if name.endswith(f".{head}")]
        if len(layers) == 1:
            ends = [name for name in outside if name.rpartition(".")[2] == head.rpartition(".")[2]]
        if len(ends) == 1:
            outside[head] = outside.pop(ends[0])
    names = [name for name in body if name in part]
    shapes = sum(tuple(part[name].shape) == tuple(own[name].shape) for name in names)
    return Candidate(f"{entry}.{prefix}".strip("."), part | outside, (shapes, len(names)), note)


def _resize_positions(
    model: nn.Module, state: State, own: State, image_size: tuple[int, int] | None = None
) -> list[Note]:
    """Resizes position embeddings (1, N, D), and tables of relative positions, by timm's functions.

    image_size: as in `load_pretrained`. As many tokens may have another grid (8 x 2 and 4 x 4), which timm overlooks.
    Tensors that they cannot resize stay unchanged: the check of shapes refuses them.
    """
    for name in [name for name in state if name.endswith(_COMPUTED)]:
        del state[name]
    state.update({name: tensor for name, tensor in own.items() if name.endswith(_COMPUTED)})
    patches: Any = getattr(model, "patch_embed", None)
    grid = list(getattr(patches, "grid_size", None) or ())
    patch = to_2tuple(getattr(patches, "patch_size", 1))
    old_grid = [side // length for side, length in zip(image_size or (), patch, strict=False)]
    resize_table: Any = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    resized, about = [], ""
    for name, target in own.items():
        source = state.get(name)
        if source is None or not name.endswith(_POSITIONS):
            continue
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


def _fit_heads(
    fitted: Fitted, model: nn.Module, state: State, own: State, rows: Sequence[int] | None, other_features: bool
) -> None:
    """Makes the head new if the file has no head of these classes; the rows of new classes are zero."""
    is_other = max(rows or (0,)) < 0
    for head in _head_names(model):
        names = [name for name in own if name.startswith(f"{head}.")]
        in_file = [name for name in names if name in state]
        if rows and not is_other:
            _keep_rows(_output_layers(head, model.get_submodule(head)), state, own, torch.tensor(rows))
        weights = [name for name in in_file if own[name].ndim > 1 and state[name].shape[1:] == own[name].shape[1:]]
        counts = [(len(state[name]), len(own[name])) for name in weights if len(state[name]) != len(own[name])]
        matrices = [name for name in in_file if state[name].ndim == 2 == own[name].ndim]
        if counts:
            fitted.counts, reason = counts[0], NewHead.OTHER_NUMBER
        elif names and not in_file:
            reason = NewHead.NOT_IN_FILE
        elif other_features and not set(matrices) <= set(weights):
            reason = NewHead.OTHER_FEATURES
        elif names and is_other:
            reason = NewHead.NO_KNOWN_CLASS
        else:
            continue
        fitted.new_heads[head] = reason
        layers = _output_layers(head, model.get_submodule(head)) if fitted.zero_heads else []
        state |= {name: _zero_if_in(layers, name, own[name]) for name in names}


def _zero_if_in(layers: list[str], name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Zeros in place of a tensor of the last layer of a new head.

    Its inputs are features that other training has learned. The rows of timm, with a standard deviation of up to 0.4
    (EfficientNet, MobileNet), destroy them in the first steps.
    """
    return torch.zeros_like(tensor) if name.rpartition(".")[0] in layers else tensor


def make_heads_zero(model: nn.Module) -> None:
    """Makes the last layers of the heads zero, as of new heads on a file of weights."""
    heads = _head_names(model)
    layers = [layer for head in heads for layer in _output_layers(head, model.get_submodule(head))]
    for name, tensor in model.state_dict().items():
        tensor.copy_(_zero_if_in(layers, name, tensor))


def _keep_rows(layers: list[str], state: State, own: State, rows: torch.Tensor) -> None:
    """Gives each class its row of the file; the row of a new class, -1, is zero."""
    for name in (f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")):
        source, target = state.get(name), own.get(name)
        if source is not None and target is not None and source.ndim == target.ndim and source.numel():
            is_kept = ((rows >= 0) & (rows < len(source))).view(-1, *[1] * (target.ndim - 1))
            kept = source[rows.clamp(0, len(source) - 1)]
            if kept.shape == target.shape and kept.dtype in _FLOAT_DTYPES:  # else the check of shapes refuses it
                state[name] = torch.where(is_kept, kept.to(target.dtype), 0)


def _output_layers(head: str, module: nn.Module) -> list[str]:
    """The layers whose rows are the classes: the last one in a head, of several heads the last one in each."""
    if isinstance(module, nn.ModuleList):
        return [layer for name, part in module.named_children() for layer in _output_layers(f"{head}.{name}", part)]
    return [name for name, part in module.named_modules(prefix=head) if isinstance(part, nn.Linear | nn.Conv2d)][-1:]


def _head_names(model: nn.Module) -> list[str]:
    """The paths of the modules that timm calls the classifier: 'head', 'fc', 'head.fc', or two if distilled."""
    heads = classifiers(model)
    return [name for name, module in model.named_modules() if any(module is head for head in heads)]


def _check_tensors(file: Path, weights: Weights, state: State, own: State, heads: list[str]) -> State:
    """The tensors of `state` that the model has, cast to the model's dtypes.

    Raises UserError if a tensor is missing, or its shape, dtype or values are wrong; if a part of the model apart from
    `heads`, such as `blocks`, or the input of the blocks, has tensors in `state` that the model lacks.
    """
    parts = {_part(name) for name in own if "." in name} - {_part(head) for head in heads}

    fix = "give weights of this model, or set MODEL to match"
    if weights.architecture:
        fix = f"the file names -model={weights.architecture}"

    def refuse(names: list[str], what: str, remedy: str = fix) -> None:
        if names:
            raise UserError(f"{file}: {what}: {summarize_names(names)}; {remedy}")

    missing = [name for name in own if name not in state]
    if lost := [name for name in missing if any(f".{one}".endswith(f".{name}") for one in weights.lost)]:
        raise UserError(f"{file}: {summarize_names(lost)} is larger than its data in the file; give another file")
    refuse(missing, "missing tensors")
    misfits = [name for name in own if state[name].shape != own[name].shape]
    refuse([f"{name} {_shape(state[name])}, not {_shape(own[name])}" for name in misfits], "wrong shapes")
    parts |= _OF_THE_INPUT if "patch_embed" in parts else set()
    lacks = [name for name in state if name not in own and _part(name) in parts]
    refuse(lacks, "the model has no place for")
    kinds = [name for name in own if own[name].is_floating_point() != (state[name].dtype in _FLOAT_DTYPES)]
    refuse([f"{name} {state[name].dtype}" for name in kinds], "wrong dtypes")
    cast = {name: state[name].to(own[name].dtype) for name in own}
    refuse([name for name in own if not cast[name].isfinite().all()], "NaN or infinite values", "give other weights")
    return cast


def _part(name: str) -> str:
    return name.partition(".")[0]


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
