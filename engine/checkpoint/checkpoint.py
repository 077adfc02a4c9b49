"""Saving and loading the whole state of a run: last, previous, best, and the newest few of the periodic ones."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from configs.command_line import parse_value
from engine.checkpoint.epoch_layout import EpochLayout
from engine.checkpoint.run_folder import is_run_folder
from models.weights.load import checked_archive_bytes, has_backing_storage
from utils.atomic_file import atomic_save, iter_tensors, link_or_copy, tensor_bytes, verify_checksum
from utils.errors import UserError
from utils.metrics import NUM_SUMS

FORMAT = 4
LAST, PREVIOUS, BEST = "last.pth", "previous.pth", "best.pth"
_PERIODIC = "epoch-*.pth"
_CONTENT = {
    "model": dict, "ema": dict | None, "optimizer": dict, "optimizer_name": str, "precision": dict, "epoch": int,
    "done_steps": int, "sums": torch.Tensor, "geometry": dict, "best": dict | None, "train_seconds": float,
    "images": int, "choices": dict, "options": str,
}  # fmt: skip


class CheckpointWriter:
    """Writes the checkpoints of a run's folder, beside the training where the host has memory for a copy.

    `last.pth` or `previous.pth` is whole at any moment, whenever the process or the machine ends.
    """

    def __init__(self, folder: Path, keep: int, written: Callable[[Path, dict[str, Any]], None]) -> None:
        """`keep`: how many periodic ones; `written` hears of each file, and its content, that is on the disk."""
        self.folder, self.keep, self.written = folder, keep, written
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future | None = None
        for torso in folder.glob(".*.pth.tmp"):  # of a run that was killed while saving
            torso.unlink()

    def save(self, state: dict[str, Any], is_best: bool, periodic: str | None) -> None:
        """Writes `last.pth`; the same file is also `best.pth`, and `<periodic>.pth`, where those are due.

        Raises:
            UserError: it, or the one before, cannot be written; what is on the disk stays.
        """
        self.wait()
        content = {"format": FORMAT} | state
        if tensor_bytes(content) > _available_bytes() / 2:
            self._write(content, is_best, periodic)
        else:
            self._pending = self._thread.submit(self._write, _copied(content), is_best, periodic)

    def wait(self) -> None:
        """Until all is written. Raises what went wrong."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raises what went wrong, if it is known already; does not wait."""
        if self._pending and self._pending.done():
            self.wait()

    def _write(self, content: dict[str, Any], is_best: bool, periodic: str | None) -> None:
        last = self.folder / LAST
        atomic_save(last, content, previous=self.folder / PREVIOUS)
        if is_best:
            link_or_copy(last, self.folder / BEST)
        if periodic and self.keep:
            link_or_copy(last, self.folder / f"{periodic}.pth")
            for old in sorted(self.folder.glob(_PERIODIC), key=_changed, reverse=True)[self.keep :]:
                old.unlink(missing_ok=True)
        self.written(self.folder / (BEST if is_best else LAST), content)


def _copied(content: Any) -> Any:
    """As it is now, in the host's memory, whatever training makes of it meanwhile."""
    if isinstance(content, torch.Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: _copied(value) for key, value in content.items()}
    return type(content)(map(_copied, content)) if isinstance(content, list | tuple) else content


def _available_bytes() -> int:
    """Of the host's memory, without swapping, and within the job's own limit; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        on_host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0
    return min(on_host, *(_left_in(Path("/sys/fs/cgroup") / group) for group in ("", _own_group())))


def _own_group() -> str:
    """The process's control group (version 2), as a path below their root."""
    try:
        return Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    except OSError:
        return ""


def _left_in(group: Path) -> float:
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # there is none, or 'max'
        return math.inf


class FoundCheckpoint(NamedTuple):
    """A checkpoint to go on from, and what to tell of those passed over."""

    path: Path
    state: dict[str, Any]
    notes: list[str]


