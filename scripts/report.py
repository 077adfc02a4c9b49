"""Writes the page of a run, or compares runs: a page, and a table in the terminal.

    python scripts/report.py output/vit_digits-20260101-12-00     # writes report.html in that folder
    python scripts/report.py output/*                             # writes output/compare.html, and prints a table
    python scripts/report.py output/* -csv > runs.csv             # the table as CSV, with all digits
    python scripts/report.py output/vit_digits-sweep-1b0d8a62     # the runs in a folder, such as a sweep's
    python scripts/report.py RUN -share                           # RUN/share.html, to send: no paths, no pictures

Runs that differ only in seed or fold are a group: groups.csv beside the page has mean and standard deviation. Other
folders give a line, and files are ignored. A page of a part of the runs in a folder, such as of two of a sweep, is
compare-CHECKSUM.html, and the files beside it are compare-CHECKSUM-groups.csv and the like.
"""

import csv
import os
import re
import shutil
import sys
import textwrap
import zlib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from tqdm.utils import disp_len

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.flags import Parser, add_flag
from configs.load import RUN_OPTIONS
from configs.yaml_io import format_value
from engine.report.charts import Chart, curves_of, option_text
from engine.report.contents import EvaluationContents, RunContents, read_contents
from engine.report.page import COMPARISON, comparison_page, run_page
from engine.report.settings import compare_settings
from engine.report.tables import (
    Group,
    compared_options,
    evaluated_images,
    group_columns,
    groups_of,
    ranked,
    results,
)
from engine.run.record import BASELINES, REPORT
from scripts.flags import write_output
from utils.errors import UserError, escape_control_characters, on_one_line, print_escaped, shortened
from utils.metric_table import METRICS
from utils.notes import run_name
from utils.processes.entry import run_script
from utils.tables import aligned_table, table_text

_MEASURED = ("train_seconds", "images_per_second", "peak_memory_bytes")
COLUMNS = [
    "name", "top1", "epoch", "epochs", *_MEASURED, "status", "options", "mean_ap", "split", "macro_f1", "images",
    "images_digest",
]  # fmt: skip
COLUMNS += [*(name for name in METRICS if name not in COLUMNS), "best_metric", *BASELINES]
SHARED = "share.html"
CURVES = "curves.png"  # beside the page of one run
GROUPS = "groups.csv"  # beside the page of all runs in a folder
_SWEPT = re.compile(r"(?:^|,)([A-Z][A-Z0-9_]*)=")  # a key in the name of a run of a sweep
# in the terminal
_MAX_OPTIONS = 6
_MAX_STATE_CHARS = 24
_MAX_CELL_CHARS = 40
_MIN_WIDTH = 100


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="scripts/report.py",
        usage="%(prog)s RUN [RUN ...] [-csv] [-share] [-output FILE]",
        description="Writes the page of a run, or compares runs: a page, and a table in the terminal.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add_flag(parser, "csv", action="store_true", help="print CSV with all digits instead of the table")
    output = "HTML file to write (default: report.html in the run's folder, compare.html beside several runs)"
    share = "write share.html: without paths, hosts, names of files and pictures"
    add_flag(parser, "share", action="store_true", help=share)
    add_flag(parser, "output", type=Path, metavar="FILE", help=output)
    flags = parser.parse_args(argv)
    folders = [folder for path in flags.folders for folder in _folders_in(path)]
    if not folders:
        raise UserError(f"{flags.folders[0]}: is a file; give the folders of runs, such as output/*")
    if len(folders) == 1:
        page = flags.output or folders[0] / (SHARED if flags.share else REPORT)
        runs = _write_run(folders[0], page, flags.share)
    else:
        page = flags.output or _comparison_of(flags.folders, folders, SHARED if flags.share else COMPARISON)
        runs, table = _write_comparison(folders, page, flags.share)
        if not flags.csv:
            print(table, end="\n\n")
    if flags.csv:
        _print_csv(runs)
    print(f"Page: {escape_control_characters(os.path.abspath(page))}", file=sys.stderr if flags.csv else sys.stdout)
    return 0


