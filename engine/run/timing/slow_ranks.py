"""Finds ranks that are slower than the others, and the cause.

The time of a whole step is the same on all ranks: the exchange of gradients waits for the slowest. Only the time before
the exchange differs: waiting for a batch, and the forward pass.
"""

from statistics import median_low
from typing import NamedTuple

import torch

from utils.distributed import ProcessContext
from utils.status import RunStatus

SLOWER = 0.2  # than the median
MIN_SECONDS = 0.005
BLOCK_STEPS, BLOCKS = 10, 5
STEPS = BLOCK_STEPS * BLOCKS
LOADING, FORWARD = "loading the data", "the forward pass"


class SlowRank(NamedTuple):
    """A rank that is slow, with seconds per step: its own, and the median of all ranks for the same cause."""

    rank: int
    cause: str
    seconds: float
    median_seconds: float
    percent: float


class SlowRanks:
    """Finds ranks that are 20% slower than the median for 50 steps, from the times of all ranks.

    The steps count in five blocks of ten, each of which must be slower: loading workers deliver batches in bursts, so
    that the waits of single steps differ. A difference below 5 ms per step is noise of tiny steps, and does not count.
    The median is the lower one of two, so that one of two ranks can be slow. A rank is found once; again after 50 steps
    without a slow block, or when the cause has changed.

    compares_forward: False if the forward pass itself waits for other ranks, as in sharded models.
    """

    def __init__(self, compares_forward: bool) -> None:
        self.causes = (LOADING, FORWARD) if compares_forward else (LOADING,)
        self._steps: list[torch.Tensor] = []
        self._known: dict[int, str] = {}

    def add_step(self, seconds: torch.Tensor) -> tuple[list[SlowRank], list[int]]:
        """seconds: of one step, (ranks, 2): data wait, forward pass. Returns ranks that became slow, and recovered."""
        self._steps.append(seconds[:, : len(self.causes)])
        if len(self._steps) < STEPS:
            return [], []
        blocks = torch.stack(self._steps).unflatten(0, (BLOCKS, BLOCK_STEPS)).mean(1)  # (BLOCKS, ranks, causes)
        self._steps.clear()
        slow = _are_slow(blocks.sum(2))
        recovered = [rank for rank in self._known if not slow[:, rank].any()]
        found = [_describe(rank, blocks.mean(0), self.causes) for rank in slow.all(0).nonzero().flatten().tolist()]
        new = [one for one in found if self._known.get(one.rank) != one.cause]
        self._known |= {one.rank: one.cause for one in new}
        for rank in recovered:
            del self._known[rank]
        return new, recovered


def _are_slow(seconds: torch.Tensor) -> torch.Tensor:
    """(blocks, ranks) -> bool (blocks, ranks). `Tensor.median` is the lower one of two."""
    middle = seconds.median(1, keepdim=True).values
    return (seconds > (1 + SLOWER) * middle) & (seconds - middle > MIN_SECONDS)


def _describe(rank: int, mean: torch.Tensor, causes: tuple[str, ...]) -> SlowRank:
    """mean: seconds per step, (ranks, causes). The cause is the one that exceeds its median most."""
    cause = int((mean[rank] - mean.median(0).values).argmax())
    of_ranks, totals = mean[:, cause].tolist(), mean.sum(1).tolist()
    percent = 100 * (totals[rank] / max(median_low(totals), 1e-9) - 1)
    return SlowRank(rank, causes[cause], of_ranks[rank], median_low(of_ranks), percent)


class SlowRankReport:
    """Writes a line of the log and a fact of status.json when a rank is found slow; on the main process only."""

    def __init__(self, ranks: SlowRanks, context: ProcessContext, status: RunStatus) -> None:
        self.ranks, self.context, self.status = ranks, context, status

    def lines(self, seconds: torch.Tensor) -> list[str]:
        """Notes for the log; `seconds` as of `SlowRanks.add_step`."""
        if not self.context.is_main:
            return []
        found, recovered = self.ranks.add_step(seconds)
        for slow in found:
            self.status.update(slow_rank={"rank": slow.rank, "host": self._host(slow.rank), "cause": slow.cause})
        if recovered and not found:
            self.status.update(slow_rank=None)
        return [f"Rank {rank} on {self._host(rank)} is no longer slow" for rank in recovered] + [
            self._line(slow) for slow in found
        ]

    def _host(self, rank: int) -> str:
        return self.context.hosts[rank] if self.context.hosts else self.context.host

    def _line(self, slow: SlowRank) -> str:
        times = f"{1000 * slow.seconds:.0f} ms per step against {1000 * slow.median_seconds:.0f} ms"
        more = f"{slow.percent:.0f}%" if slow.percent < 1000 else f"{slow.percent / 100:.0f} times"
        return (
            f"Warning: rank {slow.rank} on {self._host(slow.rank)} was {more} slower than the median rank for "
            f"{STEPS} steps; cause: {slow.cause} ({times})"
        )
