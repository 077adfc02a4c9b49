"""Memory and time of a training step on a cluster: DDP, FSDP or HSDP, with or without gradient checkpointing.

docs/clusters.md has the sources. NVIDIA's published rates of ViT-g/14 on 8 to 128 GPUs confirm the formula
(tests/scripts/test_plan.py), torch's memory tracker the memory of FSDP (tests/scripts/test_plan_memory.py).
"""

import argparse
import re
from functools import partial
from math import log2
from typing import NamedTuple

import torch

from configs.rules import Facts, resolve
from configs.schema import Config, Parallel
from engine.precision.policy import Precision, precision_name
from engine.run.flops import PEAKS, Peaks, model_name, peak_flops_per_second
from scripts.planning.workload import Workload, measure_workload
from utils.errors import UserError, did_you_mean
from utils.tables import aligned_table, format_duration

GATHERED_BLOCKS = 3  # one computes, one is prefetched, the gradient of one is summed
NETWORK_EFFICIENCY, MEMORY_EFFICIENCY = 0.75, 0.7  # of the bandwidth of the datasheet
HIDDEN = 0.9  # traffic behind the backward pass with DDP, behind both passes with FSDP
COST_OF_DOUBLING = 0.015  # of the hosts: stragglers and longer rings
RECOMPUTED = 1 / 3  # of the FLOPs
_FP32, _HALF = 4, 2
# AMP.LEVEL with half weights in the passes -> bytes of a weight, of a gradient, and more for the optimizer step
_STATE_BYTES = {"O2": (_FP32 + _HALF, _HALF, _FP32), "O3": (_HALF, _HALF, 2 * _FP32)}
ASSUMED_MFU, ASSUMED_ERROR = 0.33, (-0.25, 0.35)  # published ViTs have an MFU of 25% to 45%
_NOTE = (
    f"Predicted, not measured. Images/s: {-ASSUMED_ERROR[0]:.0%} lower to {ASSUMED_ERROR[1]:.0%} higher, at an assumed "
    f"MFU of {ASSUMED_MFU:.0%}; the log of a run on such a device has the real one. Memory: within 10%, less with "
    "-compile. Not included: loading, the start of ops by the host (small models and batches), evaluation, "
    "checkpoints, a teacher, the options of PARALLEL but SHARDS_PER_GROUP."
)
_STATE = ("parameters", "gradients", "moments", "average")
_MEMORY = ("strategy", "checkpointing", *_STATE, "gathered", "activations", "total", "largest batch")
_SPEED = ("strategy", "checkpointing", "step", "images/s", "", "of the peak", "epoch", "run", "GPU hours", "cost")
_SHORT = {"A100": "A100 SXM4", "V100": "V100 SXM2", "RTX6000ADA": "RTX 6000 ADA GENERATION"}


class Cluster(NamedTuple):
    """Hosts with equal GPUs."""

    device: str  # key of PEAKS
    gpu: Peaks
    per_node: int  # GPUs of a host
    nodes: int
    # Of a GPU, for tensors: the datasheet's GB as 1e9 bytes. It has 7% more (a GB of a datasheet is 2**30 bytes), which
    # the CUDA context, NCCL and fragmentation take.
    memory_bytes: float
    network: float  # bytes/s of one GPU's share in the network of its host

    @property
    def size(self) -> int:
        return self.per_node * self.nodes

    def peak(self, precision: Precision) -> float:
        """FLOP/s of one GPU. Raises UserError if the datasheets have no figure."""
        peak = peak_flops_per_second(self.device, precision.dtype, precision.tf32)
        if peak is None:
            name = str(precision.dtype).removeprefix("torch.")
            other = "-amp_dtype=float16" if precision.dtype == torch.bfloat16 else "-amp or AMP.TF32=true"
            raise UserError(f"-devices {self.device}: its datasheet has no speed for {name}; use {other}")
        return peak


def parse_cluster(devices: str, nodes: int, network_gbit: float | None = None) -> Cluster:
    """The cluster of `-devices 8xH100` (or H100: one), `-nodes 4` and `-network GBIT` of a host (default: PEAKS).

    A GPU has a name such as H100, A100-40GB, RTX4090, or the name that `torch.cuda` gives. A size in the name replaces
    the size in the table. Raises UserError for a wrong grammar and for a GPU without figures.
    """
    match = re.fullmatch(r"(?:([1-9]\d{0,3})\s*[xX*]\s*)?([A-Za-z][\w .-]*)", devices.strip())
    if not match:
        raise UserError(f"-devices {devices[:80]}: give the number and the name of the GPUs of a host, such as 8xH100")
    known = {key.replace(" ", ""): key for key in PEAKS} | _SHORT
    wanted = model_name(match[2]).replace(" ", "").upper()
    device = known.get(wanted) or known.get(f"RTX{wanted}")
    if device is None:
        hint = did_you_mean(wanted, known)
        raise UserError(f"-devices: no figures for {match[2][:80]}{hint} (known: {', '.join(PEAKS)})")
    gpu, per_node = PEAKS[device], int(match[1] or 1)
    memory = re.search(r"(\d+)\s*GB?$", match[2], re.IGNORECASE)
    share = network_gbit / per_node if network_gbit else gpu.network_gbit_per_second
    return Cluster(device, gpu, per_node, nodes, 1e9 * (int(memory[1]) if memory else gpu.memory_gb), 1e9 / 8 * share)


