"""Finds the weights in a file of any program: the entry, the prefix of the names, the raw weights or their average."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
from timm.models import is_model
from torch import nn

from models.weights.names import Convert, State, body_names, summarize_names
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import StoredTensor
from utils.file_formats.pickles import ArrayRecord, Inert

_MAX_DEPTH, _MAX_PREFIX, _MAX_PREFIXES = 3, 8, 32  # of entries in entries; parts of a prefix; prefixes of an entry
_ROOT = "the file itself"
# Modules that PyTorch puts around parts of a model: torch.compile, FSDP, activation checkpointing
_WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_AVERAGE = re.compile(r"(?:^|[._-])(?:ema|swa|avg|averaged?|shadow)\d*(?:[._-]|$)", re.IGNORECASE)
# States of optimizers, which may have the names and shapes of the model
_OF_OPTIMIZER = re.compile(
    r"(?:^|[._])(?:optim(?:izer)?s?|exp_avg(?:_sq)?|(?:max_)?exp_avg_sqs?|momentum_buffer)(?:$|[._])"
)
# Entries of programs whose `state_dict` is the average, which they evaluate: mmengine, Lightning
_SWAPPED = ({"message_hub", "ema_state_dict"}, {"current_model_state"})
# Two networks of one training, the one that its program uses last: DINO, iBOT and DINOv2; MoCo; MoCo v3; BYOL
_PAIRS = {"student": "teacher", "encoder_k": "encoder_q"}
_PAIRS |= {"momentum_encoder": "base_encoder", "target_encoder": "online_encoder"}


@dataclass(frozen=True)
class Weights:
    """The dicts of tensors in a file, by the dotted path of their entries; '' is the file itself.

    average: of the paths of averages. is_result: the program of the file evaluates the average. is_paddle: in
    PaddlePaddle's layout. content: the entries of the file. lost: tensors whose data are not in the file, as of
    expanded ones.
    """

    states: dict[str, dict[str, Any]]
    average: re.Pattern[str] = _AVERAGE
    is_result: bool = False
    is_paddle: bool = False
    content: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The options of the program that wrote the file: `args` of timm, DeiT, MAE; Lightning's hyperparameters."""
        values = map(self.content.get, ("hyper_parameters", "args"))
        found = [one.entries | one.attributes if isinstance(one, Inert) else one for one in values]
        return {str(key): value for one in found if isinstance(one, dict) for key, value in one.items()}

    @property
    def architecture(self) -> str:
        """The name of timm's model that the file names; '' if it names none."""
        names = (self.content.get("arch"), self.arguments.get("model"), self.arguments.get("arch"))
        return next((name for name in names if isinstance(name, str) and is_model(name)), "")

    @property
    def trained_size(self) -> Any:
        """The size of the training images by the arguments: a number, or [height, width]; None if they lack it."""
        size = self.arguments.get("input_size") or self.arguments.get("img_size")
        return size[-2:] if isinstance(size, list | tuple) else size

    @property
    def size_of_positions(self) -> int | None:
        """The image size of the position embeddings, of a square grid; None if there is none, or several."""
        sizes = set[int]()
        for state in self.states.values():
            for name in (name for name in state if name.endswith("pos_embed")):
                shape, patch = state[name].shape, state.get(f"{name.removesuffix('pos_embed')}patch_embed.proj.weight")
                if patch is not None and len(shape) == 3 and len(patch.shape) == 4 and patch.shape[3] > 1:
                    sizes.add(math.isqrt(shape[1]) * patch.shape[3])
        return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True, eq=False)
class Candidate:
    """Tensors of a file with the names of the model. path: their entry and the prefix of their names in the file."""

    path: str
    state: State
    score: tuple[int, int]
    note: str

    def is_named(self, name: str) -> bool:
        return f".{name}." in f".{self.path or _ROOT}."


def find_states(content: Any, max_array_bytes: int = 0) -> Weights:
    """The dicts with tensors in nested dicts, at most three deep; without tensors that an earlier entry has.

    max_array_bytes: of all numpy arrays; raises ValueError beyond them, as many arrays may share one string.
    """
    states: dict[str, dict[str, Any]] = {}
    found, seen = [("", content, 0)], set[int]()
    for path, value, depth in found:  # grows
        entries = value.entries if isinstance(value, Inert) else value
        if not isinstance(entries, dict) or id(value) in seen:
            continue
        seen.add(id(value))
        records = [one for one in entries.values() if isinstance(one, ArrayRecord)]
        max_array_bytes -= sum(len(one.content) for one in records if isinstance(one.content, bytes | str))
        if records and max_array_bytes < 0:
            raise ValueError("arrays share their data")
        arrays = ((name, _from_numpy(one) if isinstance(one, ArrayRecord) else one) for name, one in entries.items())
        tensors = {str(name): one for name, one in arrays if isinstance(one, torch.Tensor | StoredTensor)}
        tensors = {name: one for name, one in tensors.items() if not _OF_OPTIMIZER.search(name)}
        if tensors:
            states[path] = tensors
        if depth < _MAX_DEPTH:
            inner = [(name, one) for name, one in entries.items() if isinstance(name, str)]
            inner = [(name, one) for name, one in inner if not _OF_OPTIMIZER.search(name)]
            found += [(f"{path}.{name}" if path else name, one, depth + 1) for name, one in inner]
    top = content if isinstance(content, dict) else {}
    if any(names <= top.keys() for names in _SWAPPED):
        return Weights(states, re.compile(r"^state_dict\b"), is_result=True, content=top)
    return Weights(states, is_result=isinstance(top.get("format"), int), content=top)


def _from_numpy(record: ArrayRecord) -> torch.Tensor | None:
    with suppress(Exception), catch_warnings(action="ignore"):  # of many types: the array has no numbers, or is damaged
        return torch.from_numpy(record.array())
    return None


def choose(
    file: Path, weights: Weights, model: nn.Module, convert: Convert, wanted: str | None, evaluates: bool
) -> tuple[Candidate, str]:
    """The candidate that fits the model best, and its description for the log, with the others that fit as well.

    wanted: MODEL.WEIGHTS_ENTRY. evaluates: by default another program's raw weights have priority over their average,
    as in timm's and DeiT's validation; else the average.

    Raises:
        UserError: nothing fits; several fit equally well, or none is `wanted`: the line names the key.
    """
    own, body = model.state_dict(), body_names(model)
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
        if weights.architecture:
            fix = f"give -model={weights.architecture}, which the file names"
        raise UserError(
            f"{file}: contains {summarize_names(largest)}, but {most or 'none'} of this model's {len(body)} tensors "
            f"({summarize_names(own)}); {fix}"
        )
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
        raise UserError(
            f"{file}: has no weights {wanted} (MODEL.WEIGHTS_ENTRY), but {paths}; change the key or remove it"
        )
    one = chosen[0]
    if not all(_are_equal(one.state, other.state) for other in chosen[1:]):
        raise UserError(f"{file}: the entries {paths} fit equally well; choose with -opts MODEL.WEIGHTS_ENTRY=NAME")
    about = f" ({summarize_names([one.path])})" if one.path else ""
    others = [summarize_names([other.path or _ROOT]) for other in best if other is not one]
    key = "raw" if one in averages and raws else "average" if averages and one in raws else (*others, "")[0]
    beside = f"; also there: {', '.join(others)} (MODEL.WEIGHTS_ENTRY={key})" if others else ""
    return one, f"{about}, {len(one.state)} tensors{beside}"


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
    path = f"{entry}.{prefix}".strip(".")
    return Candidate(path, part | outside, (shapes, len(names)), note)
