"""Reading and finding checkpoints: every file is verified before it is used."""

import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from configs.batch_plan import EpochLayout
from configs.load import RUN_OPTIONS
from configs.weights import PADDLE
from configs.yaml_io import format_value, parse_value
from datasets.sources.names import list_names
from engine.checkpoint.run_folder import (
    BEST,
    FILE,
    FORMAT,
    check_same_checkpoint,
    checkpoints_by_progress,
    is_checkpoint,
    is_run_folder,
    lock_run_folder,
    modified_time,
)
from engine.checkpoint.weights_record import ENTRY, is_description, read_split
from models.weights.read import has_backing_storage
from models.weights.shards import AVERAGE, WEIGHTS, open_shards, read_stored
from utils.distributed import ProcessContext, broadcast_object, call_on_main, gather_objects, single_process
from utils.errors import REFUSED, Unavailable, UserError, error_from
from utils.file_formats.checkpoint_folder import SHARDS, StoredTensor, read_entries
from utils.file_formats.pickles import checked_archive_bytes
from utils.files import tensors_in, verify_checksum
from utils.metric_table import METRICS
from utils.metrics import NUM_SUMS

_PADDLE_OPTIMIZER = ".pdopt"  # beside the .pdparams of PaddleViT's earlier checkpoints
_CONTENT = {
    "model": dict, AVERAGE: dict | None, "optimizer": dict, "precision": dict, "epoch": int,
    "done_steps": int, "sums": torch.Tensor, "geometry": dict, "best": dict | None, "train_seconds": float,
    "total_seconds": float, "images": int, "options": str, "class_names": list | None,
}  # fmt: skip


class Place(NamedTuple):
    """A checkpoint in the folder of a run, and where it stands: its epoch and the share of the epoch, and its step."""

    path: Path
    progress: tuple[int, float]
    step: int
    best: dict[str, Any] | None

    @property
    def is_best(self) -> bool:
        """Whether it has the weights of its best evaluation."""
        return self.best is not None and self.progress == (self.best["epoch"], 0.0)


def _place_of(path: Path, state: dict[str, Any]) -> Place:
    steps = EpochLayout.of_geometry(state["geometry"]).steps_per_epoch
    progress = state["epoch"], state["done_steps"] / max(steps, 1)
    return Place(path, progress, state["epoch"] * steps + state["done_steps"], state["best"])


