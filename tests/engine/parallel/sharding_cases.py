"""Functions that the ranks of test_sharding.py call: training as DDP and sharded, and the differences."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from conftest import GREY, TINY_VIT, config_for, seeded
from torch import Tensor, nn

from configs.batch_plan import EpochLayout, plan_batches
from configs.resolve import Facts, follow_facts
from datasets.batch import Batch
from engine.checkpoint.files import find_checkpoint
from engine.checkpoint.run_folder import FORMAT
from engine.progress import EpochProgress, MetricSums, TrainClock
from engine.run.log import RunLogger
from engine.training.snapshot import RunPosition, restore, take_snapshot
from engine.training.step import TrainState, train_steps
from engine.training.trial import state_without_data
from models.blocks import local_tensor
from utils.distributed import ProcessContext
from utils.files import atomic_save

BATCH = 4
BASE = [
    *TINY_VIT, *GREY, "DATA.BATCH_SIZE=4", "TRAIN.BASE_LR=1e-3", "TRAIN.LINEAR_SCALED_LR=null", "TRAIN.WARMUP_EPOCHS=0",
    "TRAIN.OPTIMIZER.EPS=1e-4",  # gradients that are zero but for rounding do not count
]  # fmt: skip
FSDP = ["PARALLEL.STRATEGY=fsdp"]


def build(options: list[str], context: ProcessContext, base: Sequence[str] = BASE) -> TrainState:
    config = follow_facts(config_for("-opts", *base, *options), Facts(context.world_size))
    layout = EpochLayout(1000, plan_batches(config, context.world_size), config.seed)
    return state_without_data(config, context, layout)


def batches(context: ProcessContext, size: int = 8, channels: int = 1):
    generator = seeded(context.rank)
    while True:
        images = torch.randint(0, 256, (BATCH, channels, size, size), dtype=torch.uint8, generator=generator)
        yield Batch(images, torch.randint(0, 10, (BATCH,), generator=generator), BATCH)


def train(state: TrainState, context: ProcessContext, steps: int = 5, data: Any = None) -> list[float]:
    """Returns the gradient norm of each step."""
    progress = EpochProgress(0, 10**6, 10**6, MetricSums(context.device))
    norms = []
    step = state.precision.step

    def recorded(*arguments: Any) -> Tensor:
        norms.append(step(*arguments))
        return norms[-1]

    state.precision.step = recorded
    train_steps(state, data or batches(context), progress, steps, lambda progress: None)
    state.precision.step = step
    return [norm.item() for norm in norms]


def whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value.full_tensor().clone() if hasattr(value, "full_tensor") else copy.deepcopy(value)


def weights(state: TrainState) -> dict[str, Tensor]:
    """Whole weights of the model and of its average."""
    found = dict(whole(state.precision.weights.saved.state_dict()))
    if state.average:
        average = whole(state.average.module.state_dict())
        found |= {f"average.{name}": value for name, value in average.items()}
    return found


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def against_ddp(context: ProcessContext, options: list[str], sharded: list[str] = FSDP, steps: int = 5) -> dict:
    """The largest differences of weights, and of gradient norms, after the training; and how far it moved."""
    results = []
    for strategy in ([], sharded):
        state = build([*options, *strategy], context)
        start = weights(state)
        norms = train(state, context, steps)
        results.append((weights(state), norms, state.precision.scaler.skipped))
    (ddp, norms, skipped), (fsdp, sharded_norms, sharded_skipped) = results
    return {
        "weights": difference(ddp, fsdp),
        "moved": difference(ddp, start),
        "norms": max(relative(*pair) for pair in zip(norms, sharded_norms, strict=True)),
        "skipped": [skipped, sharded_skipped],
    }


def relative(one: float, other: float) -> float:
    """Two values that are not finite are equal."""
    return abs(one - other) / one if math.isfinite(one) else float(math.isfinite(other))


def non_finite(context: ProcessContext) -> Any:
    """One rank has an infinite activation in step 3: no rank changes a weight in it."""
    results = []
    for strategy in ([], FSDP):
        state = build(["TRAIN.GRAD_CLIP=0.5", "TRAIN.MODEL_EMA=true", *strategy], context)
        train(state, context, steps=3)
        before = weights(state)
        block = state.precision.weights.compute.blocks[1]
        if context.rank == 1:
            handle = block.register_forward_hook(lambda module, inputs, output: output * math.inf)
        train(state, context, steps=1)
        if context.rank == 1:
            handle.remove()
        unchanged = difference(before, weights(state))
        train(state, context, steps=3)
        results.append((weights(state), unchanged, state.precision.scaler.skipped))
    (ddp, *_), (fsdp, unchanged, skipped) = results
    return {"unchanged": unchanged, "skipped": skipped, "weights": difference(ddp, fsdp)}


def o2_dtypes(context: ProcessContext) -> Any:
    """The dtypes of the parameters in the forward pass, and between steps."""
    state = build(["AMP.ENABLED=true", "AMP.LEVEL=O2", *FSDP], context)
    model = state.precision.weights.compute
    seen = {}

    def see(path: str, module: nn.Module, *rest: Any):
        seen[path] = str(next(module.parameters(recurse=False)).dtype)

    for path, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(partial(see, path))
    train(state, context, steps=1)
    return {"passes": seen, "kept": sorted({str(parameter.dtype) for parameter in model.parameters()})}


def hsdp(context: ProcessContext) -> Any:
    """Groups of two ranks, and of one, the only one of its host."""
    options = ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.5"]
    sharded = ["PARALLEL.STRATEGY=hsdp"]
    alone = replace(context, local_world_size=1)
    pairs = [*sharded, "PARALLEL.SHARDS_PER_GROUP=2"]
    return [against_ddp(context, options, pairs), against_ddp(alone, options, sharded)]


def memory(context: ProcessContext) -> Any:
    """Bytes per rank: parameters, gradients, moments, average; of DDP and sharded."""
    results = []
    for strategy in ([], FSDP):
        state = build(["TRAIN.MODEL_EMA=true", *strategy], context)
        model = state.precision.weights.master
        gradients = []
        step = state.precision.step

        def measured(*arguments: Any, model: Any = model, gradients: Any = gradients, step: Any = step) -> Tensor:
            gradients.append(num_bytes(parameter.grad for parameter in model.parameters()))
            return step(*arguments)

        state.precision.step = measured
        train(state, context, steps=1)
        states = state.optimizer.state.values()
        moments = [value for values in states for name, value in values.items() if name != "step"]
        average = num_bytes(state.average.module.parameters())
        results.append([num_bytes(model.parameters()), *gradients, num_bytes(moments), average])
    return results


def num_bytes(tensors: Any) -> int:
    return sum(local_tensor(tensor).numel() * tensor.element_size() for tensor in tensors)


def evaluation(context: ProcessContext) -> Any:
    """Logits of the average, and of the raw weights, before and after more training."""
    images = torch.randn(4, 1, 8, 8, generator=seeded(0))
    results = []
    for strategy in ([], FSDP, [*FSDP, "PARALLEL.RESHARD_AFTER_FORWARD=false"]):
        state = build(["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.5", *strategy], context)
        data = batches(context)
        logits = []
        for _ in range(2):
            train(state, context, 2, data)
            for model in (state.eval_model, state.precision.weights.compute):
                with state.strategy.evaluation(model):
                    logits.append(model.eval()(images).clone())
        results.append(torch.stack(logits))
    return [float((result - results[0]).abs().max()) for result in results[1:]]


def resumed(context: ProcessContext, options: list[str], path: Path) -> Any:
    """Two states after the same steps: one was saved and restored before them.

    A sharded run trains on before its checkpoint is written. Of DDP, the writer makes the copy.
    """
    found = []
    for is_restored in (False, True):
        state = build([*options, "TRAIN.NUM_EPOCHS=9"], context)
        if is_restored:
            restore(state, RunLogger(context), find_checkpoint(str(path), context))
        else:
            train(state, context, steps=3)
            position = RunPosition(state.config, state.horizon, state.new_progress(0), TrainClock(time.monotonic()))
            content = take_snapshot(state, position, None, None)
            content = content if state.strategy.is_sharded else copy.deepcopy(content)
        train(state, context, steps=2)
        if not is_restored and context.is_main:
            atomic_save(path, {"format": FORMAT} | content)
        parts = state.optimizer.state_dict(), state.precision.state_dict()
        found.append([weights(state), *map(whole, parts)])
    return found
