"""The record of a run: one object in memory, `run.json`, and the rows of `metrics.jsonl`. Without torch and numpy.

`status.json` is a view of `run.json` for schedulers, `metrics.csv` a view of the rows for spreadsheets.
docs/operation.md describes the keys. Log, loggers, terminal and page show the same values.
"""

import csv
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, get_args

from configs.schema.section import only
from configs.yaml_io import Values
from engine.run.facts import Fact
from utils import notes
from utils.errors import UserError, escape_control_characters, from_here
from utils.files import (
    atomic_write,
    indented_json,
    link_or_copy,
    open_atomically,
    open_regular_file,
    own_file,
    read_json,
)
from utils.metric_table import METRICS, with_old_names
from utils.notes import LAUNCH_FOLDER, STATUS, UNFINISHED

RUN = "run.json"
ROWS = "metrics.jsonl"
TABLE = "metrics.csv"
LOG = "log.txt"
REPORT = "report.html"
DETAILS = "details"  # a folder: a training batch, the curves, TensorBoard's events
TRAIN_BATCH = f"{DETAILS}/train_batch.png"  # images that the run was trained on
SUSPECTS = "suspects/suspects.csv"  # images whose label may be wrong; beside it the first ones' PICTURES
# folders; their files:
EVALUATION = "evaluation"
TEST_EVALUATION = "evaluation-test"
GROUPS = "groups"  # a folder in them, of the means of groups
SUMMARY = "summary.json"
TABLES = "tables.json"
PER_IMAGE = "per_image.csv"
CONFUSION = "confusion.csv"
PICTURES = "pictures"
MISTAKES = ("index", "path", "true", "predicted", "probability", "true_probability", "loss")  # columns
MAX_CHARS = 1000  # of a warning
Row = Values
Kind = Literal["report", "evaluation", "epoch"]  # of a row

STATUS_KEYS = (
    "state", "exit_status", "message", "checkpoint", "epoch", "step", "resume", "pid", "host", "updated",
)  # fmt: skip
_STATE_KEYS = (*STATUS_KEYS, "signal", "stopped_early", "reason", "slow_rank", "world_size", "started")
BASELINES = ("pixel_baseline", "majority_class")
# A new key of the result: here, in docs/operation.md, and where it is measured (CONTRIBUTING.md names the places).
RESULT_KEYS = (
    *METRICS, "samples", "split", "f1", "epoch", "checkpoint", "average_score",
    "raw_score", "probe_score", "knn_top1", "probe_l2", *BASELINES, "test", "finished", "stopped_early", "reason",
    "train_seconds", "total_seconds", "images_per_second", "peak_memory_bytes", "numeric_precision", "device",
    "parameters", "trainable_parameters",
)  # fmt: skip
# The first columns of `metrics.csv`; the others follow from the metrics.
COLUMNS = [
    "epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5",
    "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "skipped_images", "peak_memory_bytes", "train_seconds", "grad_norm", "images_in_skipped_steps",
    "raw_val_loss", "raw_val_top1", "raw_val_top5", "val_mean_ap", "raw_val_mean_ap",
    "launch_bound_share",
]  # fmt: skip
COLUMNS = list(dict.fromkeys([*COLUMNS, *(prefix + name for prefix in ("val_", "raw_val_") for name in METRICS)]))


def _new_values() -> Values:
    return {
        **dict.fromkeys(_STATE_KEYS),
        "state": "running",
        "stopped_early": False,
        "result": dict.fromkeys(RESULT_KEYS) | {"finished": False, "stopped_early": False},
        "starts": 0,
        "facts": {},
        "warnings": {},
        "class_names": None,
        "preprocessing": None,
        "given": {},
    }


