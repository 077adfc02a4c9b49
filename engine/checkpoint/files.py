"""Finding, reading and writing checkpoints: every file is verified before it is used."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, FiniteFloat, NonNegativeInt
from torch import Tensor

from configs.batch_plan import EpochLayout
from configs.load import RUN_OPTIONS
from configs.weights import PADDLE, read_entries
from configs.yaml_io import Values, format_value, parse_value
from datasets.sources.listing import name_like
from engine.checkpoint.run_folder import (
    BEST,
    FILE,
    FORMAT,
    LAST,
    PREVIOUS,
    WEIGHTS,
    check_writable,
    checkpoints_by_progress,
    is_run_folder,
    link_copies,
    lock_run_folder,
    modified_time,
    remove_temporary,
)
from engine.checkpoint.weights_record import check_description, check_values, read_split
from engine.progress import NUM_SUMS
from models.weights.read import with_tensors
from utils.distributed import ProcessContext, broadcast_object, call_on_main, find_on_main
from utils.errors import REFUSED, Unavailable, UserError, error_from
from utils.file_formats.pickles import read_pickle, verify_archive
from utils.files import atomic_save, read_json, tensor_bytes
from utils.metric_table import METRICS
from utils.notes import STATUS
from utils.system import available_bytes
from utils.torch_compat import tree_map_only

_PADDLE_OPTIMIZER = ".pdopt"  # beside the .pdparams of PaddleViT's earlier checkpoints
_MOST_COPIED = 10**8  # bytes of a checkpoint that is written beside a training on a CPU
LARGE = (*WEIGHTS, "optimizer")  # the entries whose tensors are on rank 0 only


class _Content(BaseModel, strict=True, arbitrary_types_allowed=True):
    """The entries of a checkpoint."""

    model: dict[str, Tensor]
    state_dict_ema: dict[str, Tensor] | None  # AVERAGE
    optimizer: dict[Any, Any]
    precision: dict[Any, Any]
    epoch: NonNegativeInt
    done_steps: NonNegativeInt
    sums: Tensor
    geometry: dict[Any, Any]
    best: dict[str, FiniteFloat | None] | None
    train_seconds: FiniteFloat
    total_seconds: FiniteFloat
    images: int
    options: str
    class_names: list[Any] | None


class CheckpointPlace(NamedTuple):
    """A checkpoint in the folder of a run, and where it stands: its epoch and the share of the epoch."""

    path: Path
    progress: tuple[int, float]
    best: Values | None

    @property
    def is_best(self) -> bool:
        """Whether it has the weights of its best evaluation."""
        return self.best is not None and self.progress == (self.best["epoch"], 0.0)


def _place_of(path: Path, state: Values) -> CheckpointPlace:
    steps = EpochLayout.of_geometry(state["geometry"]).steps_per_epoch
    return CheckpointPlace(path, (state["epoch"], state["done_steps"] / max(steps, 1)), state["best"])


def read_places(folder: Path) -> list[CheckpointPlace]:
    """The places of the checkpoints of a folder; without those that are damaged or of another program."""
    places = []
    for path in checkpoints_by_progress(folder):
        with suppress(AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
            place = _place_of(path, read_entries(path))
            if _is_best(place.best):
                places.append(place)
    return places


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, the same one on all ranks; those after rank 0 have meta tensors in LARGE entries.

    notes: a line for each checkpoint that was skipped. run_folder: of the run that it continues; None if it lies
    elsewhere, for an evaluation, or if the run has checkpoints ahead of it: a new folder leaves them as they are.
    places: of the checkpoints in that folder.
    """

    path: Path
    state: Values
    notes: list[str]
    run_folder: Path | None
    places: list[CheckpointPlace]

    @property
    def place(self) -> CheckpointPlace:
        return _place_of(self.path, self.state)