def _comparison_of(given: Sequence[Path], folders: Sequence[Path], name: str) -> Path:
    """The page `name` in the folder of the runs if it has these runs alone, else one with a checksum of what is given.

    folders: of the runs, and others.
    """
    paths = [os.path.abspath(path) for path in given]
    page = Path(paths[0], name) if len(paths) == 1 else Path(paths[0]).with_name(name)
    inside = [folder for path in page.parent.glob("*") for folder in _folders_in(path)]
    if _runs_in(inside) == _runs_in(folders):
        return page
    return page.with_stem(f"{page.stem}-{zlib.crc32(repr(sorted(paths)).encode()):08x}")


def _runs_in(folders: Sequence[Path]) -> set[str]:
    return {os.path.abspath(folder) for folder in folders if (folder / RUN_OPTIONS).exists()}


def _beside(page: Path, name: str) -> Path:
    """A file that belongs to the page: pages of other names, so of other runs, have other ones."""
    prefix = "" if page.name in (REPORT, COMPARISON, SHARED) else f"{page.stem}-"
    return page.with_name(f"{prefix}{name}")


def _write_run(folder: Path, page: Path, is_shared: bool) -> list[RunContents]:
    """Writes the page of a run, and the picture of its curves beside it."""
    runs = [read_contents(folder)]
    write_output(page, run_page(runs[0], is_shared))
    if curves := _as_png(curves_of(runs)):
        write_output(_beside(page, CURVES), curves)
    return runs


def _write_comparison(folders: Sequence[Path], page: Path, is_shared: bool) -> tuple[list[RunContents], str]:
    """Writes the page and the groups of several runs, and prints what is left out; returns the runs and their tables.

    Raises UserError: none of the folders has a run.
    """
    runs = []
    problems = []
    for folder in folders:
        try:
            runs.append(read_contents(folder))
        except UserError as problem:
            problems.append(f"left out: {problem}")
    if not runs:
        raise UserError(f"{folders[0]}: no run found; give the folders of runs, such as output/*")
    runs = ranked(runs)
    groups = groups_of(runs, problems)
    compare_settings(groups, problems)
    pooled = _pool(groups, page, problems)
    table = _beside(page, GROUPS)
    if table.exists() and not groups:
        problems.append(f"{table}: is of other runs than the page; delete it")
    write_output(page, comparison_page(runs, groups, problems, page.parent, pooled, is_shared))
    if groups:
        cells = (list(group.cells.values()) for group in groups)
        write_output(table, table_text(list(groups[0].cells), cells))
    for problem in problems:
        print(escape_control_characters(problem), file=sys.stderr)
    return runs, _tables(runs, groups)


def _as_png(charts: Sequence[Chart]) -> bytes:
    """The curves below each other, for documents; b"" without curves or without matplotlib."""
    if not charts or not find_spec("matplotlib"):
        return b""
    figure: Any = import_module("matplotlib.figure").Figure((7, 3 * len(charts)), layout="constrained")
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False).flat, charts, strict=True):
        for series in chart.series:
            axes.plot(*zip(*series.points, strict=True), label=series.name)
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.unit)
        axes.set_yscale("log" if chart.axes[1].is_log else "linear")
        axes.legend()
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _pool(groups: Sequence[Group], page: Path, problems: list[str]) -> dict[str, EvaluationContents]:
    """The evaluation of all held-out images of each group of folds, by the end of its title; adds reasons for none."""
    found = {}
    folds = [group for group in groups if group.are_folds]
    for number, group in enumerate(folds, 1):
        from engine.report.folds import OUT_OF_FOLD, pool_folds  # late: torch

        name = OUT_OF_FOLD
        title = f", out of fold, {len(group.runs)} folds"
        if len(folds) > 1:
            name += f"-{number}"
            title += f" of {group.runs[0].name}"
        folder = _beside(page, name)
        try:
            found[title] = pool_folds(group.runs, folder)
        except UserError as error:
            problems.append(f"no figures out of fold: {error}")
            continue
        group.figures["out_of_fold"] = found[title].values.get(group.runs[0].metric.name)
        print_escaped(f"Out of fold: {folder}", file=sys.stderr)
    return found


def _folders_in(path: Path) -> list[Path]:
    """Returns the folder of a run, or the folders of the runs in it. Files are ignored: output/* has compare.html."""
    inside = [] if (path / RUN_OPTIONS).exists() else sorted(path.glob(f"*/{RUN_OPTIONS}"))
    return [file.parent for file in inside] or ([] if path.is_file() else [path])


def _options(runs: Sequence[RunContents]) -> list[list[str]]:
    """'KEY=value' of the options that differ between the runs, for each run."""
    compared = compared_options(runs)
    return [[f"{key}={format_value(values[index])}" for key, values in compared.items()] for index in range(len(runs))]


