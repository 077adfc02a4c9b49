"""The values of ops in half precision, beside the values of the same ops in float32.

The images of one batch pass copies of the model, in the precision of a run and in float32, with equal weights and
random numbers. The copies have torch's ops: no fused blocks, compiler and gradient checkpointing, which round as these
ops do. Dropout inside fused attention, whose masks depend on the dtype, is off.
"""

import copy
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from configs.schema import Amp
from datasets.batch import Batch
from engine.precision.non_finite import block_of, float_tensors
from engine.precision.op_lists import CASTS
from engine.precision.policy import Precision
from engine.training.step import TrainState
from models.blocks import Casting, remove_mixins
from models.recompute import Recomputed
from models.tuning import set_training
from utils.seeding import derive_seed, seed_device
from utils.torch_compat import base_of

MAX_IMAGES = 8


class Seen:
    """A float result of an op in a module, the path of which is given, or a weight.

    size: the largest absolute value of the result. largest: the largest finite one of it and of float32 inputs, which
    autocast may cast.
    gradient: the largest absolute value of the gradient of the scaled loss. zeros: where that gradient is zero; empty
    without a gradient.
    """

    def __init__(self, module: str, op: str, result: Tensor, inputs: list[Tensor]) -> None:
        self.module = module
        self.op = op
        self.dtype = result.dtype
        sizes = [_largest(one) for one in (result, *inputs) if one is result or one.dtype == torch.float32]
        self.size = sizes[0]
        self.largest = max(filter(math.isfinite, sizes), default=0.0)
        self.gradient = 0.0
        self.zeros = torch.empty(0, dtype=torch.bool)

    def take_gradient(self, gradient: Tensor) -> None:
        self.gradient = _largest(gradient)
        self.zeros = gradient == 0


def _largest(tensor: Tensor) -> float:
    """The largest absolute value; NaN if there is one."""
    return float(tensor.detach().abs().amax()) if tensor.numel() else 0.0