def find_checkpoint(
    resume: str,
    context: ProcessContext,
    runs: Iterable[Path] = (),
    best_first: bool = False,
    locks: ExitStack | None = None,
) -> FoundCheckpoint | None:
    """Finds and reads the checkpoint that `-resume` names. A collective call; only the main process reads.

    resume: a checkpoint, with or without its extension; or the folder of a run, for its most recent valid checkpoint;
    or 'auto', for the first of `runs` that has a valid checkpoint (None without any run).
    best_first: prefers the best checkpoint, and reads no places: for evaluations.
    locks: receives the lock of a run's folder before a checkpoint in it is read, since the run may still write.
    Raises UserError: no such file or folder, no valid checkpoint in it, or a locked folder.
    """

    def search() -> FoundCheckpoint | None:
        refused = []
        for path in _search(resume, runs, best_first, locks):
            try:
                state = load_checkpoint(path)
            except UserError as error:
                refused.append(error)
                continue
            found = FoundCheckpoint(path, state, list(map(str, refused)), run_folder=None, places=[])
            if best_first or not is_run_folder(path.parent):
                return found
            places = read_places(path.parent)
            if any(place.progress > found.place.progress for place in places):
                return found
            return replace(found, run_folder=path.parent, places=places)
        _raise_not_found(resume, refused)
        return None

    found = call_on_main(search, context)
    sent = found
    if found:  # other ranks get meta tensors, but for scalars
        to_meta = partial(tree_map_only, Tensor, lambda tensor: tensor.to("meta") if tensor.dim() else tensor)
        sent = replace(found, state=found.state | {entry: to_meta(found.state[entry]) for entry in LARGE})
    sent = broadcast_object(sent, context)
    return found if context.is_main else sent


def _search(resume: str, runs: Iterable[Path], best_first: bool, locks: ExitStack | None) -> Iterator[Path]:
    """The checkpoints to try, in this order."""
    if resume != "auto":
        named = _with_extension(Path(resume))
        runs = [named] if named.exists() else []
    for run in runs:
        sharded = _sharded_in(run)
        if sharded:
            raise UserError(
                f"{sharded[0]}: is a sharded checkpoint of version 0.2, a folder; "
                "make one file of it with that version, see docs/resume.md#formats"
            )
        folder = run if run.is_dir() else run.parent
        if not best_first and is_run_folder(folder):
            check_writable(folder, "resume a copy of it")
            if locks:
                locks.enter_context(lock_run_folder(folder))
        if run.is_file():
            yield run
            return
        paths = checkpoints_by_progress(run) or sorted(run.glob(f"*{PADDLE}"), key=modified_time)[-1:]
        if best_first:
            paths.sort(key=lambda path: path.name != BEST)
        yield from paths


def _raise_not_found(resume: str, refused: Sequence[UserError]) -> None:
    """Raises the UserError of a search without a result; 'auto' needs none if there is no run."""
    if refused:
        several = f"none of {len(refused)} checkpoints is valid: " if len(refused) > 1 else ""
        kind = UserError if all(error.status == REFUSED for error in refused) else Unavailable
        raise kind(f"{several}{refused[0]}")
    if resume == "auto":
        return
    named = _with_extension(Path(resume))
    problem = "no checkpoint found" if named.exists() else "no such file or folder"
    fix = name_like(named) or "; give a .pth file, the folder of a run, or auto"
    if read_json(named / STATUS).get("state", "finished") != "finished":
        problem = "the run was ended before its first checkpoint, or has not reached it"
        fix = f"; to start it again, give -cfg={shlex.quote(str(named / RUN_OPTIONS))} in place of -resume"
    if runs := runs_newest_first(named):
        problem = "is a folder of runs"
        fix = f"; give one of them, such as {shlex.quote(str(runs[0]))}"
    raise Unavailable(f"-resume {resume}: {problem}{fix}")


def _sharded_in(run: Path) -> list[Path]:
    """The checkpoints of version 0.2 in a run that are folders, or `run` itself; [] if a file was made of the last."""
    if os.path.exists(run / LAST):
        return []
    return [path for path in (run, *sorted(run.glob("*.shards"))) if path.suffix == ".shards"]