def _tables(runs: Sequence[RunContents], groups: Sequence[Group]) -> str:
    """The tables of the page in the width of the terminal, '-' without a value; then the first options that differ."""
    header, cells, notes = results(runs)
    rows = []
    names = _columns_of_names(runs)
    for index, (*texts, state) in enumerate(cells):
        own = [column[index] for column in names.values()]
        rows.append([*own, *(text or "-" for text in texts), shortened(state, _MAX_STATE_CHARS)])
    parts = ["\n".join([*_fitted([*names, *header], rows), *notes])]
    if groups:
        keys = [*groups[0].options]
        columns = group_columns(groups)
        rows = []
        for group in groups:
            values = (group.options[key] for key in keys[:_MAX_OPTIONS])
            texts = ("-" if value is None else option_text(value) for value in values)
            rows.append([*texts, *(group.texts[name] or "-" for name in columns)])
        table = _fitted([*keys[:_MAX_OPTIONS], *columns], rows)
        parts.append("\n".join(["Runs that differ only in seed or fold:", *table]))
    lines = ["Options that differ:"]
    for run, options in zip(runs, _options(runs), strict=True):
        more = [f"{len(options) - _MAX_OPTIONS} more in the CSV"] if len(options) > _MAX_OPTIONS else []
        text = on_one_line(f"{run.name}: {', '.join([*options[:_MAX_OPTIONS], *more]) or '-'}")
        lines += textwrap.wrap(text, _width(), subsequent_indent="    ", break_on_hyphens=False)
    return "\n\n".join([*parts, "\n".join(lines)])


def _columns_of_names(runs: Sequence[RunContents]) -> dict[str, list[str]]:
    """A column of the names of the runs; of the runs of a sweep, whose names differ in the middle, one for each key."""
    found = [_SWEPT.split(run_name(Path(run.name)))[1:] for run in runs]  # keys and values in turn
    keys = found[0][::2]
    values = [row[1::2] for row in found]
    is_sweep = keys and all(row[::2] == keys for row in found) and len({*map(tuple, values)}) == len(runs)
    if not is_sweep:
        return {"run": [run.name for run in runs]}
    return {key: [row[index] for row in values] for index, key in enumerate(keys)}


def _width() -> int:
    return max(_MIN_WIDTH, shutil.get_terminal_size((_MIN_WIDTH, 24)).columns)


def _fitted(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table with its first column, its last one, and the others that fit; a line names the rest."""
    cells = [[shortened(on_one_line(cell), _MAX_CELL_CHARS) for cell in row] for row in (header, *rows)]
    widths = [2 + max(map(disp_len, column)) for column in zip(*cells, strict=True)]
    room = _width() + 2 - widths[0] - widths[-1]
    shown = []
    for index, width in enumerate(widths[1:-1], 1):
        if width <= room:
            shown.append(index)
            room -= width
    left_out = [header[index] for index in range(1, len(header) - 1) if index not in shown]
    first, *others = [[row[0], *(row[index] for index in shown), row[-1]] for row in cells]
    lines = aligned_table(first, others, _MAX_CELL_CHARS).splitlines()
    if left_out:
        lines += textwrap.wrap(f"On the page, not here: {'; '.join(left_out)}", _width())
    return lines


def _print_csv(runs: Sequence[RunContents]) -> None:
    """A row per run: its metrics, the epoch of the best evaluation, the split that was measured, and the options."""
    compared = dict(sorted(compared_options(runs).items()))
    writer = csv.DictWriter(sys.stdout, [*COLUMNS, *compared])
    writer.writeheader()
    for index, (run, options) in enumerate(zip(runs, _options(runs), strict=True)):
        row = {"name": run.name, "split": run.split, "best_metric": run.metric.name, **run.figures}
        row |= {"epoch": run.best and run.best[0], "status": run.short_status, "options": ", ".join(options)}
        row |= {} if run.is_evaluation else {"epochs": run.options["TRAIN.NUM_EPOCHS"]}
        row |= {name: run.measured(name) for name in (*_MEASURED, *BASELINES)}
        row |= zip(("images", "images_digest"), evaluated_images(run) or (), strict=False)
        writer.writerow(row | {key: values[index] for key, values in compared.items()})


if __name__ == "__main__":
    run_script(main)
