"""The writers of checkpoints: of files, and of the folders of a sharded run, to which each rank writes its part.

At any moment the last or the previous checkpoint is complete, even if the process or the machine fails.
"""

import math
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from engine.checkpoint.run_folder import (
    BEST,
    FORMAT,
    LAST,
    PREVIOUS,
    folder_path,
    link_copies,
    remove_temporary,
    replace_other_kind,
)
from models.blocks import local_tensor
from models.weights.shards import WEIGHTS
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import Unavailable
from utils.file_formats.checkpoint_folder import (
    CONTENT,
    FileEntry,
    describe_file,
    encode_content,
    replace_folder,
    write_manifest,
    write_synced,
)
from utils.files import atomic_save, space_fix, temporary_path, tensor_bytes
from utils.system import control_groups
from utils.torch_compat import tree_map_only

_FILE_BYTES = 1 << 30  # of a part of one rank: torch serializes a file in host memory
OnWritten = Callable[[Path, dict[str, Any]], None]


class CheckpointWriter:
    """Writes files, one at a time, in a background thread if host memory can hold a copy, else in the calling thread.

    The current GPU is a setting of each thread: a new thread would allocate memory on the first one, of another rank.
    """

    def __init__(self, folder: Path, keep: int, on_written: OnWritten, is_main: bool = True) -> None:
        """`keep`: number of periodic checkpoints; `on_written` is called with each checkpoint and its content, on the
        main process."""
        self.folder, self.keep, self.on_written = folder, keep, on_written
        on_start = (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_initialized() else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_start)
        self._pending: Future[None] | None = None
        if is_main:
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
        self._start(self._write, content, is_best, periodic, is_later)

    def _start(self, write: Callable[..., None], tensors: Any, *arguments: Any, processes: int = 1) -> None:
        """Calls `write(tensors, *arguments)`, in the thread if all processes can hold a copy, with a copy."""
        if tensor_bytes(tree_map_only(torch.Tensor, local_tensor, tensors)) > available_bytes() / 2 / processes:
            write(tensors, *arguments)
        else:
            copy = tree_map_only(torch.Tensor, lambda one: one.detach().to("cpu", copy=True), tensors)
            self._pending = self._thread.submit(write, copy, *arguments)

    def _write(self, content: dict[str, Any], is_best: bool, periodic: str | None, is_later: bool) -> None:
        last = self.folder / LAST
        atomic_save(last, content, previous=self.folder / PREVIOUS if is_later else None)
        replace_other_kind(last)
        link_copies(last, is_best, periodic, self.keep)
        self.on_written(self.folder / (BEST if is_best else LAST), content)


class ShardWriter(CheckpointWriter):
    """Writes checkpoint folders, every rank its part, so that no rank gathers the whole model.

    All methods are collective calls. The ranks write to a temporary folder, and the main process writes the manifest
    and renames the folder when all have finished. The threads talk to each other in a gloo group of their own, so that
    they do not mix with the collectives of training.
    """

    def __init__(
        self, folder: Path, keep: int, on_written: OnWritten, context: ProcessContext, timeout_seconds: float
    ) -> None:
        """timeout_seconds: a rank waits at most so long for the others to write."""
        super().__init__(folder, keep, on_written, context.is_main)
        self.context = context
        self._temporary = broadcast_object(temporary_path(folder_path(folder / LAST)), context)
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def save(self, state: dict[str, Any], is_best: bool, periodic: str | None, is_later: bool = True) -> None:
        self.wait()
        content = {"format": FORMAT} | state
        text, tensors = encode_content(content)
        local = {name: _to_savable(tensor) for name, tensor in tensors.items()}
        due = is_best, periodic, is_later
        self._start(self._write_parts, local, content, text, due, processes=self.context.local_world_size)

    def _write_parts(
        self, tensors: dict[str, torch.Tensor], content: dict[str, Any], text: str, due: tuple[bool, str | None, bool]
    ) -> None:
        """due: `is_best`, `periodic` and `is_later` of `save`."""
        from torch.distributed.checkpoint.api import CheckpointException  # imported late, as in `_write_part`

        is_best, periodic, is_later = due
        last, files, problem, temporary = folder_path(self.folder / LAST), {}, None, self._temporary
        try:
            files = self._write_part(tensors)
        except OSError as error:
            problem = error.strerror or str(error)
        except CheckpointException as error:  # equal on all ranks
            rank, (cause, _) = next(iter(error.failures.items()))
            problem = f"{getattr(cause, 'strerror', None) or cause} (rank {rank})"
        parts: list[Any] = [None] * self.context.world_size
        dist.all_gather_object(parts, (files, problem), group=self._group)
        problem = next((one for _, one in parts if one), None)
        if self.context.is_main and not problem:
            try:
                files = {name: entry for part, _ in parts for name, entry in part.items()}
                write_manifest(temporary, files | {CONTENT: write_synced(temporary / CONTENT, text)})
                replace_folder(temporary, last, previous=folder_path(self.folder / PREVIOUS) if is_later else None)
                replace_other_kind(last)
                link_copies(last, is_best, periodic, self.keep)
            except OSError as error:
                problem = error.strerror or str(error)
        box = [problem]
        dist.broadcast_object_list(box, src=0, group=self._group)
        if problem := box[0]:
            if self.context.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            free = shutil.disk_usage(self.folder).free
            old = "the previous checkpoint is intact" if last.exists() else "there is no earlier one"
            raise Unavailable(
                f"{last}: cannot be saved: {problem}, with {free:,} bytes free; {old}: {space_fix(problem)} and start "
                "again"
            )
        if self.context.is_main:
            self.on_written(folder_path(self.folder / BEST) if is_best else last, content)

    def _write_part(self, tensors: dict[str, torch.Tensor]) -> dict[str, FileEntry]:
        """Writes this rank's part; torch's planner shares tensors that all ranks hold. Returns its files."""
        import torch.distributed.checkpoint as dcp  # 0.1 s, which runs that are not sharded save

        number_of_file, total = {}, 0  # equal on all ranks
        for name, tensor in tensors.items():
            number_of_file[name] = 1 + total // _FILE_BYTES
            total += tensor_bytes(tensor) // self.context.world_size
        writer = dcp.HuggingFaceStorageWriter(str(self._temporary), number_of_file, save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=self._group)
        own = self._temporary.glob(f"shard-{self.context.rank + 1:05d}-*.safetensors")
        return {path.name: describe_file(path) for path in sorted(own)}


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


def _to_savable(tensor: torch.Tensor) -> torch.Tensor:
    """The format has no scalars, and no strides."""
    tensor = tensor.detach()
    if tensor.dim() == 0:
        return local_tensor(tensor).reshape(1)
    return tensor if isinstance(tensor, DTensor) else tensor.contiguous()
