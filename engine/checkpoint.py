"""Saving and loading the whole state of a run: last, best, and the newest few of the periodic ones."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from utils.errors import UserError
from utils.sealed import save_sealed, verify

FORMAT = 2
LAST, BEST = "last.pth", "best.pth"


def save_checkpoint(folder: Path, state: dict[str, Any], is_best: bool, periodic: str | None, keep: int) -> None:
    """Writes `last.pth`; the same file is also `best.pth`, and `<periodic>.pth`, where those are due.

    Raises:
        UserError: it cannot be written; what was there before stays.
    """
    last = folder / LAST
    save_sealed(last, {"format": FORMAT} | state)
    if is_best:
        _put_beside(last, folder / BEST)
    if periodic and keep:
        _put_beside(last, folder / f"{periodic}.pth")
        _keep_newest(folder, keep)


def _keep_newest(folder: Path, keep: int) -> None:
    written = sorted(folder.glob("epoch-*.pth"), key=lambda path: path.stat().st_mtime_ns)
    for old in written[:-keep]:
        old.unlink()


def _put_beside(source: Path, target: Path) -> None:
    """The same content under a second name, without writing it again where the file system can link."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def find_checkpoint(path: str) -> Path:
    """The file itself, or the `last.pth` of a run's folder.

    Raises:
        UserError: there is none.
    """
    found = Path(path) / LAST if Path(path).is_dir() else Path(path)
    if not found.is_file():
        raise UserError(f"-resume {path}: there is no checkpoint {found}; give a .pth file or the folder of a run")
    return found


def saved_best(folder: Path) -> dict[str, Any] | None:
    """What the `best.pth` of a run's folder says of itself; None where there is no whole one."""
    try:
        return load_checkpoint(folder / BEST)["best"]
    except UserError:
        return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint that `save_checkpoint` wrote; no code in the file runs.

    Raises:
        UserError: the file is damaged, foreign, or of another format.
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
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path}: is no checkpoint of format {FORMAT}; resume with the version that wrote it")
    return state