def _with_extension(path: Path) -> Path:
    """`path`, or the checkpoint whose name without its extension is `path`."""
    extensions = ("", FILE, PADDLE, _PADDLE_OPTIMIZER)
    files = (Path(f"{path}{end}") for end in extensions)
    return next(filter(os.path.exists, files), path)


def runs_newest_first(output: Path) -> list[Path]:
    """The folders of runs that have a checkpoint, also one that `find_checkpoint` refuses."""
    newest = {}
    for folder in output.glob("*"):
        paths = _sharded_in(folder)
        if is_run_folder(folder):
            paths += checkpoints_by_progress(folder)
        if paths:
            newest[folder] = max(map(modified_time, paths))
    return sorted(newest, key=newest.__getitem__, reverse=True)


def find_best(found: FoundCheckpoint, context: ProcessContext) -> Path | None:
    """The valid checkpoint of the run with the weights of its best evaluation, best.pth first; a collective call."""

    def first_valid() -> Path | None:
        paths = [place.path for place in found.places if place.is_best and place.best == found.state["best"]]
        for path in sorted(paths, key=lambda path: path.name != BEST):
            with suppress(UserError):
                load_checkpoint(path)
                return path
        return None

    return find_on_main(first_valid, context)


def load_checkpoint(path: Path) -> Values:
    """Reads a checkpoint that `CheckpointWriter` wrote; runs no code of the file. LARGE entries stay in the file.

    Raises UserError: the file is damaged, of another program or format, or contains non-finite weights.
    """
    if path.suffix in (PADDLE, _PADDLE_OPTIMIZER):
        named = re.search(r"Epoch-(\d+)", path.name)
        epoch = named[1] if named else "EPOCH"
        with suppress(Exception):  # files of before lack it, or are no pickle
            epoch = read_pickle(path, is_plain=True)["epoch"]
        raise UserError(
            f"{path}: PaddleViT's optimizer state cannot be resumed; start from its weights with "
            f"-pretrained={shlex.quote(str(path.with_suffix(PADDLE)))} and -last_epoch={epoch}"
        )
    others = f"-pretrained={shlex.quote(str(path))} starts from weights"
    if is_run_folder(path.parent):
        others = f"-resume={shlex.quote(str(path.parent))} takes another checkpoint of this run, and {others}"
    try:
        verify_archive(path)
        state = with_tensors(read_pickle(path))
    except UserError:
        raise
    except Exception as error:  # almost any type
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise error_from(
            error, f"{path}: cannot be read, is damaged, or not a checkpoint of this program ({reason}); {others}"
        ) from None
    state = state if isinstance(state, dict) else {}
    if "format" not in state:
        raise UserError(f"{path}: has weights only, or is of another program; {others}")
    _check_content(path, state)
    small = {entry: state[entry] for entry in state.keys() - {*LARGE}}
    return state | tree_map_only(Tensor, torch.clone, small)  # a run keeps them, and not the file


def _check_content(path: Path, state: Values) -> None:
    if state.get("format") != FORMAT:
        raise UserError(f"{path}: is not a checkpoint of format {FORMAT}; resume with the version that wrote it")
    try:
        check_values(_Content, state)
        check_description(state)
    except ValueError as error:
        raise UserError(
            f"{path}: is not a checkpoint of this version: {error}; "
            f"start from its weights with -pretrained={shlex.quote(str(path))}"
        ) from None
    if not _is_consistent(state):
        raise UserError(f"{path}: is not a checkpoint of this program: its entries contradict each other; use another")
    if name := _non_finite(state):
        raise UserError(f"{path}: contains NaN or infinite values in {name}; use an earlier checkpoint")


def _non_finite(state: Values) -> str:
    """The first tensor of the weights with a NaN or infinite value; '' if there is none."""
    named = {f"{key} {format_value(name)}": one for key in WEIGHTS for name, one in (state[key] or {}).items()}
    flags = torch.stack([one.isfinite().all() for one in named.values()]).tolist() if named else []  # one wait
    return next((name for name, is_finite in zip(named, flags, strict=True) if not is_finite), "")


