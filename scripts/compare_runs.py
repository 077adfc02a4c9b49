"""Compares training runs: a table on the terminal and a picture of their validation top-1, or mAP of several labels.

    python scripts/compare_runs.py output/*
    python scripts/compare_runs.py output/* -csv > runs.csv

The runs are sorted by this value, those with top-1 first: the two metrics are not ranked against each other.
Unfinished and failed runs are included; evaluations and predictions are left out with a line, files without one.
`options` has the options whose values differ between the runs. The picture is compare.png beside the first run's
folder; -picture FILE names another file.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.flags import Parser
from configs.reading.yaml_io import format_value
from engine.run.plots import curve, new_figure, plot_curve, write_png
from engine.run.summary import RunSummary, differing_options, read_run
from utils.columns import format_duration
from utils.entry import run_and_report_errors
from utils.errors import UserError, escape_control_characters
from utils.packages import is_installed
from utils.tables import aligned_table

COLUMNS = (
    "name", "top1", "epoch", "epochs", "train_seconds", "images_per_second", "peak_memory_bytes", "status", "options",
    "mean_ap",
)  # fmt: skip
HEADER = ("run", "best", "epoch", "time", "images/s", "memory", "status", "options that differ")
MAX_SHOWN_OPTIONS, MAX_COLUMN_CHARS = 6, 1000  # in the table
SCORE_MARKS = {"val_top1": " top-1", "val_mean_ap": " mAP"}  # a multi-label run has mean average precision
LINE_STYLES = ("-", "--", ":", "-.")  # one per ten runs: matplotlib has ten colors


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    runs = sort_runs(read_runs(flags.folders))
    if not runs:
        raise UserError(f"{flags.folders[0]}: no run found; give the folders of training runs, such as output/*")
    options = options_by_run(runs)
    if flags.csv:
        write_csv(runs, options)
    else:
        print(escape_control_characters("\n".join(table_lines(runs, options))))
    if not flags.picture and not is_installed("matplotlib"):
        print("No picture: matplotlib is not installed; pip install matplotlib", file=sys.stderr)
        return 0
    picture = flags.picture or runs[0].folder.absolute().parent / "compare.png"
    draw(runs, picture)
    print(f"Picture: {picture}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="scripts/compare_runs.py",
        usage="%(prog)s FOLDER ... [-csv] [-picture FILE]",
        description="Compares training runs in a table and a picture.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder of a run")
    parser.add_argument("-csv", "--csv", action="store_true", help="print CSV with all digits instead of the table")
    picture = "PNG to write (default: compare.png beside the runs)"
    parser.add_argument("-picture", "--picture", type=Path, metavar="FILE", help=picture)
    return parser


def read_runs(folders: Sequence[Path]) -> list[RunSummary]:
    """The training runs among the folders. Other folders give a line on standard error; files are ignored."""
    runs = []
    for folder in folders:
        if folder.is_file():
            continue
        try:
            run = read_run(folder)
            if run.is_evaluation:
                raise UserError(f"{folder}: is an evaluation; scripts/report.py shows it")
            runs.append(run)
        except UserError as problem:
            print(escape_control_characters(f"skipped: {problem}"), file=sys.stderr)
    return runs


def options_by_run(runs: list[RunSummary]) -> list[list[str]]:
    """For each run 'KEY=value' of the options whose values are not the same in all runs."""
    differing = differing_options(runs)
    return [
        [f"{key}={format_value(values[number])}" for key, values in differing.items()] for number in range(len(runs))
    ]


def sort_runs(runs: list[RunSummary]) -> list[RunSummary]:
    """The highest score first, runs with mAP after those with top-1; runs without an evaluation last."""

    def rank(run: RunSummary) -> tuple[bool, bool, float, str]:
        return run.best is None, run.is_multi_label, -(run.best[1] if run.best else 0.0), run.name

    return sorted(runs, key=rank)


def table_lines(runs: list[RunSummary], options: list[list[str]]) -> list[str]:
    """The table as aligned lines; '-' where a run has no value."""
    rows = (_cells(run, parts) for run, parts in zip(runs, options, strict=True))
    return aligned_table(HEADER, rows, MAX_COLUMN_CHARS).split("\n")


def _cells(run: RunSummary, options: list[str]) -> tuple[str, ...]:
    def show(value: float | None, text: str) -> str:
        return "-" if value is None else text

    epoch, score = run.best or (None, None)
    more = len(options) - MAX_SHOWN_OPTIONS
    return (
        run.name,
        show(score, f"{score or 0:.2f}%{SCORE_MARKS[run.score_column]}"),
        show(epoch, f"{epoch}/{run.num_epochs}"),
        show(run.train_seconds, format_duration(run.train_seconds or 0)),
        show(run.images_per_second, f"{run.images_per_second or 0:.1f}"),
        show(run.peak_memory_bytes, f"{(run.peak_memory_bytes or 0) / 1e9:.3g}G"),
        run.short_status,
        ", ".join(options[:MAX_SHOWN_OPTIONS]) + (f", {more} more in the CSV" if more > 0 else ""),
    )


def write_csv(runs: list[RunSummary], options: list[list[str]]) -> None:
    """Prints the runs as CSV: top-1 or mAP in percent, its epoch, the epochs of the whole run; else empty cells."""
    writer = csv.writer(sys.stdout)
    writer.writerow(COLUMNS)
    for run, parts in zip(runs, options, strict=True):
        epoch, score = run.best or ("", "")
        top1, mean_ap = (score, "") if run.score_column == "val_top1" else ("", score)
        measured = (run.train_seconds, run.images_per_second, run.peak_memory_bytes)
        writer.writerow([run.name, top1, epoch, run.num_epochs, *measured, run.short_status, ", ".join(parts), mean_ap])


def draw(runs: list[RunSummary], path: Path) -> None:
    """Writes the curves of validation top-1 or mAP; a star marks the best epoch of each run.

    Raises:
        UserError: the file cannot be written.
    """
    evaluated = [run for run in runs if run.best]
    names = sorted({SCORE_MARKS[run.score_column].strip() for run in runs}, reverse=True)
    figure, axes = new_figure("epoch", f"validation {' or '.join(names)} (%)", f"{len(evaluated)} runs", size=(9, 5))
    for number, run in enumerate(evaluated):
        _draw_run(axes, run, LINE_STYLES[number // 10 % len(LINE_STYLES)])
    if axes.lines:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    try:
        write_png(figure, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another file with -picture") from None


def _draw_run(axes: Any, run: RunSummary, style: str) -> None:
    (epoch, score), mark = run.best, SCORE_MARKS[run.score_column]
    line = plot_curve(axes, curve(run.epochs, run.score_column), f"{run.name}: {score:.2f}%{mark}")
    line.set_linestyle(style)
    axes.plot(epoch, score, "*", color=line.get_color(), markersize=12)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
