"""Writes the checkpoints of a run: last, previous, best, and the newest periodic ones."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.checkpoint.reader import FORMAT
from engine.checkpoint.run_folder import BEST, LAST, PREVIOUS, link_copies, remove_temporary, replace_other_kind
from utils.distributed import ProcessContext
from utils.files import atomic_save, tensor_bytes
from utils.system import control_groups
from utils.torch_compat import tree_map_only

if TYPE_CHECKING:
    from engine.checkpoint.shard_writer import ShardWriter


class BackgroundWriter:
    """The base of the checkpoint writers: at most one write at a time.

    The current GPU is a setting of each thread: a new thread would allocate memory on the first one, of another rank.
    """

    def __init__(self, folder: Path, keep: int, on_written: Callable[[Path, dict[str, Any]], None]) -> None:
        """`keep`: number of periodic checkpoints; `on_written` is called with each checkpoint and its content, on the
        main process."""
        self.folder, self.keep, self.on_written = folder, keep, on_written
        on_start = (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_initialized() else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_start)
        self._pending: Future[None] | None = None

    def submit(self, write: Callable[..., None], *arguments: Any) -> None:
        """Runs `write(*arguments)` in the thread. Call `wait` before."""
        self._pending = self._thread.submit(write, *arguments)

    def wait(self) -> None:
        """Waits until all files are written. Raises the error of the background thread."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raises the error of the background thread if it is known already; does not wait."""
        if self._pending and self._pending.done():
            self.wait()


class CheckpointWriter(BackgroundWriter):
    """Writes checkpoints in a background thread if host memory can hold a copy, else in the calling thread.

    At any moment `last.pth` or `previous.pth` is complete, even if the process or the machine fails.
    """

    def __init__(self, folder: Path, keep: int, on_written: Callable[[Path, dict[str, Any]], None]) -> None:
        super().__init__(folder, keep, on_written)
        remove_temporary(folder)

    def save(self, state: dict[str, Any], is_best: bool, periodic: str | None) -> None:
        """Writes `last.pth`; the same file also becomes `best.pth` and `<periodic>.pth` if those are due.

        Raises:
            UserError: this checkpoint, or the previous one, cannot be written; the files on disk stay.
        """
        self.wait()
        content = {"format": FORMAT} | state
        if tensor_bytes(content) > available_bytes() / 2:
            self._write(content, is_best, periodic)
        else:
            self.submit(self._write, copy_to_host(content), is_best, periodic)

    def _write(self, content: dict[str, Any], is_best: bool, periodic: str | None) -> None:
        last = self.folder / LAST
        atomic_save(last, content, previous=self.folder / PREVIOUS)
        replace_other_kind(last)
        link_copies(last, is_best, periodic, self.keep)
        self.on_written(self.folder / (BEST if is_best else LAST), content)


def copy_to_host(content: Any) -> Any:
    """A copy in host memory, which training does not change."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), content)


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


def build_writer(
    is_sharded: bool,
    folder: Path,
    keep: int,
    on_written: Callable[[Path, dict[str, Any]], None],
    context: ProcessContext,
    timeout_seconds: float,
) -> "CheckpointWriter | ShardWriter | None":
    """The writer of this rank; None on a rank that writes no checkpoints. Arguments: as of the writers."""
    if is_sharded:
        from engine.checkpoint.shard_writer import ShardWriter  # torch's distributed checkpoints: a second

        return ShardWriter(folder, keep, on_written, context, timeout_seconds)
    return CheckpointWriter(folder, keep, on_written) if context.is_main else None