class RunRecord:
    """All that is known about a run. Values that are not finite are None: JSON has none.

    Every rank has a record. The main process writes the files; the other ranks write only how the run ended: torchrun
    hides exit statuses.

    values: the content of `run.json`. epochs: the rows of `metrics.csv` by epoch; on the main process.
    earlier: `values` at the end of the start before this one; empty in a new run.
    on_end: called once, when this process has set a final state. Its exceptions are suppressed: they would hide the
        reason of that state.
    """

    def __init__(self, is_main: bool = True) -> None:
        self.is_main = is_main
        self.values = _new_values()
        self.earlier = Values()
        self.epochs: dict[int, Row] = {}
        self._num_in_table = 0
        self.on_end: Callable[[], None] = lambda: None
        self._folder: Path | None = None
        self.resume_command: str | None = None
        self._lock = threading.RLock()  # checkpoints are written in a thread

    @property
    def folder(self) -> Path:
        assert self._folder
        return self._folder

    def open(self, folder: Path, resume_command: str | None = None, **values: Any) -> None:
        """Begins a start of the run in `folder`; the record of its earlier starts is continued.

        resume_command: of the run, from its first checkpoint on. values: `pid` and `host` of the main process, and
        others that are known.
        """
        self.earlier = read_run(folder) if self.is_main else {}
        with self._lock:
            before = _new_values() | self.earlier
            self.values |= {
                "started": time.strftime("%Y-%m-%d %H:%M:%S%z"),
                "starts": before["starts"] + 1,
                "facts": before["facts"] | self.values["facts"],
                "warnings": dict(Counter(before["warnings"]) + Counter(self.values["warnings"])),
                **values,
            }
            self._folder = folder
            self.resume_command = resume_command
            if self.is_main:
                self._write({})
                if launch := os.environ.get(LAUNCH_FOLDER):
                    identity = {"folder": str(folder), "pid": values["pid"], "host": values["host"]}
                    atomic_write(Path(launch, RUN), json.dumps(identity))
        notes.on_run_end = self.update

    def update(self, overrules: bool = False, **values: Any) -> str | None:
        """Sets keys while the run has not ended, and no other process has resumed it.

        The first final state is kept: the first process to fail knows why. overrules: it is replaced, unless the run is
        complete. Returns how to resume the run, if the keys were set and it has a checkpoint.
        """
        resume: str | None = None
        if "checkpoint" in values:
            values["resume"] = self.resume_command
        with self._lock:
            if self._may_replace() or (overrules and self._may_replace("failed", "interrupted")):
                self.values |= values
                of_main = {} if self.is_main else read_run(self.folder) | values
                self._write(of_main)
                resume = self.values["resume"] or of_main.get("resume")
                if message := values.get("message"):
                    self._log(f"error: {message}", f"resume with: {from_here(resume)}" if resume else "")
        if values.get("state", "running") not in UNFINISHED:
            on_end = self.on_end
            self.on_end = lambda: None
            with suppress(Exception):
                on_end()
        return resume

    def _log(self, *lines: str) -> None:
        """Appends to log.txt, whose logger only the main process has: it may be the one that was lost."""
        with suppress(OSError, UserError), open(self.folder / LOG, "a", encoding="utf-8", opener=own_file) as file:
            for line in filter(None, lines):
                print(time.strftime("%Y-%m-%d %H:%M:%S"), escape_control_characters(line), file=file)

    def set_result(self, **values: Any) -> None:
        """Sets entries of `result`; the next `update` writes them."""
        assert values.keys() <= set(RESULT_KEYS), "add the key to RESULT_KEYS"
        with self._lock:
            self.values["result"] |= with_old_names(values)

    def set_best(self, best: Mapping[str, Any], checkpoint: Path) -> None:
        """The best evaluation so far: its metrics by name, and its epoch."""
        metrics = only(best, METRICS)
        self.set_result(**metrics, split="val", epoch=best["epoch"], checkpoint=str(checkpoint.absolute()))

    def add_fact(self, fact: Fact) -> None:
        with self._lock:
            self.values["facts"][type(fact).__name__] = asdict(fact)
            self._write_if_own()

    def add_warning(self, text: str) -> None:
        """Records a problem that does not end the run."""
        with self._lock:
            counts = self.values["warnings"]
            counts[text[:MAX_CHARS]] = counts.get(text[:MAX_CHARS], 0) + 1
            self._write_if_own()

    def _write_if_own(self) -> None:
        if self._folder and self.is_main and self._may_replace(self.values["state"]):
            self._write({})

    def _may_replace(self, *states: str) -> bool:
        """Whether the record on the disk is of this process, and of a run that continues or is in one of `states`."""
        written = read_json(self.folder / STATUS)
        is_own = all(written.get(key, self.values[key]) == self.values[key] for key in ("pid", "host"))
        return is_own and written.get("state", "running") in (*UNFINISHED, *states)

    def _write(self, of_main: Values) -> None:
        """Ignores a full disk: saving a checkpoint reports it. The blocks of the old file hold the new text, too.

        of_main: what another rank writes: the main process has added to its record.
        """
        values = self.values | of_main | {"updated": time.strftime("%Y-%m-%d %H:%M:%S%z")}
        view = {key: values[key] for key in STATUS_KEYS}
        for name, content in ((RUN, values), (STATUS, view)):
            text = indented_json(_finite(content))
            try:
                atomic_write(self.folder / name, text)
            except OSError:
                with suppress(OSError, UserError):
                    _overwrite(self.folder / name, text)

    def open_rows(self, epochs_done: int, steps_done: int) -> str:
        """Continues the rows after this position: later ones are dropped. The main process calls it.

        Damaged rows are left out: a copy keeps the file as it was, and the returned warning, else empty, says so.
        """
        path = self.folder / ROWS
        original = self.folder / "metrics.damaged.jsonl"
        rows, damaged = read_metrics(self.folder)
        warning = ""
        if damaged:
            link_or_copy(path, original)
            warning = f"{path}: {damaged} damaged row(s) are left out; {original.name} is the file as it was"
        kept = []
        for row in rows:
            is_done = row["epoch"] <= epochs_done
            if row["kind"] == "report":
                is_done = row["step"] <= steps_done
            if is_done:
                kept.append(row)
        with open_atomically(path) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in kept)
        self.epochs = by_epoch(kept)
        with open_atomically(self.folder / TABLE) as file:
            self._add_to_table(file)
        return warning

    def add_row(self, kind: Kind, **values: Any) -> None:
        """Appends a row, on the main process; the one of the kind epoch is the last of its epoch. Raises OSError."""
        if not self.is_main:
            return
        row = {"kind": kind} | _finite(values)
        with open(self.folder / ROWS, "a", encoding="utf-8", opener=own_file) as file:
            file.write(f"{json.dumps(row)}\n")
        if kind != "report":
            self.epochs.setdefault(row["epoch"], {}).update(row)
        if kind == "epoch":
            with open(self.folder / TABLE, "a", encoding="utf-8", newline="", opener=own_file) as file:
                self._add_to_table(file)

    def _add_to_table(self, file: IO[str]) -> None:
        """Appends the rows of new epochs; a file without content gets all of them."""
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if not file.tell():
            self._num_in_table = 0
            writer.writeheader()
        writer.writerows(islice(self.epochs.values(), self._num_in_table, None))
        self._num_in_table = len(self.epochs)

    def sync(self) -> None:
        """Returns when the rows are on the disk."""
        with open(self.folder / ROWS) as file:
            os.fsync(file.fileno())