def find_checkpoint(
    resume: str, output: Path, hold: Callable[[Path], Any] = lambda folder: None
) -> FoundCheckpoint | None:
    """The checkpoint that `-resume` means: a file; in a run's folder the last good one; for 'auto' the newest good one
    of all runs in `output`, or None where there is none yet.

    `hold` is called with a run's folder before anything is read in it.

    Raises:
        UserError: there is no such file or folder, or no good checkpoint in it.
    """
    named = None if resume == "auto" else Path(resume)
    if named is None:
        folders = _runs_newest_first(output)
        if not folders:
            return None
    else:
        folders = [named] if named.is_dir() else [named.parent] if named.is_file() else []
    notes: list[str] = []
    for folder in folders:
        if is_run_folder(folder):
            hold(folder)
        for path in [named] if named and named.is_file() else _by_progress(folder):
            try:
                return FoundCheckpoint(path, load_checkpoint(path), notes)
            except UserError as error:
                notes.append(str(error))
    if not notes:
        raise UserError(f"-resume {resume}: there is no checkpoint; give a .pth file, the folder of a run, or auto")
    raise UserError(notes[0] if len(notes) == 1 else f"none of {len(notes)} checkpoints is good: {notes[0]}")


def _runs_newest_first(output: Path) -> list[Path]:
    """The folders of runs that have saved something."""
    saved = {folder: _by_progress(folder) for folder in output.glob("train-*") if is_run_folder(folder)}
    newest = {folder: max(map(_changed, paths)) for folder, paths in saved.items() if paths}
    return sorted(newest, key=newest.__getitem__, reverse=True)


def _by_progress(folder: Path) -> list[Path]:
    """The folder's checkpoints, the furthest first; whatever copying has made of their times."""
    periodic = sorted(folder.glob(_PERIODIC), reverse=True)
    return [path for path in (folder / LAST, folder / PREVIOUS, *periodic, folder / BEST) if path.is_file()]


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # someone has removed it
        return 0


def saved_best(folder: Path) -> dict[str, Any] | None:
    """What the `best.pth` of a run's folder says of itself; None where there is no whole one."""
    try:
        return load_checkpoint(folder / BEST)["best"]
    except UserError:
        return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint that `CheckpointWriter` wrote; no code in the file runs.

    Raises:
        UserError: the file is damaged, foreign, of another format, or holds weights that are no numbers.
    """
    if path.suffix == ".pdparams":
        raise UserError(
            f"{path}: PaddleViT's optimizer state cannot be resumed; start from its weights with -pretrained={path} "
            "and -last_epoch"
        )
    try:
        verify_checksum(path, required=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        held_bytes = checked_archive_bytes(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        backed = all(has_backing_storage(tensor, held_bytes) for tensor in iter_tensors(state))
    except UserError:
        raise
    except Exception as error:  # a file with a valid checksum that torch did not write raises almost any type
        raise UserError(f"{path}: is no checkpoint of ours ({type(error).__name__}); take another") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path}: is no checkpoint of format {FORMAT}; resume with the version that wrote it")
    wrong = [key for key, kind in _CONTENT.items() if not isinstance(state.get(key, ...), kind)]
    if wrong:
        raise UserError(f"{path}: is no checkpoint of ours, for {', '.join(wrong)} is missing or of a wrong type")
    if not _is_sound(state):
        raise UserError(f"{path}: is no checkpoint of ours, for its parts contradict one another; take another")
    if not backed:
        raise UserError(f"{path}: claims numbers that the file does not hold; take another")
    for key in ("model", "ema"):
        for name, tensor in (state[key] or {}).items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(f"{path}: is no checkpoint of ours, for {key} {name} is no tensor")
            if not tensor.isfinite().all():
                raise UserError(f"{path}: holds NaN or infinite values in {key} {name}; take one from before")
    return state


def _is_sound(state: dict[str, Any]) -> bool:
    """Whether a run can stand where it says."""
    try:
        steps = EpochLayout(**state["geometry"]).steps_per_epoch
        options = parse_value(state["options"])
    except (TypeError, ZeroDivisionError, UserError):
        return False
    counts = state["sums"][1:]  # the loss may be NaN, where a step was skipped
    return (
        isinstance(options, dict)
        and all(isinstance(word, str) for choice in state["choices"].items() for word in choice)
        and state["epoch"] >= 0
        and 0 <= state["done_steps"] <= steps
        and state["sums"].shape == (NUM_SUMS,)
        and bool(counts.isfinite().all())
    )
