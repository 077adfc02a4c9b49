"""Loads the weights of a file into a model: position embeddings of another size, heads of other classes."""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from warnings import catch_warnings

import torch
from timm.layers import resample_abs_pos_embed_nhwc, to_2tuple
from timm.models import adapt_input_conv
from torch import Tensor, nn

from configs.schema.model import Model
from configs.schema.section import only
from configs.weights import NPZ
from configs.yaml_io import Values
from models.weights.choose import FINE_TUNE, TEACHER, Purpose, choose
from models.weights.names import State, head_names, summarize_names
from models.weights.read import LOST, WeightsFile, read_weights
from utils.errors import UserError
from utils.notes import Note

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OF_THE_INPUT = {  # of a transformer: without them it computes something else
    "cls_token", "dist_token", "reg_token", "register_tokens", "pos_embed", "absolute_pos_embed", "norm_pre",
}  # fmt: skip
_DEFAULTS = Model()
# As timm's reader of .npz files resizes position embeddings: bilinear, no filter (findings/scipy-zoom.sh)
_GOOGLES = {"interpolation": "bilinear", "antialias": False}
_COMPUTED = ("relative_position_index", "attn_mask", "attention_bias_idxs")  # they follow from the size of the model


class NewHead(Enum):
    """Why a part of the model is new, in words for the log."""

    OTHER_NUMBER = "{} classes in the file, {} in the model"
    NOT_IN_FILE = "no usable one in the file"
    OTHER_FEATURES = "other features in the file"
    OTHER_NORM = "not in the file, whose norm is of all tokens"
    NO_KNOWN_CLASS = "none of the classes in the file"


@dataclass
class Fitted:
    """How initial weights fit a model.

    source: the file, and the entry in it; empty without initial weights. others: as of `Candidate`. remarks: on
    conversions. new_heads: by the name of the part; zero_heads: their last layers are zero. counts: classes in the file
    and in the model. unused: names of tensors in the file.
    """

    source: str = ""
    others: Sequence[str] = ()
    remarks: list[Note] = field(default_factory=list)
    new_heads: dict[str, NewHead] = field(default_factory=dict)
    zero_heads: bool = False
    counts: tuple[int, int] = (0, 0)
    unused: list[str] = field(default_factory=list)

    def list_names(self, text: str, names: Collection[str], kind: Literal["log", "warning"] = "log") -> None:
        """Adds a remark that lists the names, if there are any."""
        if names:
            self.remarks.append(Note(kind, f"{text}: {summarize_names(names)}"))

    def reason(self, name: str) -> str:
        """Why a head is new, in words."""
        return self.new_heads[name].value.format(*self.counts)

    def notes(self) -> list[Note]:
        if not self.source:
            return []
        source = f"weights: {self.source}"
        if self.others:
            source += f"; also there: {', '.join(self.others)} (MODEL.WEIGHTS_ENTRY)"
        head = "new head, of zeros" if self.zero_heads else "new head"
        kinds = {NewHead.OTHER_NORM: "new"}
        texts = [f"{name}: {self.reason(name)}: {kinds.get(kind, head)}" for name, kind in self.new_heads.items()]
        if self.unused:
            texts.append(f"not used: {summarize_names(self.unused, limit=8)}")
        return [Note("log", source), *self.remarks, *(Note("log", text) for text in texts)]

    def check_heads(self, weights: WeightsFile, purpose: Purpose) -> None:
        """Raises UserError if a head is new."""
        for name, kind in self.new_heads.items():
            fix = "train with these weights first, or give weights with this head"
            if kind is NewHead.OTHER_NUMBER and purpose != TEACHER:
                number = self.counts[0]
                fix = f"for its {number} classes add -opts MODEL.NUM_CLASSES={number}, for others train with it first"
                if weights.own_options:
                    fix = "leave out -cfg and MODEL.NUM_CLASSES: the file has its own options"
            raise UserError(f"{weights.file}: cannot be evaluated ({name}: {self.reason(name)}); {fix}")


