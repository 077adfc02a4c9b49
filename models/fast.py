"""The contract of all fast paths of an evaluation: a model keeps one if its logits of noise stay equal.

A fast path is a claim about a model, which may be a plugin's: no type and no name proves it. Legend: B images, C
channels, S pixels on a side, K outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from models.kernels import AUTO, is_convolutional, plain_attention, to_channels_last
from utils.device import find_shortage
from utils.errors import UserError, first_line, shortened
from utils.seeding import seeded_generator
from utils.torch_compat import hooks_of

ATTENTION = "fused attention"
CHANNELS_LAST = "channels last"
NORMS = "folded batch norms"
_MAX_PASSES = 12  # of a model; each takes as long as two images of the evaluation
_MAX_CHARS = 100  # of a reason

Part = TypeVar("Part")
Undo = Callable[[], None]
Pair = tuple[nn.Conv2d, nn.BatchNorm2d]  # a convolution, and the batch norm that reads its output


def use_fast_paths(
    model: nn.Module,
    names: Sequence[str],
    images: Tensor,
    tolerance: float,
    autocast: Callable[[], torch.autocast],
    forward: nn.Module | None = None,
) -> str:
    """Gives `model`, in evaluation mode, the fast paths `names`, and says which it keeps, and why not the others.

    It keeps those that change no logit by more than `tolerance` of the largest one. Logits that do not vary prove
    nothing. Batch norms that cannot all be folded are folded where it is possible. Buffers and the states of torch's
    generators stay. Ranks may decide differently: their logits are equal enough.

    images: of `noise`. autocast: the context of a pass. forward: a view of the model, whose outputs (B, K) are compared
    in place of the logits.
    Raises only exceptions about memory: with any other one the model steps back.
    """
    texts = []
    with _without_traces(model, images):
        try:
            trial = Proof(forward or model, images, tolerance, autocast)
        except Exception as error:
            return f"no fast paths ({_reason(error)})"
        for name in names:
            find, use = _PATHS[name]
            parts = find(model, trial)
            if not parts:
                continue
            kept = len(trial.keep(parts, use))
            number = f" for {kept} of {len(parts)}" if kept else ""
            texts.append(name if kept == len(parts) else f"{'' if kept else 'no '}{name}{number} ({trial.reason})")
    return ", ".join(texts)


def prepare_convolutions(
    model: nn.Module, option: Literal["auto"] | bool, images: Tensor, is_fixed: bool = False
) -> str:
    """Applies `MODEL.CHANNELS_LAST` to a model that is trained.

    `auto` converts the weights of models with several convolutions, unless a pass then fails: a `view` may need the
    other format. The logits of a new head do not vary, so that they are not compared. images: of `noise`.
    Returns the reason for leaving the weights of such a model as they were, else ''.
    Raises UserError: `option` is True, and the memory format of the weights `is_fixed`: sharded ones, or O3.
    """
    if is_fixed and option is True:
        raise UserError("MODEL.CHANNELS_LAST true: not with sharded weights or AMP.LEVEL O3; use auto")
    if option is True:
        to_channels_last(model)
    if is_fixed or option != AUTO or not is_convolutional(model):
        return ""
    modes = {module: module.training for module in model.modules()}
    undo = to_channels_last(model)
    with _without_traces(model, images):
        try:
            model.eval()(images)
        except Exception as error:
            undo()
            return f"no {CHANNELS_LAST} ({_reason(error)})"
        finally:
            for module, is_training in modes.items():
                module.training = is_training
    return ""


def noise(shape: Sequence[int], device: torch.device) -> Tensor:
    """Two images (2, C, S, S) of fixed noise, as normalized ones. shape: (C, S, S)."""
    return torch.randn(2, *shape, generator=seeded_generator("fast paths")).to(device)


class Proof:
    """The logits of a plain model on noise, with which the logits of the faster one must agree.

    pairs: of the pass. reason: why parts of the last path were not kept.
    Raises ValueError: the logits do not vary.
    """

    def __init__(
        self, forward: nn.Module, images: Tensor, tolerance: float, autocast: Callable[[], torch.autocast]
    ) -> None:
        self._forward = forward
        self._images = images
        self._autocast = autocast
        self._passes = 0
        self.reason = ""
        self.pairs: list[Pair] = []
        source: dict[Tensor, nn.Conv2d] = {}

        def record(layer: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(layer, nn.Conv2d):
                source[output] = layer
            if isinstance(layer, nn.BatchNorm2d) and inputs[0] in source:
                self.pairs.append((source[inputs[0]], layer))

        with register_module_forward_hook(record):
            self._logits = self._run()
        change = self._logits[0] - self._logits[1]
        if len(change) > 1:
            change = change - change.mean()
        largest = self._logits.abs().max()
        variation = change.abs().max()
        if not variation > tolerance * largest:
            raise ValueError("the logits of noise do not vary")
        self._limit = tolerance * min(largest, 100 * variation)  # a large bias of the head hides no difference

    def _run(self) -> Tensor:
        """The logits, float32 (2, K). Copies: a model may write to its images, and to the tensor that it returned."""
        self._passes += 1
        with self._autocast():
            return self._forward(self._images.clone()).float().clone()

    def keep(self, parts: list[Part], use: Callable[[Part], Undo], has_failed: bool = False) -> list[Part]:
        """Uses the parts of a fast path, all or the halves that agree, and so on; returns the used ones.

        use: changes the model by a part, or raises and leaves it; returns the function that undoes it. has_failed: some
        part is known to change the logits.
        """
        if not has_failed and self._agrees(parts, use):
            return parts
        if len(parts) == 1 or self._passes >= _MAX_PASSES:
            return []
        half = len(parts) // 2
        first = self.keep(parts[:half], use)
        return first + self.keep(parts[half:], use, has_failed=len(first) == half)

    def _agrees(self, parts: list[Part], use: Callable[[Part], Undo]) -> bool:
        """Uses the parts, and undoes it if the logits are others."""
        done: list[Undo] = []
        try:
            for part in parts:
                done.append(use(part))
            if (self._run() - self._logits).abs().max() <= self._limit:
                return True
            self.reason = "other logits"
        except Exception as error:
            self.reason = _reason(error)
        for undo in reversed(done):
            undo()
        return False


@contextmanager
def _without_traces(model: nn.Module, images: Tensor) -> Iterator[None]:
    """The context of passes after which buffers and torch's generators, of the device of `images`, are as before."""
    saved = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    with torch.no_grad(), torch.random.fork_rng([images.device] if images.is_cuda else []):
        try:
            yield
        finally:
            for module, name, buffer, values in saved:
                setattr(module, name, buffer)
                if not torch.equal(buffer, values):
                    buffer.copy_(values)


