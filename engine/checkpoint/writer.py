"""The writer of checkpoints.

At any moment the last or the previous checkpoint is complete, even if the process or the machine fails.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.run_folder import BEST, FORMAT, LAST, PREVIOUS, WEIGHTS, link_copies, remove_temporary
from utils.files import atomic_save, tensor_bytes
from utils.system import control_groups
from utils.torch_compat import tree_map_only

OnWritten = Callable[[Path, dict[str, Any]], None]


class CheckpointWriter:
    """Writes files, one at a time, in a background thread if host memory can hold a copy, else in the calling thread.

    The current GPU is a setting of each thread: a new thread would allocate memory on the first one, of another rank.
    """

    def __init__(self, folder: Path, keep: int, on_written: OnWritten, is_copy: bool = False) -> None:
        """keep: number of periodic checkpoints. on_written: called with each checkpoint and its content.
        is_copy: the tensors to save are copies in host memory."""
        self.folder, self.keep, self.on_written, self.is_copy = folder, keep, on_written, is_copy
        on_start = (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_initialized() else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_start)
        self._pending: Future[None] | None = None
        remove_temporary(folder)

    def wait(self) -> None:
        """Waits until all files are written. Raises the error of the background thread."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raises the error of the background thread if it is known already; does not wait."""
        if self._pending and self._pending.done():
            self.wait()

    def save(self, state: dict[str, Any], is_best: bool, periodic: str | None, is_later: bool = True) -> None:
        """Writes the last checkpoint; its files also become the best one and `periodic` if those are due.

        is_later: than the last checkpoint, which becomes the previous one; else its step is the same one.
        Raises UserError: this checkpoint, or the one before, cannot be written; the checkpoints on disk stay.
        """
        self.wait()
        weights = {entry: {name: one.contiguous() for name, one in (state[entry] or {}).items()} for entry in WEIGHTS}
        content = {"format": FORMAT} | state | {entry: state[entry] and weights[entry] for entry in WEIGHTS}
        if not self.is_copy and tensor_bytes(content) > available_bytes() / 2:
            self._write(content, is_best, periodic, is_later)
            return
        if not self.is_copy:
            content = tree_map_only(torch.Tensor, lambda one: one.detach().to("cpu", copy=True), content)
        self._pending = self._thread.submit(self._write, content, is_best, periodic, is_later)

    def _write(self, content: dict[str, Any], is_best: bool, periodic: str | None, is_later: bool) -> None:
        last = self.folder / LAST
        atomic_save(last, content, previous=self.folder / PREVIOUS if is_later else None)
        link_copies(last, is_best, periodic, self.keep)
        self.on_written(self.folder / (BEST if is_best else LAST), content)


def available_bytes() -> float:
    """Free host memory without swapping, within the limit of the job's control group; 0 if it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        on_host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
    return min(on_host, *map(_free_bytes_in, control_groups()))


def _free_bytes_in(group: Path) -> float:
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or the limit is 'max'
        return math.inf
