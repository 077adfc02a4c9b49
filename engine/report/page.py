"""Writes the page of a run, and the comparison of several, as HTML files that need no other file and no network."""

import base64
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from configs.command_line import unused_keys
from configs.compare import differing_from_defaults
from engine.report import charts, tables
from engine.report.charts import MAX_NAME_CHARS, number, option, percent
from engine.report.contents import Evaluation, RunContents, read_contents
from engine.report.overview import details_of, pooled_tiles, shift_by_weights, status_of, tiles_of
from engine.run.record import PICTURES, REPORT, SUSPECTS, TRAIN_BATCH
from utils.errors import on_one_line, shortened
from utils.files import atomic_write
from utils.system import require
from utils.tables import to_float

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

COMPARISON = "compare.html"
_MAX_TITLE_CHARS = 1000
_MAX_FIRST = 12  # classes of the confusion matrix on the first screen
_MAX_BATCH_BYTES = 1_500_000  # of train_batch.png: pixels that PNG cannot compress have 1.3 MB


def write_report(folder: Path) -> Path:
    """Writes `report.html` in the folder of a run that trained or evaluated; returns its path.

    Raises OSError, and UserError as `read_contents`, or without jinja2; an older page is then unchanged.
    """
    path = folder / REPORT
    run = read_contents(folder)
    atomic_write(path, run_page(run))
    return path


def run_page(run: RunContents, is_shared: bool = False) -> str:
    """The page of one run. is_shared: without what names files, folders, hosts and people, and without pictures."""
    (status, resume), differing = status_of(run), differing_from_defaults(run.options)
    hidden = [*tables.OPTIONS_OF_RUN]
    if run.options["MODEL.TUNE"] == "probe" and not run.is_evaluation:
        hidden += [*unused_keys("probe"), "DATA.BATCH_SIZE"]
    pictures = (run.folder / SUSPECTS).parent / PICTURES
    values = {
        "run": run,
        "status": status,
        "resume": resume,
        "tiles": tiles_of(run),
        "details": details_of(run),
        "train_batch": tables.data_uri(run.folder / TRAIN_BATCH, _MAX_BATCH_BYTES),
        "charts": charts.curves_of([run]),
        "off_defaults": {key: differing[key] for key in differing if not any(fnmatchcase(key, one) for one in hidden)},
        "suspects": [(row, tables.data_uri(pictures / f"{number}.jpg")) for number, row in enumerate(run.suspects)],
        "views": _views({"": run.evaluation, " of the test images": run.test}, run.is_multi_label),
        "shift": shift_by_weights(run),
    }
    return _render("run.html", values, is_shared)


def _views(evaluations: dict[str, Evaluation | None], is_multi_label: bool) -> list[dict[str, Any]]:
    """What the page shows of evaluations, by the end of their titles, and of their groups."""
    found: dict[str, Evaluation | None] = {}
    for title, evaluation in evaluations.items():
        if evaluation:
            found |= {title: evaluation, f"{title} by group": evaluation.groups}
    return [_view(evaluation, title, is_multi_label) for title, evaluation in found.items() if evaluation]


def _view(evaluation: Evaluation, title: str, is_multi_label: bool) -> dict[str, Any]:
    drawn = [
        charts.reliability(evaluation.rows("calibration")),
        charts.coverage(evaluation.rows("coverage")),
        *charts.roc_and_precision(evaluation.rows("curves", "class")),
    ]
    reliability, coverage, *curves = [one and replace(one, title=f"{one.title}{title}") for one in drawn]
    return {
        "of": title,
        "evaluation": evaluation,
        "is_multi_label": is_multi_label,
        "galleries": list(tables.galleries_of(evaluation)),
        "confusion": _confusion(evaluation),
        "pairs": evaluation.rows("confused_pairs", "true", "predicted", "count", "share")[:20],
        "reliability": reliability,
        "coverage": coverage,
        "curves": curves,
    }