def load_pretrained(
    model: nn.Module,
    path: str,
    options: Model = _DEFAULTS,
    purpose: Purpose = FINE_TUNE,
    image_size: tuple[int, int] | None = None,
    take: Callable[[State], Any] | None = None,
) -> Fitted:
    """Loads a weight file into `model`, which must have no wrapper. Every tensor of the model must be in the file.

    The file may have other parts, such as the decoder of an autoencoder, but no other tensors of the model's own parts:
    a layer scale or further blocks would change what the model computes.

    Exceptions: position embeddings (1, N, D) of another grid are interpolated, tables of relative positions are
    resized, the first convolution may have 1 or 3 channels, and a head of other classes is new.

    options: of the model, by default a ViT. image_size: height and width of the images of the weights; None if they do
    not state it: position embeddings of another number of tokens are then of a square. take: receives the state dict
    in place of `model`; its tensors stay in the file until they are read.
    Raises UserError: as `read_weights` and `choose`; a tensor that is missing, has no place, another shape or is not
    finite; a new head where the purpose needs one of the file. The model is then unchanged.
    """
    weights = read_weights(path)
    chosen = choose(weights, model, options, purpose)
    entry = f" ({summarize_names([chosen.path])})" if chosen.path else ""
    source = f"{weights.file}{entry}, {len(chosen.state)} tensors"
    fitted = Fitted(source, chosen.others, [*chosen.notes], zero_heads=purpose.zero_head)
    pairs = Pairs(model, chosen.state, fitted)
    pairs.adapt_channels()
    pairs.resize_positions(weights, image_size)
    pairs.keep_computed()
    pairs.resize_tables()
    pairs.fit_norm()
    for head in pairs.heads:
        pairs.fit_head(head, purpose.head_rows, is_pooled=options.features != "pre_logits")
    checked = _check_tensors(weights, pairs, options.name)
    fitted.unused = [name for name in pairs.state if name not in pairs.own]
    if purpose.needs_head:
        fitted.check_heads(weights, purpose)
        hidden = [name for name in fitted.unused if _part(name) == "pre_logits"]  # of ViTs of ImageNet-21k
        text = "the results differ from the weights' own program: this model lacks their layer before the head"
        fitted.list_names(text, hidden, "warning")
    (take or model.load_state_dict)(checked)
    _start_heads(model, fitted.new_heads, purpose)
    return fitted


def fit_published(model: nn.Module, options: Model, purpose: Purpose) -> Fitted:
    """How the weights that timm publishes, and its constructor has loaded, fit `model`.

    Raises UserError: the purpose needs a head of other classes.
    """
    outputs = getattr(model, "pretrained_cfg", {}).get("num_classes")
    if purpose.needs_head and outputs != options.num_logits:
        raise UserError(
            f"{options.name}: timm's weights have {outputs} outputs, not {options.num_logits}; "
            "train with these weights first"
        )
    fitted = Fitted(f"timm's {options.name}", zero_heads=purpose.zero_head)
    if outputs != options.num_logits or options.features == "token_avg":
        reasons = {None: NewHead.NOT_IN_FILE, 0: NewHead.NOT_IN_FILE, options.num_logits: NewHead.OTHER_FEATURES}
        fitted.new_heads["head"] = reasons.get(outputs, NewHead.OTHER_NUMBER)
        fitted.counts = (outputs or 0, options.num_logits)
        _start_heads(model, head_names(model), purpose)
    return fitted


