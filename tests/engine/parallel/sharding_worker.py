"""One rank of test_sharding.py: trains as DDP and sharded, and prints the differences.

python sharding_worker.py RANKS CASES    CASES: names of functions of this file, separated by commas
"""

import copy
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if detect_launcher():
    exit_with_launcher()

import pytest
import torch
from conftest import GREY, TINY_VIT
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from configs.reading.command_line import parse_command_line
from configs.resolve import resolve
from configs.schema import Parallel
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.parallel.build import build_strategy
from engine.parallel.strategy import Sharding, Strategy
from engine.precision.non_finite import first_non_finite
from engine.precision.norms import keeps_fp32_weights
from engine.progress import EpochProgress
from engine.training.build import build_train_state
from engine.training.optimization.optimizer import SHARDED_OPTIMIZERS
from engine.training.state import TrainState
from engine.training.step import train_steps
from utils.distributed import ProcessContext, gather_objects, process_group, set_collective_timeout
from utils.errors import UserError
from utils.metrics import MetricSums
from utils.sharded import local_tensor
from utils.torch_compat import process_group_timeout

BATCH = 4
BASE = [
    *TINY_VIT, *GREY, "DATA.BATCH_SIZE=4", "TRAIN.BASE_LR=1e-3", "TRAIN.LINEAR_SCALED_LR=null", "TRAIN.WARMUP_EPOCHS=0",
    "TRAIN.OPTIMIZER.EPS=1e-4",  # gradients that are zero but for rounding do not count
]  # fmt: skip
FSDP = ["PARALLEL.STRATEGY=fsdp"]


def build(options: list[str], context: ProcessContext) -> TrainState:
    config = resolve(parse_command_line(["-opts", *BASE, *options]).config, None, context.world_size)
    layout = EpochLayout(1000, config.data.batch_size * context.world_size, config.train.accum_iter, config.seed)
    return build_train_state(config, context, layout)[0]


def batches(context: ProcessContext, size: int = 8, channels: int = 1):
    generator = torch.Generator().manual_seed(context.rank)
    while True:
        images = torch.randint(0, 256, (BATCH, channels, size, size), dtype=torch.uint8, generator=generator)
        yield Batch(images, torch.randint(0, 10, (BATCH,), generator=generator), BATCH)


def train(state: TrainState, context: ProcessContext, steps: int = 5, data: Any = None) -> list[float]:
    """Returns the gradient norm of each step."""
    progress, norms = EpochProgress(0, 10**6, 10**6, MetricSums(context.device)), []
    step = state.precision.step

    def recorded(*arguments: Any) -> torch.Tensor:
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


def weights(state: TrainState) -> dict[str, torch.Tensor]:
    """Those of the model and of the average, whole."""
    found = dict(whole(state.strategy.model_state(state.precision.weights.saved)))
    if state.average:
        average = whole(state.strategy.model_state(state.average.module))
        found |= {f"average.{name}": value for name, value in average.items()}
    return found


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def against_ddp(options: list[str], context: ProcessContext, sharded: list[str] = FSDP, **how: Any) -> dict[str, float]:
    """The largest differences of weights, and of gradient norms, after the training; and how far it moved."""
    results = []
    for strategy in ([], sharded):
        state = build([*options, *strategy], context)
        start = weights(state)
        norms = train(state, context, **how)
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


def fp32(context: ProcessContext) -> Any:
    options = ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.5", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"]
    return against_ddp(options, context, steps=20)


def non_finite(context: ProcessContext) -> Any:
    """One rank has an infinite activation in step 3: nobody changes a weight in it."""
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


def bf16(context: ProcessContext) -> Any:
    return against_ddp(["AMP.ENABLED=true", "TRAIN.GRAD_CLIP=0.5"], context)


def op_lists(context: ProcessContext) -> Any:
    lists = ["AMP.CUSTOM_BLACK_LIST=[add, gelu, cat, blocks.1.*]", "AMP.CUSTOM_WHITE_LIST=[layer_norm]"]
    return against_ddp(["AMP.ENABLED=true", "MODEL.GRAD_CHECKPOINTING=true", *lists], context)


def o2(context: ProcessContext) -> Any:
    options = ["AMP.ENABLED=true", "AMP.LEVEL=O2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"]
    return against_ddp(options, context)


def o2_dtypes(context: ProcessContext) -> Any:
    """The dtypes of the parameters that the passes use, and of those that persist."""
    state = build(["AMP.ENABLED=true", "AMP.LEVEL=O2", *FSDP], context)
    model, seen = state.precision.weights.compute, {}

    def see(path: str, module: nn.Module, *rest: Any) -> None:
        seen[path] = str(next(module.parameters(recurse=False)).dtype)

    for path, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(partial(see, path))
    train(state, context, steps=1)
    return {"passes": seen, "kept": sorted({str(parameter.dtype) for parameter in model.parameters()})}


def fp16_fused(context: ProcessContext) -> Any:
    scale = ["AMP.INIT_LOSS_SCALING=1e6", "AMP.INCR_EVERY_N_STEPS=1"]
    return against_ddp(["AMP.ENABLED=true", "AMP.DTYPE=float16", "TRAIN.GRAD_CLIP=0.5", *scale], context)


