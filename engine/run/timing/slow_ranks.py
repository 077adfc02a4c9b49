"""Finds ranks that are slower than the others, and the cause.

The time of a whole step is the same on all ranks: the exchange of gradients waits for the slowest. Only the time before
the exchange differs: waiting for a batch, and the forward pass.
"""

from statistics import median_low

import torch

from utils.distributed import ProcessContext
from utils.status import RunStatus

SLOWER = 0.2  # than the median
MIN_SECONDS = 0.005
BLOCK_STEPS, BLOCKS = 10, 5
STEPS = BLOCK_STEPS * BLOCKS
LOADING, FORWARD = "loading the data", "the forward pass"


class SlowRanks:
    """Finds ranks that are 20% slower than the median for 50 steps, from the times of all ranks; on the main process.

    The steps count in five blocks of ten, each of which must be slower: loading workers deliver batches in bursts, so
    that the waits of single steps differ. A difference below 5 ms per step is noise of tiny steps, and does not count.
    The median is the lower one of two, so that one of two ranks can be slow. A rank is found once; again after 50 steps
    without a slow block, or when the cause has changed. status.json has the last one until it has recovered.

    compares_forward: False if the forward pass itself waits for other ranks, as in sharded models.
    """

    def __init__(self, compares_forward: bool, context: ProcessContext, status: RunStatus) -> None:
        self.causes = (LOADING, FORWARD) if compares_forward else (LOADING,)
        self.context, self.status = context, status
        self._steps: list[torch.Tensor] = []
        self._known: dict[int, str] = {}  # the causes of the slow ranks

    def add_step(self, seconds: torch.Tensor) -> list[str]:
        """Notes for the log. seconds: of one step, (ranks, 2): data wait, forward pass."""
        if self.context.is_main:
            self._steps.append(seconds[:, : len(self.causes)])
        if len(self._steps) < STEPS:
            return []
        blocks = torch.stack(self._steps).unflatten(0, (BLOCKS, BLOCK_STEPS)).mean(1)  # (BLOCKS, ranks, causes)
        self._steps.clear()
        slow, mean = _are_slow(blocks.sum(2)), blocks.mean(0)
        recovered = [rank for rank in self._known if not slow[:, rank].any()]
        for rank in recovered:
            del self._known[rank]
            self.status.update(slow_rank=None)
        notes = [f"Rank {rank} on {self._host(rank)} is no longer slow" for rank in recovered]
        for rank in slow.all(0).nonzero().flatten().tolist():
            column = int((mean[rank] - mean.median(0).values).argmax())  # exceeds its median most
            cause = self.causes[column]
            if self._known.get(rank) != cause:
                self._known[rank] = cause
                self.status.update(slow_rank={"rank": rank, "host": self._host(rank), "cause": cause})
                notes.append(self._warning(rank, cause, mean.sum(1).tolist(), mean[:, column].tolist()))
        return notes

    def _host(self, rank: int) -> str:
        return self.context.hosts[rank] if self.context.hosts else self.context.host

    def _warning(self, rank: int, cause: str, seconds: list[float], cause_seconds: list[float]) -> str:
        """seconds, cause_seconds: of all ranks per step, for all causes and for this one."""
        times = f"{1000 * cause_seconds[rank]:.0f} ms per step against {1000 * median_low(cause_seconds):.0f} ms"
        ratio = seconds[rank] / max(median_low(seconds), 1e-9) - 1
        more = f"{ratio:.0%}" if ratio < 10 else f"{ratio:.0f} times"
        return (
            f"Warning: rank {rank} on {self._host(rank)} was {more} slower than the median rank for {STEPS} steps; "
            f"cause: {cause} ({times})"
        )


def _are_slow(seconds: torch.Tensor) -> torch.Tensor:
    """(blocks, ranks) -> bool (blocks, ranks). `Tensor.median` is the lower one of two."""
    middle = seconds.median(1, keepdim=True).values
    return (seconds > (1 + SLOWER) * middle) & (seconds - middle > MIN_SECONDS)