def read_places(folder: Path) -> list[Place]:
    """The places of the checkpoints of a folder; without those that are damaged or of another program."""
    places = []
    for path in checkpoints_by_progress(folder):
        with suppress(AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
            place = _place_of(path, read_entries(path))
            places += [place] if place.best is None or _is_best(place.best) else []
    return places


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, the same one on all ranks.

    notes: a line for each checkpoint that was skipped. run_folder: of the run that wrote it; None if it lies elsewhere.
    places: of the checkpoints in that folder; none for an evaluation.
    """

    path: Path
    state: dict[str, Any]
    notes: list[str]
    run_folder: Path | None
    places: list[Place]

    @property
    def place(self) -> Place:
        return _place_of(self.path, self.state)


def find_checkpoint(
    resume: str,
    context: ProcessContext,
    runs: Sequence[Path] = (),
    best_first: bool = False,
    locks: ExitStack | None = None,
) -> FoundCheckpoint | None:
    """Finds and opens the checkpoint that `-resume` names. A collective call; the main process searches.

    resume: a checkpoint, with or without its extension; or the folder of a run, for its most recent valid checkpoint;
    or 'auto', for the first of `runs` that has a valid checkpoint (None without any run).
    best_first: prefers the best checkpoint, and reads no places: for evaluations.
    locks: receives the lock of a run's folder before a checkpoint in it is read, since the run may still write.
    Raises UserError: no such file or folder, no valid checkpoint in it, or a locked folder.
    """
    search, state, refused = _search(resume, runs, best_first, locks), None, list[UserError]()
    path: Path | None = None

    def describe() -> tuple[Path | None, list[Place]] | None:
        if path is None:
            _raise_not_found(resume, refused)
            return None
        folder = path.parent if is_run_folder(path.parent) else None
        return folder, read_places(folder) if folder and not best_first else []

    while path := broadcast_object(call_on_main(lambda: next(search, None), context), context):
        try:
            check_same_checkpoint(path, context)
            state = open_checkpoint(path, context)
        except UserError as error:
            refused.append(error)
            state = None
        if broadcast_object(state is not None, context):
            break
    about = broadcast_object(call_on_main(describe, context), context)
    if about is None or path is None:
        return None
    if state is None:  # on this rank only
        raise refused[-1]
    return FoundCheckpoint(path, state, list(map(str, refused)), *about)


def _search(resume: str, runs: Sequence[Path], best_first: bool, locks: ExitStack | None) -> Iterator[Path]:
    """The checkpoints to try, in this order."""
    if resume != "auto":
        named = _with_extension(Path(resume))
        runs = [named.parent] if is_checkpoint(named) else [named] if named.is_dir() else []
    for folder in runs:
        if locks and is_run_folder(folder):
            locks.enter_context(lock_run_folder(folder))
        paths = checkpoints_by_progress(folder) or sorted(folder.glob(f"*{PADDLE}"), key=modified_time)[-1:]
        if best_first:
            paths.sort(key=lambda path: path.stem != Path(BEST).stem)
        yield from [named] if resume != "auto" and is_checkpoint(named) else paths


def _raise_not_found(resume: str, refused: Sequence[UserError]) -> None:
    """Raises the UserError of a search without a result; 'auto' needs none if there is no run."""
    if refused:
        several = f"none of {len(refused)} checkpoints is valid: " if len(refused) > 1 else ""
        kind = UserError if all(error.status == REFUSED for error in refused) else Unavailable
        raise kind(f"{several}{refused[0]}")
    if resume == "auto":
        return
    named = _with_extension(Path(resume))
    if names := [folder.name for folder in runs_newest_first(named)]:
        raise UserError(f"-resume {resume}: is a folder of {len(names)} runs; give one of them: {list_names(names)}")
    problem, fix = "no checkpoint found", "give a .pth file, the folder of a run, or auto"
    if (named / RUN_OPTIONS).is_file():
        problem, fix = "the run has no checkpoint", f"start it again with -cfg={named / RUN_OPTIONS}"
    elif not os.path.exists(named):
        problem, others = "no such file or folder", runs_newest_first(named.parent)
        fix = next((f"did you mean {run}?" for run in others if run.name.startswith(f"{named.name}-")), fix)
    raise Unavailable(f"-resume {resume}: {problem}; {fix}")


def _with_extension(path: Path) -> Path:
    """`path`, or the checkpoint whose name without its extension is `path`."""
    extensions = ("", FILE, SHARDS, PADDLE, _PADDLE_OPTIMIZER)
    return next((file for end in extensions if os.path.exists(file := Path(f"{path}{end}"))), path)


def runs_newest_first(output: Path) -> list[Path]:
    """The folders of runs that have a checkpoint."""
    checkpoints = {folder: checkpoints_by_progress(folder) for folder in output.glob("*") if is_run_folder(folder)}
    newest = {folder: max(map(modified_time, paths)) for folder, paths in checkpoints.items() if paths}
    return sorted(newest, key=newest.__getitem__, reverse=True)


def find_best(found: FoundCheckpoint, context: ProcessContext) -> Path | None:
    """The valid checkpoint of the run with the weights of its best evaluation, best.pth first; a collective call."""
    paths = [place.path for place in found.places if place.is_best and place.best == found.state["best"]]
    for path in sorted(paths, key=lambda path: path.stem != Path(BEST).stem):
        is_valid = True
        try:
            if path.suffix == SHARDS or context.is_main:
                open_checkpoint(path, context)
        except UserError:
            is_valid = False
        if broadcast_object(is_valid, context):
            return path
    return None


def open_checkpoint(path: Path, context: ProcessContext) -> dict[str, Any]:
    """Reads a checkpoint as `load_checkpoint` does, but leaves tensors in a checkpoint folder: `StoredTensor`.

    A collective call for such a folder: each rank verifies a share of it, and the error of one is raised on all.
    Raises UserError: as `load_checkpoint`.
    """
    if path.suffix != SHARDS:
        return load_checkpoint(path)
    state, problem = dict[str, Any](), None
    try:
        state = open_shards(path, context.rank, context.world_size)
        state |= {name: read_stored(state[name]) for name in ("sums", ENTRY) if name in state}
        _check_content(path, state, StoredTensor)
    except UserError as error:
        problem = error
    if first := next(filter(None, gather_objects(problem, context)), None):
        raise first
    return state


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint that `CheckpointWriter` or `ShardWriter` wrote; runs no code of the file.

    Raises UserError: the file is damaged, of another program or format, or contains non-finite weights.
    """
    if path.suffix == SHARDS:
        return read_stored(open_checkpoint(path, single_process("cpu")))
    if path.suffix in (PADDLE, _PADDLE_OPTIMIZER):
        epoch = re.search(r"Epoch-(\d+)", path.name)
        raise UserError(
            f"{path}: PaddleViT's optimizer state cannot be resumed; start from its weights with "
            f"-pretrained={shlex.quote(str(path.with_suffix(PADDLE)))} and -last_epoch={epoch[1] if epoch else 'EPOCH'}"
        )
    try:
        verify_checksum(path, required=True)
        archive_bytes = checked_archive_bytes(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        is_backed = all(has_backing_storage(tensor, archive_bytes) for tensor in tensors_in(state))
    except UserError:
        raise
    except OSError as error:
        raise error_from(error, f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # a file with a valid checksum that is no torch archive raises almost any type
        problem = f"{path}: is not a checkpoint of this program ({type(error).__name__})"
        raise error_from(error, f"{problem}; use another") from None
    state = state if isinstance(state, dict) else {}
    if "model" in state and "format" not in state:
        raise UserError(f"{path}: has weights only; start from them with -pretrained={shlex.quote(str(path))}")
    if not is_backed:
        raise UserError(f"{path}: declares tensors that the file does not contain; use another")
    _check_content(path, state)
    return state


def _check_content(path: Path, state: dict[str, Any], tensor_type: type = torch.Tensor) -> None:
    """tensor_type: of weights. Stored tensors were found to be finite when they were verified."""
    if state.get("format") != FORMAT:
        raise UserError(f"{path}: is not a checkpoint of format {FORMAT}; resume with the version that wrote it")
    weights = dict[str, Any]()
    if not (wrong := [key for key, kind in _CONTENT.items() if not isinstance(state.get(key, ...), kind)]):
        named = ((key, name, one) for key in WEIGHTS for name, one in (state[key] or {}).items())
        weights = {f"{key} {format_value(name)}": one for key, name, one in named}
        wrong = [name for name, one in weights.items() if not isinstance(one, tensor_type)]
    if wrong:
        listed = ", ".join(wrong[:9])
        raise UserError(f"{path}: is not a checkpoint of this program: {listed} missing or of a wrong type")
    if not _is_consistent(state):
        raise UserError(f"{path}: is not a checkpoint of this program: its entries contradict each other; use another")
    for name, one in weights.items():
        if isinstance(one, torch.Tensor) and not one.isfinite().all():
            raise UserError(f"{path}: contains NaN or infinite values in {name}; use an earlier checkpoint")


def _is_consistent(state: dict[str, Any]) -> bool:
    """Returns whether a run can be at the position that the state gives."""
    try:
        read_split(state, {})
        steps = EpochLayout.of_geometry(state["geometry"]).steps_per_epoch
        options = parse_value(state["options"])
        sections = options["MODEL"], options["DATA"]
    except (KeyError, TypeError, ValueError, ZeroDivisionError, UserError):
        return False
    return (
        all(isinstance(section, dict) for section in sections)
        and state["epoch"] >= 0
        and 0 <= state["done_steps"] <= steps
        and state["sums"].shape == (NUM_SUMS,)
        and bool(state["sums"][1:].isfinite().all())  # the loss of a step with finite gradients may be infinite
        and math.isfinite(state["train_seconds"] + state["total_seconds"])
        and is_description(state)
        and (state["best"] is None or _is_best(state["best"]))
    )


def _is_best(entry: dict[str, Any]) -> bool:
    """Returns whether `best_entry` of `engine.training.snapshot` can have made the entry."""
    values = [value for name, value in entry.items() if name != "epoch" and value is not None]
    return (
        {"epoch", "loss"} <= entry.keys() <= {"epoch", *METRICS}  # an earlier version had fewer metrics
        and type(entry["epoch"]) is int
        and all(type(value) is float and math.isfinite(value) for value in values)
    )
