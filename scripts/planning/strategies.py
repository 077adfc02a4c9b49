"""Memory and seconds of a step with DDP, FSDP or HSDP, with or without gradient checkpointing.

docs/clusters.md has the sources. NVIDIA's published rates of ViT-g/14 on 8 to 128 GPUs confirm the formula
(tests/scripts/test_plan.py), torch's memory tracker the memory of FSDP (tests/scripts/plan_memory.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any

from configs.schema import Parallel
from scripts.planning.devices import Cluster
from scripts.planning.workload import Workload
from utils.errors import UserError

GATHERED_BLOCKS = 3  # one computes, one is prefetched, the gradient of one is summed
NETWORK_EFFICIENCY, MEMORY_EFFICIENCY = 0.75, 0.7  # of the bandwidth of the datasheet
HIDDEN = 0.9  # traffic behind the backward pass with DDP, behind both passes with FSDP
COST_OF_DOUBLING = 0.015  # of the hosts: stragglers and longer rings
RECOMPUTED = 1 / 3  # of the FLOPs
_FP32, _HALF = 4, 2


@dataclass(frozen=True)
class Strategy:
    """A way to share a model among the ranks of a cluster.

    Attributes:
        ranks: that share one copy of parameters, gradients and moments; 1 with DDP.
        gather_bytes, reduce_bytes: of a value when parameters are gathered and gradients are summed.
        keeps_gathered: whether gathered parameters stay until the backward pass.
    """

    name: str
    cluster: Cluster
    ranks: int
    gather_bytes: int
    reduce_bytes: int
    keeps_gathered: bool = False

    def __str__(self) -> str:
        if self.cluster.size == 1:
            return "one device"
        return f"hsdp in groups of {self.ranks}" if self.name == "hsdp" else self.name


def strategies(workload: Workload, options: Parallel, cluster: Cluster) -> dict[str, Strategy]:
    """DDP, and for several devices FSDP and HSDP, as far as the trainer supports them for this model.

    Raises:
        UserError: SHARDS_PER_GROUP does not divide the number of devices.
    """
    half_gradients = workload.is_half or options.comm_hook != "none"
    found = {"ddp": Strategy("ddp", cluster, 1, 0, _HALF if half_gradients else _FP32)}
    if cluster.size == 1 or workload.sharding_problem:
        return found
    group = options.shards_per_group or cluster.per_node
    if cluster.size % group:
        raise UserError(
            f"PARALLEL.SHARDS_PER_GROUP {group} does not divide {cluster.size} devices; use {cluster.per_node}"
        )
    gather = _HALF if workload.is_half else _FP32
    reduce = _HALF if options.reduce_dtype == "bfloat16" else _FP32
    for name, ranks in (("fsdp", cluster.size), ("hsdp", group)):
        if name == "fsdp" or 1 < ranks < cluster.size:
            found[name] = Strategy(name, cluster, ranks, gather, reduce, not options.reshard_after_forward)
    return found


@dataclass(frozen=True)
class Memory:
    """Bytes on a device.

    Attributes:
        state: between steps: parameters (with the half copy of O2), gradients, moments, average.
        gathered: whole parameters during the passes. update: of the optimizer step, when the activations are free.
        activations: of one image. fixed: of the passes, for any batch size.
    """

    state: dict[str, float]
    gathered: float
    update: float
    activations: float
    fixed: float

    def total(self, batch_size: int) -> float:
        """The peak of a step."""
        passes = self.gathered + self.fixed + self.activations * batch_size
        return sum(self.state.values()) + max(passes, self.update)

    def largest_batch(self, available: float) -> int:
        """The largest batch size that fits; 0: not even one image."""
        free = available - sum(self.state.values()) - self.gathered - self.fixed
        return int(free / self.activations) if self.total(1) <= available else 0


def memory_of(workload: Workload, strategy: Strategy, checkpointing: bool) -> Memory:
    is_sharded = strategy.ranks > 1
    weight, gradient, update = _FP32, _FP32, 0
    if workload.is_half and not is_sharded:  # FSDP keeps fp32 weights under O2, and gathers them in half
        is_o2 = workload.level == "O2"
        weight, gradient, update = (_FP32 + _HALF, _HALF, _FP32) if is_o2 else (_HALF, _HALF, 2 * _FP32)
    average = _FP32 * workload.has_average  # its update takes the difference of all weights
    gathered = workload.rest + GATHERED_BLOCKS * workload.block
    passes = workload.passes[checkpointing]
    return Memory(
        state={
            "parameters": weight * workload.parameters / strategy.ranks,
            "gradients": gradient * workload.trained / strategy.ranks,
            "moments": _FP32 * workload.moments * workload.trained / strategy.ranks,
            "average": average * workload.parameters / strategy.ranks,
        },
        gathered=strategy.gather_bytes * (workload.parameters if strategy.keeps_gathered else gathered),
        update=(update + average) * workload.trained / strategy.ranks,
        activations=passes.per_image,
        fixed=passes.fixed,
    )


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step.

    compute: of all micro-steps. exposed: traffic that compute does not hide. images: of all devices.
    """

    compute: float
    exposed: float
    seconds: float
    images: int

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def predict(
    workload: Workload, strategy: Strategy, batch_size: int, accumulation: int, mfu: float, checkpointing: bool
) -> Step:
    """A step of `accumulation` micro-steps of `batch_size` images per device.

    Raises:
        UserError: the datasheet has no peak for this dtype.
    """
    cluster = strategy.cluster
    flops = workload.flops_per_image * (1 + RECOMPUTED * checkpointing)
    micro_step = batch_size * flops / (cluster.peak(workload.dtype, workload.tf32) * mfu)
    each, last = _traffic_seconds(workload, strategy)
    hiding = HIDDEN * micro_step * (2 / 3 if strategy.name == "ddp" else 1)
    exposed = (accumulation - 1) * max(0.0, each - hiding) + max(0.0, each + last - hiding)
    optimizer = _optimizer_bytes(workload, strategy) / (MEMORY_EFFICIENCY * cluster.memory_bytes_per_second)
    compute = accumulation * micro_step
    seconds = (compute + exposed + optimizer) * (1 + COST_OF_DOUBLING * log2(cluster.nodes))
    return Step(compute, exposed, seconds, batch_size * accumulation * cluster.size)