class Estimate(NamedTuple):
    """A step: bytes of a device, seconds, images/s of all devices."""

    state_bytes: dict[str, float]  # between steps: parameters (with the half copy of O2), gradients, moments, average
    gathered_bytes: float  # whole parameters during the passes
    activation_bytes: float
    total_bytes: float  # the peak
    largest_batch: int  # the largest batch size that fits; 0: not even one image
    step_seconds: float
    images_per_second: float


def strategies(workload: Workload, options: Parallel, cluster: Cluster) -> dict[str, int]:
    """The number of ranks that share one copy of parameters, gradients and moments: with DDP (1), FSDP and HSDP.

    Without the strategies that the trainer does not support for this model or cluster.

    Raises:
        UserError: SHARDS_PER_GROUP does not divide the number of devices.
    """
    size, group = cluster.size, options.shards_per_group or cluster.per_node
    if size == 1 or workload.sharding_problem:
        return {"ddp" if size > 1 else "one device": 1}
    if size % group:
        raise UserError(f"PARALLEL.SHARDS_PER_GROUP {group} does not divide {size} devices; use {cluster.per_node}")
    return {"ddp": 1, "fsdp": size} | ({f"hsdp in groups of {group}": group} if 1 < group < size else {})


def estimate(
    workload: Workload, cluster: Cluster, shards: int, batch_size: int, accumulation: int, mfu: float, recomputes: bool
) -> Estimate:
    """A step of `accumulation` micro-steps of `batch_size` images per device.

    shards: the number of ranks that share one copy of the model. recomputes: with gradient checkpointing. Raises
    UserError if the datasheet has no peak for this dtype.
    """
    passes, (state, update) = workload.passes[recomputes], _state_bytes(workload, shards)
    is_half = workload.precision.level in _STATE_BYTES
    value_bytes = _HALF if is_half else _FP32  # of a parameter in the passes, and of its gradient with DDP
    gathered = (shards > 1) * value_bytes * (workload.rest + GATHERED_BLOCKS * workload.block)
    kept = sum(state.values())

    def total(images: int) -> float:
        return kept + max(gathered + passes.fixed + passes.per_image * images, update)

    free = cluster.memory_bytes - kept - gathered - passes.fixed
    flops = workload.flops_per_image * (1 + RECOMPUTED * recomputes)
    micro_step = batch_size * flops / (cluster.peak(workload.precision) * mfu)
    traffic = _exposed_seconds(workload, cluster, shards, accumulation, micro_step, value_bytes)
    # AdamW moves 24 bytes per parameter; an average 12, copies to and from a half model 12.
    moved = 8 * (1 + workload.moments) + 12 * workload.has_average + 12 * (is_half and shards == 1)
    optimizer = moved * workload.trained / shards / (MEMORY_EFFICIENCY * 1e9 * cluster.gpu.memory_gb_per_second)
    seconds = (accumulation * micro_step + traffic + optimizer) * (1 + COST_OF_DOUBLING * log2(cluster.nodes))
    return Estimate(
        state_bytes=state,
        gathered_bytes=gathered,
        activation_bytes=passes.per_image * batch_size + passes.fixed,
        total_bytes=total(batch_size),
        largest_batch=int(free / passes.per_image) if total(1) <= cluster.memory_bytes else 0,
        step_seconds=seconds,
        images_per_second=batch_size * accumulation * cluster.size / seconds,
    )


def _state_bytes(workload: Workload, shards: int) -> tuple[dict[str, float], float]:
    """The bytes between steps, and the additional ones of the optimizer step, when the activations are free."""
    level = workload.precision.level if shards == 1 else ""  # FSDP keeps fp32 weights under O2, and gathers half ones
    weight, gradient, update = _STATE_BYTES.get(level, (_FP32, _FP32, 0))
    average = _FP32 * workload.has_average  # its update takes the difference of all weights
    parameters, trained = workload.parameters / shards, workload.trained / shards
    state = {
        "parameters": weight * parameters,
        "gradients": gradient * trained,
        "moments": _FP32 * workload.moments * trained,
        "average": average * parameters,
    }
    return state, (update + average) * trained


