"""Writes the checkpoints of a sharded run: each rank its part, and no rank gathers the whole model."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.tensor import DTensor

from engine.checkpoint.run_folder import (
    BEST,
    FORMAT,
    LAST,
    PREVIOUS,
    BackgroundWriter,
    available_bytes,
    copy_to_host,
    folder_path,
    link_copies,
    remove_temporary,
    replace_other_kind,
)
from models.blocks import local_tensor
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
from utils.files import space_fix, temporary_path, tensor_bytes

_FILE_BYTES = 1 << 30  # of one rank


class ShardWriter(BackgroundWriter):
    """Writes checkpoint folders in a background thread of every rank, if host memory can hold a copy of its part.

    All methods are collective calls. At any moment `last.shards` or `previous.shards` is complete: the ranks write to a
    temporary folder, and the main process writes the manifest and renames the folder when all have finished. The
    threads talk to each other in a gloo group of their own, so that they do not mix with the collectives of training.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        on_written: Callable[[Path, dict[str, Any]], None],
        context: ProcessContext,
        timeout_seconds: float,
    ) -> None:
        """timeout_seconds: a rank waits at most so long for the others to write."""
        super().__init__(folder, keep, on_written)
        self.context = context
        if context.is_main:  # before the other ranks can write: they wait for the group
            remove_temporary(folder)
        self._temporary = broadcast_object(temporary_path(folder_path(folder / LAST)), context)
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def save(self, state: dict[str, Any], is_best: bool, periodic: str | None, is_later: bool = True) -> None:
        """Writes `last.shards`; its files also become `best.shards` and `<periodic>.shards` if those are due.

        Raises:
            UserError: this checkpoint, or the previous one, cannot be written; the folders on disk stay.
        """
        self.wait()
        content = {"format": FORMAT} | state
        text, tensors = encode_content(content)
        local = {name: _to_savable(tensor) for name, tensor in tensors.items()}
        if tensor_bytes([*map(local_tensor, local.values())]) > available_bytes() / 2 / self.context.local_world_size:
            self._write(content, text, local, (is_best, periodic, is_later))
        else:
            self.submit(self._write, content, text, copy_to_host(local), (is_best, periodic, is_later))

    def _write(
        self, content: dict[str, Any], text: str, tensors: dict[str, torch.Tensor], due: tuple[bool, str | None, bool]
    ) -> None:
        """due: `is_best`, `periodic` and `is_later` of `save`."""
        is_best, periodic, is_later = due
        last, files, problem, temporary = folder_path(self.folder / LAST), {}, None, self._temporary
        try:
            files = self._write_part(temporary, tensors)
        except (OSError, CheckpointException) as error:
            problem = _reason(error)
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
                problem = _reason(error)
        box = [problem]
        dist.broadcast_object_list(box, src=0, group=self._group)
        if box[0]:
            self._fail(last, temporary, box[0])
        if self.context.is_main:
            self.on_written(folder_path(self.folder / BEST) if is_best else last, content)

    def _write_part(self, temporary: Path, tensors: dict[str, torch.Tensor]) -> dict[str, FileEntry]:
        """Writes this rank's part; torch's planner shares tensors that all ranks hold. Returns its files."""
        file_of = _files(tensors, self.context.world_size)
        writer = _Writer(str(temporary), fqn_to_index_mapping=file_of, save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=self._group)
        return {name: describe_file(temporary / name) for name in sorted(writer.files)}

    def _fail(self, last: Path, temporary: Path, problem: str) -> None:
        if self.context.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        free = shutil.disk_usage(self.folder).free
        old = "the previous checkpoint is intact" if last.exists() else "there is no earlier one"
        raise Unavailable(
            f"{last}: cannot be saved: {problem}, with {free:,} bytes free; {old}: {space_fix(problem)} and start again"
        )


class _Writer(dcp.HuggingFaceStorageWriter):
    """Torch's writer of safetensors files, which records the files of this rank."""

    files: frozenset[str] = frozenset()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        results = super().write_data(plan, planner)
        self.files = frozenset(result.storage_data.relative_path for result in results.value())
        return results


def _files(tensors: dict[str, torch.Tensor], world_size: int) -> dict[str, int]:
    """The number of the file of each tensor, from 1; equal on all ranks. Torch serializes a file in host memory."""
    file_of, total = {}, 0
    for name, tensor in tensors.items():
        file_of[name] = 1 + total // _FILE_BYTES
        total += tensor_bytes(tensor) // world_size
    return file_of


def _reason(error: OSError | CheckpointException) -> str:
    if isinstance(error, CheckpointException):  # equal on all ranks
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"{getattr(cause, 'strerror', None) or cause} (rank {rank})"
    return error.strerror or str(error)


def _to_savable(tensor: torch.Tensor) -> torch.Tensor:
    """The format has no scalars, and no strides."""
    tensor = tensor.detach()
    if tensor.dim() == 0:
        return local_tensor(tensor).reshape(1)
    return tensor if isinstance(tensor, DTensor) else tensor.contiguous()