def fp16_unfused(context: ProcessContext) -> Any:
    scale = ["AMP.INIT_LOSS_SCALING=1e6", "AMP.INCR_EVERY_N_STEPS=1"]
    options = ["AMP.ENABLED=true", "AMP.DTYPE=float16", "TRAIN.GRAD_CLIP=0.5", *scale, "TRAIN.OPTIMIZER.NAME=lamb"]
    return against_ddp(options, context)


def hsdp(context: ProcessContext) -> Any:
    """Groups of two ranks, and of one, the only one of its host."""
    options, sharded = ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.5"], ["PARALLEL.STRATEGY=hsdp"]
    alone = replace(context, local_world_size=1)
    pairs = [*sharded, "PARALLEL.SHARDS_PER_GROUP=2"]
    return [against_ddp(options, context, pairs), against_ddp(options, alone, sharded)]


def timeouts(context: ProcessContext) -> Any:
    """Seconds, of the groups of each mesh."""
    set_collective_timeout(context, 77)
    found, options = [], parse_command_line(["-opts", "PARALLEL.STRATEGY=hsdp"]).config.parallel
    for shards in (1, 2):
        mesh = build_strategy(options, replace(context, local_world_size=shards)).mesh
        found += [process_group_timeout(context.device, group).seconds for group in mesh.get_all_groups()]
    return found


def offload(context: ProcessContext) -> Any:
    """Parameters, gradients, moments and average in host memory, against the same run without OFFLOAD."""
    options = ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.5", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"]
    found = []
    for more in ([], ["AMP.ENABLED=true", "AMP.DTYPE=float16"], ["AMP.ENABLED=true", "AMP.LEVEL=O2"]):
        results = []
        for offloads in (False, True):
            with offload_on_a_cpu() if offloads else nullcontext():
                state = build([*FSDP, *options, *more], context)
            norms = train(state, context)
            results.append((weights(state), norms))
        found.append([difference(results[0][0], results[1][0]), results[0][1] == results[1][1]])
    return found


@contextmanager
def offload_on_a_cpu() -> Iterator[None]:
    """Makes PARALLEL.OFFLOAD work without a GPU: the check, and pinned memory, which needs one, are left out."""

    def offloading(options: Parallel, context: ProcessContext) -> Strategy:
        strategy = build_strategy(options, context)
        strategy.options = options.model_copy(update={"offload": True})
        return strategy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.training.build.build_strategy", offloading)
        patch.setattr("engine.parallel.fsdp.CPUOffloadPolicy", partial(CPUOffloadPolicy, pin_memory=False))
        yield


def half_sums(context: ProcessContext) -> Any:
    return against_ddp([], context, [*FSDP, "PARALLEL.REDUCE_DTYPE=bfloat16"])


def frozen(context: ProcessContext) -> Any:
    return against_ddp(["MODEL.FREEZE_BACKBONE=true", "AMP.ENABLED=true"], context)


def keeps_gathered(context: ProcessContext) -> Any:
    options = ["MODEL.GRAD_CHECKPOINTING=true", "TRAIN.LAYER_DECAY=0.7", "MODEL.ATTENTION=fused"]
    return against_ddp(options, context, [*FSDP, "PARALLEL.RESHARD_AFTER_FORWARD=false"])


def measured_step(step: Callable, sizes: list[int], optimizer: torch.optim.Optimizer, *rest: Any) -> torch.Tensor:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sizes.append(num_bytes(parameter.grad for parameter in parameters))
    return step(optimizer, *rest)


def optimizers(context: ProcessContext) -> Any:
    found = {}
    for name in sorted(SHARDED_OPTIMIZERS):
        options = [f"TRAIN.OPTIMIZER.NAME={name}", "TRAIN.GRAD_CLIP=0.5", "TRAIN.LAYER_DECAY=0.8"]
        found[name] = against_ddp(options, context, steps=4)
    return found


def memory(context: ProcessContext) -> Any:
    """Bytes per rank: parameters, gradients, moments, average; of DDP and sharded."""
    results = []
    for strategy in ([], FSDP):
        state = build(["TRAIN.MODEL_EMA=true", *strategy], context)
        gradients: list[int] = []
        state.precision.step = partial(measured_step, state.precision.step, gradients)
        train(state, context, steps=1)
        states = state.optimizer.state.values()
        moments = [value for values in states for name, value in values.items() if name != "step"]
        model, average = state.precision.weights.master, state.average.module
        parts = [num_bytes(model.parameters()), *gradients, num_bytes(moments), num_bytes(average.parameters())]
        results.append(parts)
    return results


def num_bytes(tensors: Any) -> int:
    return sum(local_tensor(tensor).numel() * tensor.element_size() for tensor in tensors)