def _exposed_seconds(
    workload: Workload, cluster: Cluster, shards: int, accumulation: int, micro_step: float, value_bytes: int
) -> float:
    """The traffic of a step that compute does not hide.

    FSDP gathers the parameters before the forward and the backward pass, and reduce-scatters the gradients in fp32.
    HSDP does so in each group, and sums the gradients of the groups once a step. DDP is HSDP in groups of one rank.
    """
    in_host = min(shards, cluster.per_node)
    moved = 2 * value_bytes * workload.parameters + _FP32 * workload.trained
    each = _seconds(moved, cluster, shards, in_host, -(-shards // in_host))
    groups, of_host = cluster.size // shards, max(1, cluster.per_node // shards)
    summed = 2 * (value_bytes if shards == 1 else _FP32) * workload.trained / shards
    last = _seconds(summed, cluster, groups, of_host, groups / of_host)
    hiding = HIDDEN * micro_step * (2 / 3 if shards == 1 else 1)
    return (accumulation - 1) * max(0.0, each - hiding) + max(0.0, each + last - hiding)


def _seconds(size: float, cluster: Cluster, members: int, in_host: int, hosts: float) -> float:
    """Moves `size` bytes through a ring of `members`, `in_host` of them on each of `hosts`."""
    inside = size * (1 - 1 / members) / (1e9 * cluster.gpu.link_gb_per_second) if in_host > 1 else 0.0
    between = size / in_host * (1 - 1 / hosts) / cluster.network
    return max(inside, between) / NETWORK_EFFICIENCY


def plan_text(config: Config, flags: argparse.Namespace) -> str:
    """The plan of a run on the devices of `flags`, for each strategy with and without gradient checkpointing."""
    cluster = parse_cluster(flags.devices, flags.nodes, flags.network)
    workload, batch_size, train = measure_workload(config), config.data.batch_size, config.train
    accumulation, peak = resolve(config, Facts(cluster.size)).train.accum_iter, cluster.peak(workload.precision)
    step = partial(estimate, workload, cluster, batch_size=batch_size, accumulation=accumulation, mfu=ASSUMED_MFU)
    rows = {
        (name, "on" if recomputes else "off"): step(shards, recomputes=recomputes)
        for name, shards in strategies(workload, config.parallel, cluster).items()
        for recomputes in workload.passes
    }

    def speed_cells(row: Estimate) -> list[str]:
        if row.largest_batch < batch_size:
            return ["does not fit", *[""] * (len(_SPEED) - 3)]
        speed = row.images_per_second
        lower, higher = (speed * (1 + part) for part in ASSUMED_ERROR)
        epoch = flags.images / speed
        gpu_hours = epoch * train.num_epochs * cluster.size / 3600
        mfu_of_row = f"{speed * workload.flops_per_image / (peak * cluster.size):.1%}"
        speeds = [f"{1e3 * row.step_seconds:.1f} ms", f"{speed:,.0f}", f"({lower:,.0f} to {higher:,.0f})", mfu_of_row]
        durations = [format_duration(epoch), format_duration(epoch * train.num_epochs), f"{gpu_hours:,.1f}"]
        return [*speeds, *durations, f"{gpu_hours * flags.price:,.2f}" if flags.price else ""]

    frozen = f", {workload.trained / 1e6:.1f} M trained" if workload.trained < workload.parameters else ""
    precision = precision_name(workload.precision.options, torch.device("cuda"))
    hosts = f"{cluster.nodes} hosts x " if cluster.nodes > 1 else ""
    average = ", average" if train.model_ema else ""
    gigabytes = f"{cluster.memory_bytes / 1e9:.4g}"
    lines = [
        f"{config.model.name}: {workload.parameters / 1e6:.1f} M parameters{frozen}, "
        f"{workload.flops_per_image / 1e9:,.1f} GFLOP per training image; {precision}; {train.optimizer.name}{average}",
        f"{hosts}{cluster.per_node} x {cluster.device}: {gigabytes} GB and {peak / 1e12:,.1f} TFLOP/s each",
        f"\nMemory of a device at batch size {batch_size}, GB of {gigabytes}:",
        aligned_table(_MEMORY, [[*names, *_memory_cells(row)] for names, row in rows.items()], max_width=100),
        f"\nSpeed at batch size {batch_size}, global batch {batch_size * accumulation * cluster.size:,}; an epoch of "
        f"{flags.images:,} images (-images; the data is not read), a run of {train.num_epochs} epochs:",
        aligned_table(_SPEED, [[*names, *speed_cells(row)] for names, row in rows.items()], max_width=100),
        f"\n{_NOTE}",
    ]
    if cluster.size > 1 and workload.sharding_problem:
        lines.append(f"No FSDP, no HSDP: they do not support {workload.sharding_problem}.")
    if True not in workload.passes:
        lines.append("No checkpointing: timm does not support it for this model.")
    return "\n".join(lines)


def _memory_cells(row: Estimate) -> list[str]:
    parts = [*row.state_bytes.values(), row.gathered_bytes, row.activation_bytes, row.total_bytes]
    return [*(f"{part / 1e9:.2f}" for part in parts), f"{row.largest_batch:,}" if row.largest_batch else "none fits"]