def _reason(error: Exception) -> str:
    """The words about an exception for the log. Raises the exception itself if it is about memory."""
    if find_shortage(error):
        raise error
    return shortened(first_line(error), _MAX_CHARS)


def _fuse(attention: Any) -> Undo:
    attention.fused_attn = True
    return lambda: setattr(attention, "fused_attn", False)


def _fold(pair: Pair) -> Undo:
    """The convolution gets the scale and the shift of its batch norm, which then has its activation alone, if any.

    Raises ValueError: hooks, parametrizations or the batch compute what is folded, in each pass.
    """
    layer, norm = pair
    has_weight = "weight" in dict(layer.named_parameters(recurse=False))
    is_fixed = has_weight and not is_parametrized(layer) and not hooks_of(layer)[1]
    if not is_fixed or norm.running_mean is None or "forward" in vars(norm):
        raise ValueError("weights or statistics are computed in each pass")
    before = layer.weight, layer.bias
    of_norm: Any = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    layer.weight, layer.bias = fuse_conv_bn_weights(*before, *of_norm)
    vars(norm)["forward"] = nn.Sequential(*norm.children()).forward

    def undo() -> None:
        layer.weight, layer.bias = before
        del norm.forward

    return undo


_PATHS: dict[str, tuple[Callable[[nn.Module, Proof], list[Any]], Callable[[Any], Undo]]] = {
    ATTENTION: (lambda model, _: plain_attention(model), _fuse),
    CHANNELS_LAST: (lambda model, _: [model] if is_convolutional(model) else [], to_channels_last),
    NORMS: (lambda _, trial: list(dict.fromkeys(trial.pairs)), _fold),
}
