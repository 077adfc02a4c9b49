"""Which tensors of a file fit a model: an entry, a prefix of the names, raw weights or their average."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import nn

from configs.schema.model import Model
from configs.weights import PADDLE
from models.weights.names import Convert, State, body_names, paddle_to_timm, summarize_names, to_model_names
from models.weights.read import WeightsFile
from utils.errors import UserError
from utils.notes import Note

# parts of a prefix; prefixes of an entry
_MAX_PREFIX = 8
_MAX_PREFIXES = 32
_ROOT = "the file itself"
# Modules that PyTorch puts around parts of a model: torch.compile, FSDP, activation checkpointing
_WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OF_LOSS = re.compile(r"(?:^|[._])(?:loss|criterion)")  # whose weights are of classes
# Two networks of one training, the one that its program uses last: DINO, iBOT and DINOv2; MoCo; MoCo v3; BYOL
_PAIRS = {"student": "teacher", "encoder_k": "encoder_q"}
_PAIRS |= {"momentum_encoder": "base_encoder", "target_encoder": "online_encoder"}


@dataclass(frozen=True)
class Purpose:
    """The use of a model, which decides how it reads weights: one of the four below.

    needs_head: the weights must have a head of the model's classes. prefers_raw: another program's raw weights have
    priority over their average, as in timm's and DeiT's validation.
    head_rows: for each output of a head, its row in the head of the file, or -1 for a new class, whose row is zero;
    without any known class the heads are new. Empty: heads of equal shape are kept.
    zero_head: the last layer of a new head is zero, so that the first steps keep the features of the weights; False
    for an optimizer that never leaves zero.
    """

    needs_head: bool
    prefers_raw: bool
    head_rows: Sequence[int] = ()
    zero_head: bool = True


EVALUATE = Purpose(needs_head=True, prefers_raw=True)
FEATURES = Purpose(needs_head=False, prefers_raw=True)
TEACHER = Purpose(needs_head=True, prefers_raw=False)
FINE_TUNE = Purpose(needs_head=False, prefers_raw=False)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Tensors of a file with the names of the model. path: their entry and the prefix of their names in the file.

    score: the numbers of tensors of the model, without its heads, that it has in the same shape, and in any shape.
    notes: on a conversion, on a head beside the backbone. others: the candidates that fit as well.
    """

    path: str
    state: State
    score: tuple[int, int]
    notes: Sequence[Note]
    others: Sequence[str] = ()

    @property
    def title(self) -> str:
        return self.path or _ROOT

    def equals(self, other: "Candidate") -> bool:
        if self.state.keys() != other.state.keys():
            return False
        return all(torch.equal(tensor, other.state[name]) for name, tensor in self.state.items())

    def is_named(self, name: str) -> bool:
        return f".{name}." in f".{self.title}."


def choose(weights: WeightsFile, model: nn.Module, options: Model, purpose: Purpose) -> Candidate:
    """The candidate that fits best; `options` are of the model.

    Raises UserError: nothing fits; several fit equally well, or none is MODEL.WEIGHTS_ENTRY: the line names the key.
    """
    found = find_candidates(weights, model, options)
    best = _best(found)
    averages = [one for one in best if weights.average.search(one.path)]
    raw = [one for one in best if one not in averages]
    chosen = averages or raw
    if purpose.prefers_raw and not weights.is_result:
        chosen = raw or averages
    if options.weights_entry is not None:
        chosen = _of_entry(options.weights_entry, found, {"raw": raw, "average": averages})
    chosen = _without_second_networks(chosen)
    if not chosen:
        entries = summarize_names([one.title for one in found], limit=6)
        problem = f"has no weights {options.weights_entry} (MODEL.WEIGHTS_ENTRY), but {entries}"
        raise UserError(f"{weights.file}: {problem}; change the key or remove it")
    if not all(map(chosen[0].equals, chosen[1:])):
        entries = summarize_names([one.title for one in chosen], limit=6)
        raise UserError(
            f"{weights.file}: the entries {entries} fit equally well; "
            "choose with -opts MODEL.WEIGHTS_ENTRY=NAME, or give a file with one of them"
        )
    return replace(chosen[0], others=[summarize_names([one.title]) for one in best if one is not chosen[0]])


def _of_entry(entry: str, found: list[Candidate], kinds: Mapping[str, list[Candidate]]) -> list[Candidate]:
    """The candidates of MODEL.WEIGHTS_ENTRY: of a kind, or with a name."""
    if entry in kinds:
        return kinds[entry]
    named = [one for one in found if one.is_named(entry)]
    exact = [one for one in named if one.path == entry]
    return _best(exact or named)