def _is_consistent(state: Values) -> bool:
    """Returns whether a run can be at the position that the state gives."""
    try:
        read_split(state, {})
        steps = EpochLayout.of_geometry(state["geometry"]).steps_per_epoch
        options = parse_value(state["options"])
        _sections = {**options["MODEL"], **options["DATA"]}
    except (KeyError, TypeError, ValueError, ZeroDivisionError, UserError):
        return False
    sums = state["sums"]
    has_sums = sums.shape == (NUM_SUMS,) and sums[1:].isfinite().all()  # the loss of finite gradients may be infinite
    return bool(has_sums) and state["done_steps"] <= steps and _is_best(state["best"])


def _is_best(entry: Values | None) -> bool:
    """Returns whether a trainer can have made the entry."""
    if entry is None:
        return True
    # an earlier version had fewer metrics
    return {"epoch", "loss"} <= entry.keys() <= {"epoch", *METRICS} and type(entry["epoch"]) is int


class CheckpointWriter:
    """Writes files, one at a time, in a background thread if host memory can hold a copy, else in the calling thread.

    So does a training on a CPU with a large model: a copy takes as much memory as its weights, average and optimizer.
    The current GPU is a setting of each thread: a new thread would allocate memory on the first one, of another rank.
    The thread computes no large tensor: its OpenMP threads and the training's would be more than the cores, and GNU's
    OpenMP then lets idle threads sleep at once, which doubles the time of a small training.
    """

    def __init__(
        self, folder: Path, keep: int, on_written: Callable[[Path, Values], None], is_copy: bool = False
    ) -> None:
        """keep: number of periodic checkpoints. on_written: called with each checkpoint and its content.
        is_copy: the tensors to save are copies in host memory."""
        self.folder = folder
        self.keep = keep
        self.on_written = on_written
        self.is_copy = is_copy
        on_start = (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_initialized() else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_start)
        self._pending: Future[None] | None = None
        remove_temporary(folder)

    def wait(self) -> None:
        """Waits until all files are written. Raises the error of the background thread."""
        pending = self._pending
        self._pending = None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raises the error of the background thread if it is known already; does not wait."""
        if self._pending and self._pending.done():
            self.wait()

    def save(self, state: Values, is_best: bool, periodic: str | None, is_later: bool = True) -> None:
        """Writes the last checkpoint; its files also become the best one and `periodic` if those are due.

        is_later: than the last checkpoint, which becomes the previous one; else its step is the same one.
        Raises UserError: this one, or the one before, cannot be written or is not finite; the checkpoints on disk stay.
        """
        self.wait()
        last = self.folder / LAST
        if name := _non_finite(state):
            raise UserError(f"{last}: not written: NaN or infinite values in {name}; lower -lr, set TRAIN.GRAD_CLIP=1")
        content: Values = {"format": FORMAT} | state
        for entry in WEIGHTS:
            if state[entry]:  # without an average None
                content[entry] = {name: one.contiguous() for name, one in state[entry].items()}
        if not self.is_copy:
            limit = available_bytes() / 2
            if not torch.cuda.is_initialized():
                limit = min(limit, _MOST_COPIED)
            if tensor_bytes(content) > limit:
                self._write(content, is_best, periodic, is_later)
                return
            content = tree_map_only(Tensor, lambda one: one.detach().to("cpu", copy=True), content)
        self._pending = self._thread.submit(self._write, content, is_best, periodic, is_later)

    def _write(self, content: Values, is_best: bool, periodic: str | None, is_later: bool) -> None:
        last = self.folder / LAST
        atomic_save(last, content, previous=self.folder / PREVIOUS if is_later else None)
        link_copies(last, is_best, periodic, self.keep)
        self.on_written(self.folder / (BEST if is_best else LAST), content)
