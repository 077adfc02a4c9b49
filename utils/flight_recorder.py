"""torch's flight recorder: the last collectives of a rank, written to the run's folder when one of them times out."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from utils.status import current_folder
from utils.torch_compat import flight_recorder_dumps

FOLDER = "flight-recorder"
_BUFFER_SIZE = 2000  # collectives

Counts = dict[str, int]  # collectives that a rank has started, by process group


def enable_recorder() -> None:
    """Call it before the process group starts. The user's TORCH_FR_BUFFER_SIZE has priority; 0 disables it."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_BUFFER_SIZE))


def recorder_folder() -> Path | None:
    """Where the ranks of this process's run write; None before the run has a folder."""
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
    counts = {}
    for backend, dump in flight_recorder_dumps().items():
        for group, status in dump.get("pg_status", {}).items():
            counts[f"{backend} {group}"] = int(status.get("last_enqueued_collective", -1))
    return counts


def ranks_behind(counts: Mapping[int, Counts]) -> list[int]:
    """The ranks that have not started a collective of a group which another rank has started: {rank: counts}."""
    groups = {group for of_rank in counts.values() for group in of_rank}
    latest = {group: max(of_rank.get(group, -1) for of_rank in counts.values()) for group in groups}
    return [rank for rank, of_rank in counts.items() if any(of_rank.get(group, -1) < latest[group] for group in groups)]
