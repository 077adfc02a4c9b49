"""Writes the page of a run, and the comparison of several, as HTML files that need no other file and no network."""

import base64
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from configs.command_line import unused_keys
from configs.compare import differing_from_defaults
from configs.yaml_io import Values
from engine.report import charts, tables
from engine.report.charts import MAX_NAME_CHARS, number_text, option_text, percent
from engine.report.contents import EvaluationContents, RunContents, read_contents, suspect_picture
from engine.report.overview import details_of, interval_text, pooled_tiles, shift_by_weights, status_of, tiles_of
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


def write_report(folder: Path) -> Path:
    """Writes `report.html` in the folder of a run that trained or evaluated; returns its path.

    Raises OSError, and UserError as `read_contents`, or without jinja2; an older page is then unchanged.
    """
    path = folder / REPORT
    run = read_contents(folder)
    atomic_write(path, run_page(run), is_durable=False)  # can be written again from the record
    return path


def run_page(run: RunContents, is_shared: bool = False) -> str:
    """The page of one run. is_shared: without what names files, folders, hosts and people, and without pictures."""
    status, resume = status_of(run)
    hidden = [*tables.OPTIONS_OF_RUN]
    if run.options["MODEL.TUNE"] == "probe" and not run.is_evaluation:
        hidden += [*unused_keys("probe"), "DATA.BATCH_SIZE"]
    differing = differing_from_defaults(run.options)
    pictures = (run.folder / SUSPECTS).parent / PICTURES
    suspects = []
    for row in run.suspects:
        picture = f"{suspect_picture(row['split'], row['path'])}.jpg"
        suspects.append((row, tables.data_uri(pictures / picture)))
    epoch = run.earlier_epoch(run.evaluation)
    of_epoch = epoch and f" of {epoch}"
    values = {
        "run": run,
        "status": status,
        "resume": resume,
        "tiles": tiles_of(run),
        "details": details_of(run),
        "train_batch": tables.data_uri(run.folder / TRAIN_BATCH),
        "charts": charts.curves_of([run]),
        "off_defaults": {key: differing[key] for key in differing if not any(fnmatchcase(key, one) for one in hidden)},
        "suspects": suspects,
        "views": _views({of_epoch: run.evaluation, " of the test images": run.test}, run.is_multi_label),
        "shift": shift_by_weights(run),
    }
    return _render("run.html", values, is_shared)


def _views(evaluations: Mapping[str, EvaluationContents], is_multi_label: bool) -> list[Values]:
    """What the page shows of evaluations, by the end of their titles, and of their groups."""
    found = dict[str, EvaluationContents]()
    for title, evaluation in evaluations.items():
        found |= {title: evaluation, f"{title} by group": evaluation.groups}
    return [
        {
            "of": title,
            "evaluation": evaluation,
            "is_multi_label": is_multi_label,
            "gallery": tables.gallery_of(evaluation),
            "confusion": evaluation.values.get("confusion"),
            "pairs": evaluation.rows("confused_pairs", "true", "predicted", "count", "share")[:20],
            "reliability": charts.accuracy_by("confidence", evaluation.rows("calibration"), title, charts.CALIBRATED),
            "coverage": charts.accuracy_by("coverage", evaluation.rows("coverage"), title),
            "curves": charts.roc_and_precision(evaluation.rows("curves", "class"), title),
        }
        for title, evaluation in found.items()
        if evaluation
    ]


def comparison_page(
    runs: Sequence[RunContents],
    groups: Sequence[tables.Group],
    problems: Sequence[str],
    folder: Path,
    pooled: Mapping[str, EvaluationContents],
    is_shared: bool = False,
) -> str:
    """The page that compares runs, which are ranked.

    problems: lines about folders that are left out. folder: of the page; its links are relative to it. pooled: the
    evaluations of all folds together, by the end of their titles. is_shared: as of `run_page`.
    """
    pages = [run.folder / REPORT for run in runs]
    links = [quote(os.fsencode(os.path.relpath(page, folder))) if page.is_file() else "" for page in pages]
    values = {
        "runs": runs,
        "links": links,
        "results": tables.results(runs),
        "share_chart": tables.share_chart(runs),
        "groups": groups,
        "group_columns": tables.group_columns(groups),
        "problems": problems,
        "tiles": [tile for title, one in pooled.items() for tile in pooled_tiles(runs[0], title, one)],
        "views": _views(pooled, runs[0].is_multi_label),
        "options": tables.compared_options(runs),
        "charts": charts.curves_of(runs, compared=True),
    }
    return _render("comparison.html", values, is_shared)


def _render(template: str, values: Values, is_shared: bool) -> str:
    # The first screen has the confusion matrix of the last images that have a small one, but groups.
    fitting = [one for one in values["views"] if one["confusion"] and len(one["confusion"][0]) <= _MAX_FIRST]
    first = next((one for one in reversed(fitting) if "by group" not in one["of"]), None)
    require("The page of a run", "jinja2")
    from markupsafe import Markup  # late, as jinja2: a run continues without its page

    folder = Path(__file__).parent / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(template)
    return page.render(
        values,
        is_shared=is_shared,
        first=first,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        written=time.strftime("%Y-%m-%d %H:%M:%S %z"),
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_visible
    )
    environment.filters |= {
        "name": _name,
        "option": option_text,
        "to_float": to_float,
        "number": number_text,
        "percent": percent,
        "interval": interval_text,
        "downsample": charts.downsample,
        "tick": charts.tick_label,
        "digits": "{:.7g}".format,
        "class_table": tables.class_table,
        "id": _element_id,
    }
    return environment


def _visible(value: object) -> object:
    """A text of a template on one line; markup is one already."""
    return on_one_line(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _element_id(title: str) -> str:
    """Of the title of a chart or section: an HTML id has no space."""
    return "-".join(title.lower().split())


def _name(text: object, max_chars: int = MAX_NAME_CHARS) -> "Markup":
    """A name from outside: on one line, isolated from the direction of the text around it, its full text on hover."""
    from markupsafe import Markup

    full = on_one_line(text)
    short = shortened(full, max_chars)
    if short == full:
        return Markup("<bdi>{}</bdi>").format(full)
    return Markup('<bdi title="{}">{}</bdi>').format(full[:_MAX_TITLE_CHARS], short)