class Pairs:
    """The tensors of a model, and the tensors of a file by the same names.

    own: of the model. state: of the file, with values of the model where a part is new. Tensors that cannot be adapted
    stay unchanged: the check of shapes refuses them.
    """

    def __init__(self, model: nn.Module, state: State, fitted: Fitted) -> None:
        self.model = model
        self.own = model.state_dict()
        self.fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self.heads = head_names(model)
        self.state = dict(state)
        self.fitted = fitted

    def __iter__(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The names that both have, with the tensor of the file and the tensor of the model."""
        for name in [name for name in self.own if name in self.state]:
            yield name, self.state[name], self.own[name]

    def adapt_channels(self) -> None:
        """From RGB to gray and from gray to RGB, by the sum of the channels."""
        for name, source, target in self:
            channels = [tensor.shape[1] for tensor in (source, target) if tensor.ndim == 4]
            if channels == [3, 1]:
                self.state[name] = adapt_input_conv(1, source)
            elif channels == [1, 3]:
                self.state[name] = source.repeat(1, 3, 1, 1) / 3
            else:
                continue
            self.fitted.remarks.append(
                Note("log", f"{name}: from {channels[0]} to {channels[1]} channels, as timm does")
            )

    def keep_computed(self) -> None:
        """Parameters that are never trained keep their values: a formula gives them, such as sines and cosines."""
        self.state = {name: tensor for name, tensor in self.state.items() if not name.endswith(_COMPUTED)}
        for name, tensor in self.own.items():
            if name in self.fixed or name.endswith(_COMPUTED):
                self.state[name] = tensor
            elif name.endswith(".num_batches_tracked"):  # torch before 0.4.1 has none
                self.state.setdefault(name, tensor)

    def resize_positions(self, weights: WeightsFile, image_size: tuple[int, int] | None) -> None:
        """Resizes position embeddings (1, N, D) by timm's functions. image_size: as in `load_pretrained`.

        Raises UserError: MODEL.POS_EMBED is a formula, but not the one of the file.
        """
        if "pos_embed" not in self.own.keys() & self.state.keys():
            return
        source = self.state["pos_embed"]
        target = self.own["pos_embed"]
        patches = getattr(self.model, "patch_embed", None)
        grid = list(getattr(patches, "grid_size", None) or ())
        if source.ndim != 3 or not grid:
            return
        prefix_tokens = target.shape[1] - math.prod(grid)  # class token and others outside the grid
        tokens = source.shape[1] - prefix_tokens
        stated = _grid_of(image_size, patches, tokens)
        likely = grid if source.shape == target.shape else [math.isqrt(max(tokens, 0))] * 2
        old = stated or likely
        if "pos_embed" in self.fixed:
            _check_formula(weights.file, source[0, prefix_tokens:], old, target[0, prefix_tokens:], grid)
        elif old != grid:
            self._resample_positions(old, grid, prefix_tokens, _GOOGLES if weights.kind == NPZ else {})
        elif not stated and grid[0] != grid[1]:
            self.fitted.remarks.append(
                Note("screen", f"positions: the weights state no image size; read as {grid[0]} x {grid[1]} tokens")
            )

    def _resample_positions(self, old: list[int], grid: list[int], prefix_tokens: int, method: Values) -> None:
        """old, grid: height and width of the grid of the file, and of the model. method: arguments of timm's."""
        source = self.state["pos_embed"]
        with suppress(Exception), catch_warnings(action="ignore"):  # of many types, by shape and dtype of the source
            positions = source[:, prefix_tokens:].unflatten(1, old)
            resized = resample_abs_pos_embed_nhwc(positions, grid, **method)  # also to a grid of as many tokens
            found = torch.cat([source[:, :prefix_tokens], resized.flatten(1, 2)], 1)
            self._replace_resized({"pos_embed": found})

    def resize_tables(self) -> None:
        """Resizes tables of relative positions, and embeddings inside of the model, by timm's functions."""
        resize: Any = getattr(sys.modules[type(self.model).__module__], "checkpoint_filter_fn", None)
        left = [name for name, source, target in self if source.shape != target.shape]
        if left:
            with suppress(Exception), catch_warnings(action="ignore"):  # as above
                resized = resize(dict(self.state), self.model)
                self._replace_resized(only(resized, left))

    def _replace_resized(self, found: State) -> None:
        fitting = [name for name in found if found[name].shape == self.own[name].shape]
        shapes = [f"{name} from {_shape(self.state[name])} to {_shape(found[name])}" for name in fitting]
        self.fitted.list_names("positions: resized as timm does", shapes)
        self.state |= {name: found[name] for name in fitting}

    def fit_norm(self) -> None:
        """Weights of a class token, such as MAE's, in a model that averages the patches: its norm is new."""
        new = {name: tensor for name, tensor in self.own.items() if name.startswith("fc_norm.")}
        of_tokens = "norm.weight" in self.state.keys() - self.own.keys()
        if new and of_tokens and new.keys().isdisjoint(self.state):
            self.state |= new
            self.fitted.new_heads["fc_norm"] = NewHead.OTHER_NORM

    def fit_head(self, head: str, rows: Sequence[int], is_pooled: bool) -> None:
        """Gives each class its row of the file, or makes the head new if the file has none of these classes.

        rows: as of `Purpose`. is_pooled: MODEL.FEATURES changes its inputs.
        """
        is_other = max(rows, default=0) < 0
        if rows and not is_other:
            self._select_rows(output_layers(self.model, head), torch.tensor(rows))
        new = {name: tensor for name, tensor in self.own.items() if name.startswith(f"{head}.")}
        shapes = [(source.shape, target.shape) for name, source, target in self if name in new]
        others = [(there, here) for there, here in shapes if there != here and len(there) == len(here) > 1]
        counts = [(there[0], here[0]) for there, here in others if there[1:] == here[1:]]
        self.fitted.counts = [*counts, self.fitted.counts][0]
        inputs = [there[1] == here[1] for there, here in others if len(here) == 2]
        reasons = {
            NewHead.OTHER_NUMBER: counts,
            NewHead.NOT_IN_FILE: not shapes,
            NewHead.OTHER_FEATURES: is_pooled and not all(inputs),
            NewHead.NO_KNOWN_CLASS: is_other,
        }
        if new and any(reasons.values()):
            self.fitted.new_heads[head] = next(filter(reasons.get, reasons))
            self.state |= new

    def _select_rows(self, layers: list[str], rows: Tensor) -> None:
        names = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
        for name, source, target in self:
            if name not in names or source.ndim != target.ndim or not source.numel():
                continue
            kept = source[rows.clamp(0, len(source) - 1)]
            if kept.shape == target.shape and kept.dtype in _FLOAT_DTYPES:
                is_kept = ((rows >= 0) & (rows < len(source))).view(-1, *[1] * (target.ndim - 1))
                self.state[name] = torch.where(is_kept, kept.to(target.dtype), 0)  # of a new class, whose row is -1


def _grid_of(image_size: tuple[int, int] | None, patches: Any, tokens: int) -> list[int]:
    """The height and width in patches of the images of a file; empty if not stated, or not of so many tokens."""
    patch = to_2tuple(getattr(patches, "patch_size", 1))
    grid = [side // length for side, length in zip(image_size or (), patch, strict=False)]
    return grid if math.prod(grid) == tokens else []


def _check_formula(file: Path, theirs: Tensor, old: list[int], ours: Tensor, grid: list[int]) -> None:
    """Compares position embeddings (N, D) where both grids have positions: `old`, of the file, and `grid`.

    Raises UserError: they differ.
    """
    if theirs.shape[1] != ours.shape[1]:  # of another model, as other tensors tell
        return
    rows, columns = map(min, old, grid)
    expected = ours.unflatten(0, grid)[:rows, :columns]
    if math.prod(old) != len(theirs) or not torch.allclose(
        theirs.to(ours.dtype).unflatten(0, old)[:rows, :columns], expected, atol=1e-4
    ):
        raise UserError(
            f"{file}: its positions are not of the formula MODEL.POS_EMBED; give -opts MODEL.POS_EMBED=learned"
        )


def _start_heads(model: nn.Module, heads: Collection[str], purpose: Purpose) -> None:
    """Makes the last layers of new heads zero if the purpose wants that.

    Their inputs are features that other training has learned. The rows of timm, with a standard deviation of up to 0.4
    (EfficientNet, MobileNet), destroy them in the first steps.
    """
    if not purpose.zero_head:
        return
    layers = [layer for head in head_names(model) if head in heads for layer in output_layers(model, head)]
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[0] in layers:
            tensor.zero_()


def output_layers(model: nn.Module, head: str) -> list[str]:
    """The layers whose rows are the classes: the last one of each part of a head that ends with as many outputs.

    A part is a module that holds layers itself, such as both heads of RepViT's classifier, or an item of a list.
    """
    parts = [(name, part) for name, part in model.get_submodule(head).named_modules(prefix=head)]
    layers = {name: part for name, part in parts if isinstance(part, nn.Linear | nn.Conv2d)}
    last = {}
    for name in layers:
        holder = name.rpartition(".")[0]
        is_item = isinstance(model.get_submodule(holder), nn.ModuleList)
        last[name if is_item else holder] = name
    outputs = {name: len(layers[name].weight) for name in last.values()}
    return [name for name in outputs if outputs[name] == [*outputs.values()][-1]]


def _check_tensors(weights: WeightsFile, pairs: Pairs, name: str) -> State:
    """The tensors of the file that the model MODEL.NAME has, finite in the model's dtypes.

    Raises UserError if a tensor is missing, or its shape, dtype or values are wrong; if a part of the model apart from
    its heads, such as `blocks`, or the input of the blocks, has tensors in the file that the model lacks.
    """
    own = pairs.own
    state = pairs.state
    fix = weights.advice(name) or f"give weights of {name}, or set MODEL to match (-model=NAME)"

    def refuse(names: list[str], what: str, remedy: str = fix) -> None:
        if names:
            raise UserError(f"{weights.file}: {what}: {summarize_names(names)}; {remedy}")

    missing = [name for name in own if name not in state]
    lost = [name for name in missing if any(f".{one}".endswith(f".{name}") for one in weights.tensors.lost)]
    if lost:
        raise UserError(LOST.format(weights.file, summarize_names(lost)))
    if set(map(_part, missing)) == {"norm"} and "fc_norm.weight" in state:  # as MAE's do
        fix = f"give -model={name} -opts 'MODEL.KWARGS={{global_pool: avg}}'"
    refuse(missing, "missing tensors", fix)
    misfits = [name for name in own if state[name].shape != own[name].shape]
    refuse([f"{name} {_shape(state[name])}, not {_shape(own[name])}" for name in misfits], "wrong shapes")
    left = _left_over(pairs)
    refuse(left, "the model has no place for")
    kinds = [name for name in own if own[name].is_floating_point() != (state[name].dtype in _FLOAT_DTYPES)]
    refuse([f"{name} {state[name].dtype}" for name in kinds], "wrong dtypes")
    infinite = [name for name in own if not state[name].to(own[name].dtype).isfinite().all()]
    refuse(infinite, "NaN or infinite values", "give other weights")
    return {name: state[name] for name in own}


def _left_over(pairs: Pairs) -> list[str]:
    """The tensors of the file of a part that the model has, apart from heads, or of the input of its blocks."""
    parts = {_part(name) for name in pairs.own if "." in name} - {_part(head) for head in pairs.heads}
    if "patch_embed" in parts:
        parts |= _OF_THE_INPUT
    return [name for name in pairs.state if name not in pairs.own and _part(name) in parts]


def _part(name: str) -> str:
    return name.partition(".")[0]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