def resumed(context: ProcessContext) -> Any:
    """Three steps, the state, three more: sharded from sharded, sharded from DDP, DDP from sharded."""
    options, report = ["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"], {}
    names = {"ddp": [], "fsdp": FSDP}
    saved, ends = {}, {}
    for name, strategy in names.items():
        state, data = build([*options, *strategy], context), batches(context)
        train(state, context, 3, data)
        taken = [
            state.strategy.model_state(state.precision.weights.saved),
            state.strategy.model_state(state.average.module),
            state.strategy.optimizer_state(state.optimizer),
        ]
        saved[name] = whole(taken[0]), whole(taken[1]), whole(taken[2])
        if name == "fsdp":
            saved["shards"] = copy.deepcopy(taken)
        train(state, context, 3, data)
        ends[name] = weights(state)
    for source, target in (("shards", "fsdp"), ("fsdp", "fsdp"), ("ddp", "fsdp"), ("fsdp", "ddp")):
        state, data = build(["SEED=7", *options, *names[target]], context), batches(context)
        model, average, optimizer = saved[source]
        state.strategy.load_model_state(state.precision.weights.saved, model)
        state.strategy.load_model_state(state.average.module, average)
        state.strategy.load_optimizer_state(state.optimizer, copy.deepcopy(optimizer))
        for _ in range(3):
            next(data)
        train(state, context, 3, data)
        report[f"{source} to {target}"] = difference(weights(state), ends["fsdp" if source == "shards" else source])
    return report


def evaluation(context: ProcessContext) -> Any:
    """Logits of the average, and of the raw weights, before and after more training."""
    images, results = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), []
    for strategy in ([], FSDP, [*FSDP, "PARALLEL.RESHARD_AFTER_FORWARD=false"]):
        state = build(["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.5", *strategy], context)
        data, logits = batches(context), []
        for _ in range(2):
            train(state, context, 2, data)
            for model in (state.eval_model, state.precision.weights.compute):
                with state.strategy.evaluation(model):
                    logits.append(model.eval()(images).clone())
        results.append(torch.stack(logits))
    return [float((result - results[0]).abs().max()) for result in results[1:]]


def origin(context: ProcessContext) -> Any:
    """A weight's gradient overflows on rank 1 alone; all ranks search."""
    config = parse_command_line(["-opts", *FSDP]).config
    strategy = build_strategy(config.parallel, context)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    strategy.shard(model, None, Sharding(None, keeps_fp32_weights))
    images = torch.ones(2, 4) * (1e10 if context.rank == 1 else 1.0)
    found = first_non_finite(model, lambda: (model(images) * 1e30).sum().backward(), strategy.gather_in_turn(model))
    return found and str(found)


class SharingBlocks(nn.Module):
    """Lists of blocks in a list, as in Twins; two blocks have the same module, as in CoaT."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        blocks = (nn.Sequential(nn.Linear(4, 4), other) for other in (shared, nn.GELU(), shared))
        self.blocks = nn.ModuleList([nn.ModuleList(blocks), nn.ModuleList([nn.Linear(4, 4)])])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in (block for stage in self.blocks for block in stage):
            images = block(images)
        return images


def shared_modules(context: ProcessContext) -> Any:
    """The number of units, and the largest difference of a gradient from that of the whole model."""
    config = parse_command_line(["-opts", *FSDP]).config
    torch.manual_seed(0)
    plain, images = SharingBlocks(), torch.ones(2, 4)
    sharded = copy.deepcopy(plain)
    about = build_strategy(config.parallel, context).shard(sharded, None, Sharding(None, keeps_fp32_weights))
    for model in (plain, sharded):
        model(images).square().sum().backward()
    gradients = [
        {name: whole(parameter.grad) for name, parameter in model.named_parameters()} for model in (plain, sharded)
    ]
    return about.partition(" units")[0], difference(*gradients)


def refused(context: ProcessContext) -> Any:
    """The error of each list of options."""
    cases = {
        "O3": ["AMP.ENABLED=true", "AMP.LEVEL=O3"],
        "optimizer": ["TRAIN.OPTIMIZER.NAME=muon"],
        "average": ["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_FORCE_CPU=true"],
        "offload": ["PARALLEL.OFFLOAD=true"],
        "groups": ["PARALLEL.STRATEGY=hsdp", "PARALLEL.SHARDS_PER_GROUP=3"],
    }
    errors = {}
    for name, options in cases.items():
        try:
            build([*FSDP, *options], context)
        except UserError as error:
            errors[name] = str(error)
    try:
        strategy = build_strategy(parse_command_line(["-opts", *FSDP]).config.parallel, context)
        strategy.shard(nn.Sequential(nn.BatchNorm1d(2)), None, Sharding(None, keeps_fp32_weights))
    except UserError as error:
        errors["batch norm"] = str(error)
    return errors


CASES: dict[str, Callable[[ProcessContext], Any]] = {
    name: function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__annotations__", {}) == {"context": ProcessContext, "return": Any}
}


def main(cases: list[str]) -> int:
    with process_group() as context:
        report = {name: CASES[name](context) for name in cases}
        reports = gather_objects(report, context)
        if context.is_main:
            os.write(1, (json.dumps(reports) + "\n").encode())
    return 0


if __name__ == "__main__":
    ranks, cases = sys.argv[1:]
    sys.exit(main(cases.split(",")) if detect_launcher() else launch_processes(__file__, sys.argv[1:], int(ranks)))
