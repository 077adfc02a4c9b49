"""Which tensors of a file fit a model: an entry, a prefix of the names, raw weights or their average."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import nn

from configs.schema.model import Model
from models.weights.names import Convert, State, body_names, paddle_to_timm, summarize_names, to_model_names
from models.weights.read import Weights
from utils.errors import UserError
from utils.notes import Note

_MAX_PREFIX, _MAX_PREFIXES = 8, 32  # parts of a prefix; prefixes of an entry
_ROOT = "the file itself"
# Modules that PyTorch puts around parts of a model: torch.compile, FSDP, activation checkpointing
_WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Two networks of one training, the one that its program uses last: DINO, iBOT and DINOv2; MoCo; MoCo v3; BYOL
_PAIRS = {"student": "teacher", "encoder_k": "encoder_q"}
_PAIRS |= {"momentum_encoder": "base_encoder", "target_encoder": "online_encoder"}


@dataclass(frozen=True)
class Purpose:
    """The use of a model, which decides how it reads weights: one of the four below.

    needs_head: the weights must have a head of the model's classes. prefers_raw: another program's raw weights have
    priority over their average, as in timm's and DeiT's validation.
    head_rows: for each output of a head, its row in the head of the file, or -1 for a new class, whose row is zero;
    without any known class the heads are new. None: heads of equal shape are kept.
    zero_head: the last layer of a new head is zero, so that the first steps keep the features of the weights; False
    for an optimizer that never leaves zero.
    """

    needs_head: bool
    prefers_raw: bool
    head_rows: Sequence[int] | None = None
    zero_head: bool = True


EVALUATE = Purpose(needs_head=True, prefers_raw=True)
FEATURES = Purpose(needs_head=False, prefers_raw=True)
TEACHER = Purpose(needs_head=True, prefers_raw=False)
FINE_TUNE = Purpose(needs_head=False, prefers_raw=False)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Tensors of a file with the names of the model. path: their entry and the prefix of their names in the file.

    score: the numbers of tensors of the model, without its heads, that it has in the same shape, and in any shape.
    note: on a conversion. others: the candidates that fit as well; other_key: MODEL.WEIGHTS_ENTRY of another one.
    """

    path: str
    state: State
    score: tuple[int, int]
    note: Note | None
    others: Sequence[str] = ()
    other_key: str = ""

    def is_named(self, name: str) -> bool:
        return f".{name}." in f".{self.path or _ROOT}."


def choose(weights: Weights, model: nn.Module, options: Model, purpose: Purpose) -> Candidate:
    """The candidate that fits best; `options` are of the model.

    Raises UserError: nothing fits; several fit equally well, or none is MODEL.WEIGHTS_ENTRY: the line names the key.
    """
    own, body, wanted = model.state_dict(), body_names(model), options.weights_entry
    convert: Convert = partial(to_model_names, model)
    if weights.is_paddle:
        convert = partial(paddle_to_timm, weights.file, options, model)
    file, found = weights.file, list[Candidate]()
    for entry, state in weights.states.items():
        plain = {_WRAPPERS.sub("", name): tensor for name, tensor in state.items()}
        prefixes = [""] if weights.is_paddle else _large_prefixes(plain, len(body) / 4)
        best = _best([_candidate(entry, prefix, plain, own, body, convert) for prefix in prefixes])
        found += [one for one in best if not any(two.path.startswith(one.path) for two in best if two is not one)]
    most = max((one.score[1] for one in found), default=0)
    if 4 * most < len(body):
        largest = max(weights.states.values(), key=len, default={})
        fix = weights.advice(options.name) or "give weights of this model with timm's names"
        text = f"{file}: contains {summarize_names(largest)}, but {most or 'none'} of this model's {len(body)} tensors"
        raise UserError(f"{text} ({summarize_names(filter(body.__contains__, own))}); {fix}")
    found = [one for one in found if one.score[1]]
    best = _best(found)
    averages = [one for one in best if weights.average.search(one.path)]
    raws = [one for one in best if one not in averages]
    if wanted in (None, "raw", "average"):
        takes_average = wanted == "average" if wanted else weights.is_result or not purpose.prefers_raw
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
    for state in (other.state for other in chosen[1:]):
        if state.keys() != one.state.keys() or not all(torch.equal(state[name], one.state[name]) for name in state):
            of_teacher = "give a file with one of them"  # the key is the student's
            fix = of_teacher if purpose == TEACHER else "choose with -opts MODEL.WEIGHTS_ENTRY=NAME"
            raise UserError(f"{file}: the entries {paths} fit equally well; {fix}")
    others = [summarize_names([other.path or _ROOT]) for other in best if other is not one]
    key = "raw" if one in averages and raws else "average" if averages and one in raws else (*others, "")[0]
    return replace(one, others=others, other_key=key)


def _best(candidates: list[Candidate]) -> list[Candidate]:
    return [one for one in candidates if one.score == max(other.score for other in candidates)]


def _large_prefixes(names: State, least: float) -> list[str]:
    """The prefixes that at least `least` names have; '' is one."""
    sizes = Counter[str]()
    for name in names:
        sizes.update(name[:end] for end in (0, *(dot.end() for dot in islice(re.finditer(r"\.", name), _MAX_PREFIX))))
    return [prefix for prefix, count in sizes.most_common(_MAX_PREFIXES) if count >= least]


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