class Recorder(TorchFunctionMode):
    """Keeps what the ops in the forward pass of `model` return. Random ops draw in float32: masks differ by dtype.

    results: by module, op and number. dtypes: of the inputs, the weights and the outputs of each module. moved: calls
    of the ops that the lists run, by dtype.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.results: dict[tuple[str, str, int], Seen] = {}
        self.dtypes: dict[str, tuple[str, ...]] = {}
        self.moved = Counter[str]()
        self._numbers = Counter[tuple[str, str]]()
        self._paths = [""]
        for path, module in model.named_modules():
            if isinstance(module, nn.Identity):  # models of transformers return attention maps to a hook of theirs
                continue
            module.register_forward_pre_hook(partial(self._enter, path))
            module.register_forward_hook(self._leave)
            if isinstance(module, Casting):
                mode: Any = module.casting_mode
                mode.observer = self._add_moved

    def _enter(self, path: str, *_: Any) -> None:
        self._paths.append(path)

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.dtypes[self._paths.pop()] = tuple(map(_dtypes, (inputs, [*module.parameters()], outputs)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        if func is F.dropout:
            result = func(args[0].float(), *args[1:], **kwargs | {"inplace": False}).to(args[0].dtype)
        elif func is torch.rand and dtype:
            result = func(*args, **kwargs | {"dtype": torch.float32}).to(dtype)
        else:
            result = func(*args, **kwargs)
        self._add(func, (args, kwargs), result)
        return result

    def _add_moved(self, func: Any, inputs: Any, result: Any, dtype: torch.dtype) -> None:
        self.moved[f"{_name(func)} in {str(dtype).removeprefix('torch.')}"] += 1
        self._add(func, inputs, result)

    def _add(self, func: Any, inputs: Any, results: Any) -> None:
        place = self._paths[-1], _name(func)
        tensors = float_tensors(inputs)
        bases = {id(base_of(one)) for one in tensors}
        for result in float_tensors(results):
            self._numbers[place] += 1
            base = base_of(result)
            is_view_of_input = base is not result and id(base) in bases
            if is_view_of_input or "empty" in place[1]:  # which is not initialized
                continue
            seen = self.results[*place, self._numbers[place]] = Seen(*place, result, tensors)
            if result.requires_grad:
                result.register_hook(seen.take_gradient)

    def weights(self) -> list[Seen]:
        """The trained weights, after the backward pass."""
        found = []
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                module, _, own_name = name.rpartition(".")
                found.append(Seen(module, own_name, weight.detach(), []))
                found[-1].take_gradient(weight.grad)
        return found


def _name(func: Any) -> str:
    return str(func.__name__).strip("_")


def _dtypes(tensors: Any) -> str:
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in float_tensors(tensors)}
    return ", ".join(sorted(names)) or "-"


@dataclass(frozen=True)
class Pair:
    """What one op returns in half and in float32, or a weight. In float32 the loss is not scaled.

    lost: values of the gradient, of `values`, that are zero in half and not in float32.
    """

    half: Seen
    exact: Seen

    @property
    def peak(self) -> float:
        """The largest absolute value, from float32 if half overflows."""
        return self.half.largest if math.isfinite(self.half.size) else max(self.half.largest, self.exact.largest)

    @cached_property
    def lost(self) -> int:
        if self.half.zeros.shape != self.exact.zeros.shape:  # one of them has no gradient
            return 0
        return int((self.half.zeros & ~self.exact.zeros).sum())

    @property
    def values(self) -> int:
        return self.half.zeros.numel()


@dataclass(frozen=True)
class Values:
    """The values of a pass. ops: those with a result in half. loss: in float32."""

    precision: Precision
    scale: float
    recorder: Recorder
    ops: list[Pair]
    weights: list[Pair]
    loss: float

    @cached_property
    def groups(self) -> dict[str, list[Pair]]:
        """The ops by block, or part of the model, in the order of the forward pass."""
        groups = defaultdict[str, list[Pair]](list)
        for pair in self.ops:
            groups[block_of(pair.half.module)].append(pair)
        return dict(groups)


def lost_share(pairs: list[Pair]) -> float:
    values = sum(pair.values for pair in pairs)
    return sum(pair.lost for pair in pairs) / values if values else 0.0


class Passes:
    """Passes of images of one batch with the present weights of a training, whose state stays as it is."""

    def __init__(self, state: TrainState, batch: Batch) -> None:
        config = state.config
        weights = state.precision.weights
        self.state = state
        self.model = copy.deepcopy(weights.master)
        for parameter, source in zip(self.model.parameters(), weights.saved.parameters(), strict=True):
            parameter.data = source.detach().to(torch.float32, copy=True)
        remove_mixins(self.model, (Recomputed, *CASTS))
        if config.model.grad_checkpointing is True:
            timm_model: Any = self.model
            timm_model.set_grad_checkpointing(False)
        self._seed()
        images, targets = state.transform(batch)
        self.images = images[:MAX_IMAGES]
        self.targets = targets[:MAX_IMAGES]

    def _seed(self) -> None:
        seed_device(derive_seed(self.state.config.seed, "AMP report"), self.state.context.device)

    def values(self, options: Amp, scale: float) -> Values:
        """The values with these options, in float16 at this loss scale."""
        precision = Precision(options, self.state.context.device)
        scale = scale if precision.scales_loss else 1.0
        half, _ = self._run(precision, scale)
        exact, loss = self._run(Precision(Amp(), precision.device), 1.0)
        results = [(key, seen) for key, seen in half.results.items() if seen.dtype == precision.dtype]
        ops = [Pair(seen, exact.results[key]) for key, seen in results if key in exact.results]
        weights = [Pair(*pair) for pair in zip(half.weights(), exact.weights(), strict=True)]
        return Values(precision, scale, half, ops, weights, loss)

    def _run(self, precision: Precision, scale: float) -> tuple[Recorder, float]:
        config = self.state.config
        model: nn.Module = copy.deepcopy(self.model)
        precision.apply_op_lists(model)
        model = precision.compute_copy(model)
        set_training(model, config.model)
        recorder = Recorder(model)
        self._seed()
        with precision.autocast(), recorder:
            outputs = model(self.images)
        loss: Tensor = self.state.loss(outputs, self.targets, self.images)
        samples = self.state.layout.batch.accumulation * config.data.micro_batch
        loss.backward(torch.full_like(loss, scale / samples))
        return recorder, float(loss.detach())
