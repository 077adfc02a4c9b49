"""Compares training runs: a table on the terminal and a picture of their validation top-1.

    python scripts/compare_runs.py output/*
    python scripts/compare_runs.py output/* -csv > runs.csv

The runs are sorted by their best top-1. Unfinished and failed runs are included. `options` has the options whose values
differ between the runs. The picture is compare.png beside the first run's folder; -picture FILE names another file.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import Parser
from engine.telemetry.plots import curve, new_figure, plot_curve, write_png
from scripts.run_summaries import RunSummary, differing_options, read_run
from utils.columns import format_duration
from utils.errors import UserError, escape_control_characters, run_and_report_errors

COLUMNS = (
    "name", "top1", "epoch", "epochs", "train_seconds", "images_per_second", "peak_memory_bytes", "status", "options",
)  # fmt: skip
HEADER = ("run", "best top-1", "epoch", "time", "images/s", "memory", "status", "options that differ")
MAX_SHOWN_OPTIONS = 6  # in the table
LINE_STYLES = ("-", "--", ":", "-.")  # one per ten runs: matplotlib has ten colors


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    runs = sort_runs(read_runs(flags.folders))
    if not runs:
        raise UserError(f"{flags.folders[0]}: no run found; give the folders of training runs, such as output/*")
    options = differing_options(runs)
    if flags.csv:
        write_csv(runs, options)
    else:
        print(escape_control_characters("\n".join(table_lines(runs, options))))
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
            runs.append(read_run(folder))
        except UserError as problem:
            print(escape_control_characters(f"skipped: {problem}"), file=sys.stderr)
    return runs


def sort_runs(runs: list[RunSummary]) -> list[RunSummary]:
    """The best top-1 first; runs without an evaluation last."""
    return sorted(runs, key=lambda run: (run.best is None, -(run.best[1] if run.best else 0.0), run.name))


def table_lines(runs: list[RunSummary], options: list[list[str]]) -> list[str]:
    """The table as aligned lines; '-' where a run has no value."""
    rows = [HEADER, *(_cells(run, parts) for run, parts in zip(runs, options, strict=True))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(run: RunSummary, options: list[str]) -> tuple[str, ...]:
    def show(value: float | None, text: str) -> str:
        return "-" if value is None else text

    epoch, top1 = run.best or (None, None)
    more = len(options) - MAX_SHOWN_OPTIONS
    return (
        run.name,
        show(top1, f"{top1 or 0:.2f}%"),
        show(epoch, f"{epoch}/{run.num_epochs}"),
        show(run.train_seconds, format_duration(run.train_seconds or 0)),
        show(run.images_per_second, f"{run.images_per_second or 0:.1f}"),
        show(run.peak_memory_bytes, f"{(run.peak_memory_bytes or 0) / 1e9:.3g}G"),
        run.status,
        ", ".join(options[:MAX_SHOWN_OPTIONS]) + (f", {more} more in the CSV" if more > 0 else ""),
    )


def write_csv(runs: list[RunSummary], options: list[list[str]]) -> None:
    """Prints the runs as CSV: top-1 in percent, its epoch, the epochs of the whole run; cells without a value empty."""
    writer = csv.writer(sys.stdout)
    writer.writerow(COLUMNS)
    for run, parts in zip(runs, options, strict=True):
        epoch, top1 = run.best or ("", "")
        measured = (run.train_seconds, run.images_per_second, run.peak_memory_bytes)
        writer.writerow([run.name, top1, epoch, run.num_epochs, *measured, run.status, ", ".join(parts)])


def draw(runs: list[RunSummary], path: Path) -> None:
    """Writes the curves of validation top-1; a star marks the best epoch of each run.

    Raises:
        UserError: the file cannot be written.
    """
    evaluated = [run for run in runs if run.best]
    figure, axes = new_figure("epoch", "validation top-1 (%)", f"{len(evaluated)} runs", size=(9, 5))
    for number, run in enumerate(evaluated):
        _draw_run(axes, run, LINE_STYLES[number // 10 % len(LINE_STYLES)])
    if axes.lines:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    try:
        write_png(figure, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another file with -picture") from None


def _draw_run(axes: Any, run: RunSummary, style: str) -> None:
    epoch, top1 = run.best
    line = plot_curve(axes, curve(run.epochs, "val_top1"), f"{run.name}: {top1:.2f}%")
    line.set_linestyle(style)
    axes.plot(epoch, top1, "*", color=line.get_color(), markersize=12)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