def record_end_of_ranks(folder: Path, **values: Any) -> str | None:
    """Records how a run ended, for the launcher of its ranks, which alone knows the rank that was lost; as `update`.

    folder: `LAUNCH_FOLDER` of the ranks.
    """
    if not (run := read_json(folder / RUN)):
        return None
    record = RunRecord(is_main=False)
    record.open(Path(run["folder"]), pid=run["pid"], host=run["host"])
    return record.update(overrules=values["state"] == "failed", **values)


def _overwrite(path: Path, text: str) -> None:
    """Writes ASCII into the blocks of a file, if they hold it. Raises OSError."""
    with open(path, "r+b", 0, opener=own_file) as file:
        old = os.fstat(file.fileno())
        if len(text) <= 512 * old.st_blocks:
            file.write(text.ljust(old.st_size).encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(folder: Path) -> Values:
    """The content of `run.json`; empty if the folder has none, or a damaged one. Wrong types give new values."""
    found = read_json(folder / RUN)
    values = _new_values()
    for key, value in found.items():
        if values.get(key) is None or isinstance(value, type(values[key])):
            values[key] = value
    return found and values


def read_metrics(folder: Path) -> tuple[list[Row], int]:
    """The rows of `metrics.jsonl`, and the number of damaged ones, without a last one that a crash left incomplete."""
    rows = list[Row]()
    damaged = 0
    with suppress(FileNotFoundError), TextIOWrapper(open_regular_file(folder / ROWS), "utf-8", "replace") as file:
        for line in file:
            is_row = False
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                row = json.loads(line)
                is_row = row["kind"] in get_args(Kind) and min(row["epoch"], row["step"]) >= 0
            if is_row:
                rows.append(row)
            elif line.endswith("\n"):
                damaged += 1
    return rows, damaged


def by_epoch(rows: Iterable[Row]) -> dict[int, Row]:
    """The rows of evaluations and epochs, one per epoch."""
    epochs: dict[int, Row] = {}
    for row in rows:
        if row["kind"] != "report":
            epochs.setdefault(row["epoch"], {}).update(row)
    return epochs


def read_evaluation(folder: Path) -> Values:
    """The content of `summary.json` and `tables.json` of an evaluation; empty if they are missing or damaged."""
    return read_json(folder / SUMMARY) | read_json(folder / TABLES)