def figures(
    workload: Workload, strategy: Strategy, batch_size: int, accumulation: int, mfu: float, checkpointing: bool
) -> dict[str, Any]:
    """Memory and speed as plain values: bytes, seconds, images/s."""
    memory = memory_of(workload, strategy, checkpointing)
    step = predict(workload, strategy, batch_size, accumulation, mfu, checkpointing)
    return {
        "strategy": str(strategy),
        "grad_checkpointing": checkpointing,
        "state_bytes": memory.state,
        "gathered_bytes": memory.gathered,
        "activation_bytes": memory.activations * batch_size + memory.fixed,
        "total_bytes": memory.total(batch_size),
        "largest_batch": memory.largest_batch(strategy.cluster.memory_bytes),
        "step_seconds": step.seconds,
        "images_per_second": step.images_per_second,
    }


def fit_mfu(images_per_second: Callable[[float], float], measured: float) -> float | None:
    """The MFU at which `images_per_second`, an increasing function, is `measured`; None if no MFU up to 100% is."""
    low, high = 0.0, 1.0
    if measured > images_per_second(high):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if images_per_second(middle) < measured else (low, middle)
    return high


def _traffic_seconds(workload: Workload, strategy: Strategy) -> tuple[float, float]:
    """The traffic of each micro-step, and the additional traffic of the last one.

    DDP sums the gradients once a step. FSDP gathers the parameters before the forward and the backward pass, and
    reduce-scatters the gradients; HSDP does so in each group, and sums the gradients of the groups once a step.
    """
    cluster, gradients = strategy.cluster, strategy.reduce_bytes * workload.trained
    if strategy.name == "ddp":
        return 0.0, _ring_seconds(2 * gradients, cluster, cluster.size)
    gathered = (1 if strategy.keeps_gathered else 2) * strategy.gather_bytes * workload.parameters
    each = _ring_seconds(gathered + gradients, cluster, strategy.ranks)
    if strategy.name == "fsdp":
        return each, 0.0
    groups, groups_of_host = cluster.size // strategy.ranks, max(1, cluster.per_node // strategy.ranks)
    return each, _seconds(2 * gradients / strategy.ranks, cluster, groups, groups_of_host, groups / groups_of_host)


def _ring_seconds(size: float, cluster: Cluster, ranks: int) -> float:
    """Moves `size` bytes through each of `ranks` neighboring ranks."""
    in_host = min(ranks, cluster.per_node)
    return _seconds(size, cluster, ranks, in_host, -(-ranks // in_host))


def _seconds(size: float, cluster: Cluster, members: int, in_host: int, hosts: float) -> float:
    """A ring of `members`, `in_host` of them on each of `hosts`."""
    inside = size * (1 - 1 / members) / cluster.link if in_host > 1 else 0.0
    between = size / in_host * (1 - 1 / hosts) / cluster.network
    return max(inside, between) / NETWORK_EFFICIENCY


def _optimizer_bytes(workload: Workload, strategy: Strategy) -> float:
    """AdamW moves 24 bytes per parameter; an average 12, copies to and from a half model 12."""
    per_parameter = 8 * (1 + workload.moments) + 12 * workload.has_average
    per_parameter += 12 * (workload.is_half and strategy.ranks == 1)
    return per_parameter * workload.trained / strategy.ranks
