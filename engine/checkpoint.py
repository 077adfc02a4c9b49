"""Saving and loading the whole state of a run: last, previous, best, and the newest few of the periodic ones."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from models.weights import is_backed
from utils.errors import UserError
from utils.run_folder import is_run_folder
from utils.sealed import put_beside, save_sealed, stored_bytes, tensors_in, verify

FORMAT = 3
LAST, PREVIOUS, BEST = "last.pth", "previous.pth", "best.pth"
_PERIODIC = "epoch-*.pth"
_CONTENT = {
    "model": dict, "ema": dict | None, "optimizer": dict, "optimizer_name": str, "precision": dict, "epoch": int,
    "done_steps": int, "sums": torch.Tensor, "geometry": dict, "best": dict | None, "train_seconds": float,
    "images": int, "options": str,
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
        if stored_bytes(content) > _available_bytes() / 2:
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
        save_sealed(last, content, previous=self.folder / PREVIOUS)
        if is_best:
            put_beside(last, self.folder / BEST)
        if periodic and self.keep:
            put_beside(last, self.folder / f"{periodic}.pth")
            for old in _newest_first(self.folder.glob(_PERIODIC))[self.keep :]:
                old.unlink()
        self.written(self.folder / (BEST if is_best else LAST), content)


def _copied(content: Any) -> Any:
    """As it is now, in the host's memory, whatever training makes of it meanwhile."""
    if isinstance(content, torch.Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: _copied(value) for key, value in content.items()}
    return type(content)(map(_copied, content)) if isinstance(content, list | tuple) else content


def _available_bytes() -> int:
    """Of the host's memory, without swapping; 0 where the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0


class Found(NamedTuple):
    """A checkpoint to go on from, and what to tell of those passed over."""

    path: Path
    state: dict[str, Any]
    notes: list[str]


def find_checkpoint(resume: str, output: Path) -> Found | None:
    """The checkpoint that `-resume` means: a file; in a run's folder the last good one; for 'auto' the newest good one
    of all runs in `output`, or None where there is none yet.

    Raises:
        UserError: there is no such file or folder, or no good checkpoint in it.
    """
    named = Path(resume)
    if resume == "auto":
        candidates = _newest_first(
            path for folder in output.glob("train-*") if is_run_folder(folder) for path in folder.glob("*.pth")
        )
        if not candidates:
            return None
    elif named.is_dir():
        candidates = [named / name for name in (LAST, PREVIOUS) if (named / name).is_file()]
    else:
        candidates = [named] if named.is_file() else []
    if not candidates:
        raise UserError(f"-resume {resume}: there is no checkpoint; give a .pth file, the folder of a run, or auto")
    return _first_good(candidates)


def _first_good(candidates: list[Path]) -> Found:
    notes: list[str] = []
    for path in candidates:
        try:
            return Found(path, load_checkpoint(path), notes)
        except UserError as error:
            if len(candidates) == 1:
                raise
            notes.append(str(error))
    raise UserError(f"-resume: none of {len(candidates)} checkpoints is good: {notes[0]}")


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    """One name of each file."""
    by_file = {path.stat().st_ino: path for path in sorted(paths)}
    return sorted(by_file.values(), key=lambda path: (path.stat().st_mtime_ns, path.name == LAST), reverse=True)


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
        verify(path, required=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        held_bytes = path.stat().st_size
        backed = all(is_backed(tensor, held_bytes) for tensor in tensors_in(state))
    except Exception as error:  # what is sealed but no archive of torch's makes it raise nearly anything
        raise UserError(f"{path}: is no checkpoint of ours ({type(error).__name__}); take another") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path}: is no checkpoint of format {FORMAT}; resume with the version that wrote it")
    wrong = [key for key, kind in _CONTENT.items() if not isinstance(state.get(key, ...), kind)]
    if wrong:
        raise UserError(f"{path}: is no checkpoint of ours, for {', '.join(wrong)} is missing or of a wrong type")
    if not backed:
        raise UserError(f"{path}: claims numbers that the file does not hold; take another")
    for key in ("model", "ema"):
        for name, tensor in (state[key] or {}).items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(f"{path}: is no checkpoint of ours, for {key} {name} is no tensor")
            if not tensor.isfinite().all():
                raise UserError(f"{path}: holds NaN or infinite values in {key} {name}; take one from before")
    return state
