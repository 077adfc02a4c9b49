"""What the ranks of a run exchange: their options at the start; in the training, requests and step times.

Each rank may be started by a command of its own, so that the options of all ranks are compared. The exchange of
requests and step times is in parallel with the training.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from configs.reading.compare import shared_options
from configs.reading.yaml_io import format_value
from configs.schema import Config
from utils.distributed import ProcessContext, gather_objects
from utils.errors import Unavailable, UserError
from utils.processes.failure import State, leaving_state


def check_same_options(config: Config, context: ProcessContext, **flags: str | int | None) -> None:
    """Checks that all ranks have the same `shared_options` and `flags`. A collective call.

    Raises:
        UserError: on all ranks; it names the first rank that differs from rank 0, and each key with both values.
    """
    of_main, *others = gather_objects(shared_options(config) | flags, context)
    for rank, of_rank in enumerate(others, 1):
        if keys := [key for key in of_main | of_rank if of_main.get(key) != of_rank.get(key)]:
            main, own = (", ".join(f"{key} {format_value(of.get(key))}" for key in keys) for of in (of_main, of_rank))
            raise UserError(
                f"{context.name(rank)} has {own}, but {context.name(0)} has {main}; start all ranks with equal options"
            )


class RankExchange:
    """The greatest request and the times of all ranks, one call late, so that ranks do not wait for each other.

    A rank waits only for one that is more than a call behind, at most `timeout_seconds`. The exchange uses gloo between
    hosts, in parallel with the collectives of the devices.
    """

    def __init__(self, context: ProcessContext, timeout_seconds: float) -> None:
        self._rank, self._ranks = context.rank, context.world_size
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor, bool] | None = None  # the previous call
        if context.world_size > 1:
            try:
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            except RuntimeError as error:  # NCCL may use another network than gloo
                if leaving_state(error) is not State.FAILED:
                    raise
                raise Unavailable(
                    f"the hosts of this run cannot reach each other ({error}); set GLOO_SOCKET_IFNAME to the name of "
                    "their common network interface"
                ) from error

    def swap(self, request: int, seconds: Sequence[float] | None = None) -> tuple[int, torch.Tensor | None]:
        """Sends the request; returns the greatest request of the previous call, 0 at first, and the times of all ranks.

        All ranks must call it equally often. In a run of one process the results are of this call.

        Args:
            seconds: of this rank in a step: waiting for data, in the forward pass; all ranks give them, or none. The
                times (ranks, 2) are None if the previous call gave none.
        """
        values = torch.zeros(1 + 2 * self._ranks, dtype=torch.float64)  # every rank fills its own two places
        values[0] = request
        if seconds is not None:
            values[1 + 2 * self._rank : 3 + 2 * self._rank] = torch.tensor(seconds, dtype=torch.float64)
        has_seconds = seconds is not None
        if self._group is not None:
            previous = self._pending
            work = dist.all_reduce(values, dist.ReduceOp.MAX, self._group, async_op=True)
            self._pending = work, values, has_seconds
            if previous is None:
                return 0, None
            work, values, has_seconds = previous
            work.wait()
        return int(values[0]), values[1:].view(-1, 2) if has_seconds else None
