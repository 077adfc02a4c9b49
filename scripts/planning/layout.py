"""How the ranks share a model: DDP, FSDP, HSDP."""

from dataclasses import dataclass

from configs.schema import Parallel
from scripts.planning.devices import Cluster
from scripts.planning.workload import Workload
from utils.errors import UserError

DDP, FSDP, HSDP = "ddp", "fsdp", "hsdp"


@dataclass(frozen=True)
class Layout:
    """A strategy on a cluster.

    Attributes:
        shards: ranks that share one copy of parameters, gradients and moments; 1 with DDP.
        gather_bytes, reduce_bytes: of a value when parameters are gathered and gradients are summed.
        keeps_gathered: whether gathered parameters stay until the backward pass.
    """

    strategy: str
    cluster: Cluster
    shards: int
    gather_bytes: int
    reduce_bytes: int
    keeps_gathered: bool = False

    @property
    def name(self) -> str:
        if self.cluster.size == 1:
            return "one device"
        return f"{self.strategy} in groups of {self.shards}" if self.strategy == HSDP else self.strategy

    @property
    def is_sharded(self) -> bool:
        return self.shards > 1


def layouts(workload: Workload, options: Parallel, cluster: Cluster) -> list[Layout]:
    """DDP, and if there are several devices FSDP and HSDP, as far as the trainer supports them for this model.

    Raises:
        UserError: SHARDS_PER_GROUP does not divide the number of devices.
    """
    half_gradients = workload.is_half or options.comm_hook != "none"
    found = [Layout(DDP, cluster, 1, 0, 2 if half_gradients else 4)]
    if cluster.size == 1 or workload.sharding_problem:
        return found
    gather, reduce = 2 if workload.is_half else 4, 2 if options.reduce_dtype == "bfloat16" else 4
    kept = not options.reshard_after_forward
    found.append(Layout(FSDP, cluster, cluster.size, gather, reduce, kept))
    group = options.shards_per_group or cluster.per_node
    if cluster.size % group:
        raise UserError(
            f"PARALLEL.SHARDS_PER_GROUP {group} does not divide {cluster.size} devices; use {cluster.per_node}"
        )
    if 1 < group < cluster.size:
        found.append(Layout(HSDP, cluster, group, gather, reduce, kept))
    return found
