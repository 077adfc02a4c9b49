"""torch's flight recorder: finds a GPU that waits in a collective, and writes the last collectives after a timeout."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from utils.processes.ranks import Counts
from utils.status import current_folder
from utils.threads import Watchdog
from utils.torch_compat import collective_numbers, flight_recorder_dumps

FOLDER = "flight-recorder"
_BUFFER_SIZE = 2000  # collectives


def enable_recorder() -> None:
    """Enables it; before the process group starts. The user's TORCH_FR_BUFFER_SIZE has priority; 0 disables it."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_BUFFER_SIZE))


def recorder_folder() -> Path | None:
    """The folder of the ranks' records; None before the run has a folder."""
    folder = current_folder()
    return folder / FOLDER if folder else None


def write_dump(rank: int) -> None:
    """Writes `rank-N.json`: {backend: torch's record}. Raises OSError."""
    folder, dumps = recorder_folder(), flight_recorder_dumps()
    if folder and dumps:
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{rank}.json").write_text(json.dumps(dumps, indent=1) + "\n")


def started_collectives() -> Counts:
    """The number of collectives that this rank has started, by backend and group; empty if torch does not say."""
    numbers = {name: collective_numbers(name) for name in ("gloo", "nccl")}
    return {f"{name} {group}": last for name, groups in numbers.items() for group, (last, _) in groups.items()}


class CollectiveWatchdog(Watchdog):
    """Counts the longest time for which the same collective of the GPU has been the next one to end.

    NCCL's operations end in order. gloo's do not, and they report their timeout themselves.
    """

    backend = "nccl"

    def __init__(self, limit_seconds: float, on_timeout: Callable[[], None]) -> None:
        super().__init__(limit_seconds, on_timeout)
        self._waiting: dict[tuple[str, int], float] = {}  # by process group and last operation that has ended

    def tick(self, seconds: float) -> None:
        groups = collective_numbers(self.backend).items()
        waiting = [(group, ended) for group, (started, ended) in groups if ended < started]
        self._waiting = {one: self._waiting[one] + seconds if one in self._waiting else 0.0 for one in waiting}
        self.seconds = max(self._waiting.values(), default=0.0)