def _without_second_networks(chosen: list[Candidate]) -> list[Candidate]:
    """Of two networks of one training, the candidates of the one that its program uses last."""
    second = {name for name, first in _PAIRS.items() if any(one.is_named(first) for one in chosen)}
    if not all(one.is_named("backbone") for one in chosen):
        second.discard("student")  # which is the result of a distillation
    return [one for one in chosen if not any(map(one.is_named, second))]


def find_candidates(weights: WeightsFile, model: nn.Module, options: Model) -> list[Candidate]:
    """The entries and prefixes that have tensors of the model. Raises UserError: none has a fourth of them."""
    own = model.state_dict()
    body = body_names(model)
    convert = partial(to_model_names, model)
    if weights.kind == PADDLE:
        convert = partial(paddle_to_timm, weights.file, options, model)
    found = []
    for entry, state in weights.tensors.states.items():
        plain = {_WRAPPERS.sub("", name): tensor for name, tensor in state.items()}
        prefixes = [""] if weights.kind == PADDLE else _large_prefixes(plain, len(body) / 4)
        best = _best([_candidate(entry, prefix, plain, own, body, convert) for prefix in prefixes])
        found += [one for one in best if sum(two.path.startswith(one.path) for two in best) == 1]  # the longest prefix
    most = max((one.score[1] for one in found), default=0)
    if 4 * most < len(body):
        largest = max(weights.tensors.states.values(), key=len, default={})
        fix = weights.advice(options.name) or "name the model of the file with -model, or give weights of this model"
        problem = f"contains {summarize_names(largest)}, but {most or 'none'} of this model's {len(body)} tensors"
        of_model = summarize_names(filter(body.__contains__, own))
        raise UserError(f"{weights.file}: {problem} ({of_model}); {fix}")
    return [one for one in found if one.score[1]]


def _best(candidates: list[Candidate]) -> list[Candidate]:
    most = max((one.score for one in candidates), default=(0, 0))
    return [one for one in candidates if one.score == most]


def _large_prefixes(names: State, least: float) -> list[str]:
    """The prefixes that at least `least` names have; '' is one."""
    sizes = Counter[str]()
    for name in names:
        ends = [dot.end() for dot in islice(re.finditer(r"\.", name), _MAX_PREFIX)]
        sizes.update(name[:end] for end in (0, *ends))
    return [prefix for prefix, count in sizes.most_common(_MAX_PREFIXES) if count >= least]


def _candidate(entry: str, prefix: str, state: State, own: State, body: set[str], convert: Convert) -> Candidate:
    inside = [name for name in state if name.startswith(prefix)]
    part, notes = convert({name.removeprefix(prefix): state[name] for name in inside})
    outside = {name: state[name] for name in state if name not in {*inside, *part} and not _OF_LOSS.search(name)}
    _take_heads_behind_dropout(part, own.keys() - body)
    notes = [*notes, *_take_heads_beside(part, outside, own, body)]
    names = body & part.keys()
    shapes = sum(part[name].shape == own[name].shape for name in names)
    return Candidate(f"{entry}.{prefix}".strip("."), part | outside, (shapes, len(names)), notes)


def _take_heads_behind_dropout(part: State, heads: Collection[str]) -> None:
    """Renames `fc.1.weight` of nn.Sequential(Dropout, Linear) to `fc.weight`. heads: names of the model's."""
    for path in {name.rpartition(".")[0] for name in heads if name not in part}:
        layers = [name for name in part if name.startswith(f"{path}.")]
        if len({name.rpartition(".")[0] for name in layers}) == 1:
            for name in layers:
                part[f"{path}.{name.rpartition('.')[2]}"] = part.pop(name)


def _take_heads_beside(part: State, outside: State, own: State, body: set[str]) -> list[Note]:
    """Renames tensors `outside` of the backbone that are the model's head, and says so.

    A head named class_head is LightlyTrain's, on features of its own: the one of the backbone goes.
    """
    notes = []
    known = {*body, *part, *outside}
    layers = {name.rpartition(".")[0] for name in outside}
    own_heads = part.keys() & own.keys() - body
    is_single = len(layers) == 1
    if own_heads and is_single and min(layers).endswith("class_head"):
        for name in own_heads:
            del part[name]
        notes.append(Note("screen", f"head: not read, as the backbone has one, and {min(layers)} is another one"))
    for head in [name for name in own if name not in known]:
        end = head.rpartition(".")[2] if is_single else head
        ends = [name for name in outside if f".{name}".endswith(f".{end}")]
        if len(ends) != 1:
            continue
        outside[head] = outside.pop(ends[0])
        if head.endswith(".weight"):
            of = ends[0].rpartition(".")[0]
            notes.append(Note("screen", f"head: {of}, beside the backbone; its input is this model's (global_pool)"))
    return notes