def _first_matrix(views: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The view whose confusion matrix is on the first screen: of the last images that have a small one, but groups."""
    fitting = [one for one in views if one["confusion"] and len(one["confusion"][0]) <= _MAX_FIRST]
    return next((one for one in reversed(fitting) if "by group" not in one["of"]), None)


def _confusion(evaluation: Evaluation) -> tuple[list[str], list[list[int]]] | None:
    """The names of the classes, and the images by true class (rows) and predicted class; None without a matrix."""
    with suppress(ValueError, TypeError):
        names, counts = evaluation.values.get("confusion", ([], []))
        rows = [[int(count) for count in row] for row in counts]
        if rows and all(len(row) == len(rows) == len(names) for row in rows):
            return [*map(str, names)], rows
    return None


def comparison_page(
    runs: Sequence[RunContents],
    groups: Sequence[tables.Group],
    problems: Sequence[str],
    folder: Path,
    pooled: Mapping[str, Evaluation],
    is_shared: bool = False,
) -> str:
    """The page that compares runs, which are ranked.

    problems: lines about folders that are left out. folder: of the page; its links are relative to it. pooled: the
    evaluations of all folds together, by the end of their titles. is_shared: as of `run_page`.
    """
    entries = []
    for index, run in enumerate(runs):
        page = run.folder / REPORT
        link = quote(os.fsencode(os.path.relpath(page, folder))) if page.is_file() else ""
        entries.append({"name": run.name, "index": index, "link": link, "has_curves": bool(run.epochs or run.reports)})
    values: dict[str, Any] = {"runs": entries, "results": tables.results(runs), "groups": groups, "problems": problems}
    values |= {"options": tables.compared_options(runs), "charts": charts.curves_of(runs, compared=True)}
    values |= {"views": _views({**pooled}, runs[0].is_multi_label), "shift": ""}
    values["tiles"] = [tile for title, one in pooled.items() for tile in pooled_tiles(runs[0], title, one)]
    return _render("comparison.html", values, is_shared)


_SHARED_DETAILS = ("Model", "Data", "Devices")


def _without_names(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a page without names of files, folders, hosts and people, and without pictures."""
    shared = values | {"problems": [], "status": "", "resume": "", "train_batch": "", "suspects": []}
    shared["views"] = [view | {"galleries": []} for view in values["views"]]
    if "details" in values:
        details = values["details"]
        shared["details"] = {name: details[name] for name in _SHARED_DETAILS if not set("/\\") & {*details[name]}}
        shared["off_defaults"] = {key: pair for key, pair in values["off_defaults"].items() if _is_number(pair[0])}
        shared["run"] = replace(values["run"], problems=[])
    else:
        header, rows, notes = values["results"]
        states = (row[-1].partition(":")[0] for row in rows)  # without the message of a failure
        shared["results"] = header, [[*row[:-1], state] for row, state in zip(rows, states, strict=True)], notes
        shared["runs"] = [entry | {"link": ""} for entry in values["runs"]]
        shared["options"] = {key: row for key, row in values["options"].items() if all(map(_is_number, row))}
        shared["groups"] = [_without_names_of(group) for group in values["groups"]]
    return shared


def _without_names_of(group: tables.Group) -> tables.Group:
    """Keys of options are capital letters."""
    cells = {key: cell if key.islower() or _is_number(cell) else None for key, cell in group.cells.items()}
    return group._replace(cells=cells, notes=[])


def _is_number(value: Any) -> bool:
    """Whether an option names nothing."""
    return value is None or isinstance(value, int | float)


def _render(template: str, values: dict[str, Any], is_shared: bool) -> str:
    if is_shared:
        values = _without_names(values)
    values |= {"is_shared": is_shared, "first": _first_matrix(values["views"])}
    require("The page of a run", "jinja2")
    from markupsafe import Markup  # late, as jinja2: a run continues without its page

    folder = Path(__file__).parent / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    common = {"policy": policy, "style": Markup(style), "script": Markup(script)}
    written = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return _environment().get_template(template).render(values, **common, written=written)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"name": _name, "visible": on_one_line, "option": option, "to_float": to_float}
    environment.filters |= {"number": number, "percent": percent}
    environment.filters["class_table"] = tables.class_table
    environment.globals |= {"element_id": charts.element_id, "series_class": charts.series_class}
    return environment


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _name(text: object, max_chars: int = MAX_NAME_CHARS) -> "Markup":
    """A name from outside: on one line, isolated from the direction of the text around it, its full text on hover."""
    from markupsafe import Markup

    full = on_one_line(text)
    short = shortened(full, max_chars)
    if short == full:
        return Markup("<bdi>{}</bdi>").format(full)
    return Markup('<bdi title="{}">{}</bdi>').format(full[:_MAX_TITLE_CHARS], short)
