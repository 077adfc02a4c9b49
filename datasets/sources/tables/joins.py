"""Tables whose columns are in two files: by DATA.COLUMNS (join), or as a Camera Trap Data Package (Camtrap DP)."""

import os
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.listing import list_directory
from datasets.sources.tables.cells import columns_option
from datasets.sources.tables.files import Cells, Lines, Table, open_columns, open_table, read_lines
from utils.errors import UserError
from utils.notes import Counts, Note, Reason

MEDIA = "media.csv"


class JoinedTable(Table):
    """A table with more columns, whose cells `added_to` gives for each row, or the reason to leave the row out.

    example: the column that names a row in a note. Raises UserError: all rows are left out.
    """

    def __init__(
        self, table: Table, more: Iterable[str], added_to: Callable[[Cells], Cells | Reason], example: str
    ) -> None:
        super().__init__(table.file, dict.fromkeys([*table.header, *more]))
        self._table = table
        self._added = {}
        left_out = Counts()
        for line, cells in table:
            found = added_to(cells)
            if isinstance(found, Reason):
                left_out.add(found, shorten(cells[example]))
            else:
                self._added[line] = found
        self.mistakes = table.mistakes
        self.notes = table.notes + left_out.notes(table.file, len(self._added))
        if left_out.found and not self._added:
            raise UserError("; ".join(note.text for note in self.notes))

    def __iter__(self) -> Lines:
        for line, cells in self._table:
            if line in self._added:
                yield line, self._added[line] | cells


def open_for(file: Path, data: Data, predicts: bool = False) -> Table:
    """As `open_table`, with a column of paths whose parts are in several, and with the columns of the table beside it
    that `join` of DATA.COLUMNS or Camtrap DP names. Several rows of it are one: the texts, with | between.

    predicts: only paths are needed: another table is read if it has them, as images may have no row in it.
    """
    table = open_table(file, data.encoding)
    join = data.given_columns.get("join")
    path = data.given_columns.get("path", "")
    parts = path.split("/")
    if path not in table.header and {*parts} <= {*table.header}:
        table = JoinedTable(table, [path], lambda cells: {path: "/".join(filter(None, map(cells.get, parts)))}, path)
    if join and not (predicts and path in table.header):
        other = open_columns(file.parent / join["file"], data.encoding)
        on = join["on"]
        table.require([on])
        rows = {key: _merged(found) for key, found in _by_column(_rows_with(other, [on]), on).items()}
        lacks = Reason(f"rows without a row in {other.file} are left out", "check join in DATA.COLUMNS", "screen")
        return JoinedTable(table, other.header, lambda cells: rows.get(cells[on], lacks), on)
    if file.name == MEDIA and is_camera_package(file.parent) and not (join or predicts):
        return _open_package(table, open_columns(file.parent / "observations.csv", data.encoding), data)
    return table


def _rows_with(table: Table, names: Iterable[str]) -> list[Cells]:
    """All rows of a table. Raises UserError: it lacks a column, or a row has a mistake."""
    table.require(names)
    rows = [cells for _, cells in table]
    for line, problem in table.mistakes.items():
        raise UserError(f"{table.file}:{line}: {problem}")
    return rows


def _by_column(rows: Iterable[Cells], name: str) -> dict[str, list[Cells]]:
    found = defaultdict(list)
    for cells in rows:
        found[cells[name]].append(cells)
    return found


def _merged(rows: Sequence[Cells]) -> Cells:
    return {name: "|".join(dict.fromkeys(cells[name] for cells in rows if cells[name])) for name in rows[0]}


def is_camera_package(folder: Path) -> bool:
    """Whether a folder is a Camera Trap Data Package of version 1 (https://camtrap-dp.tdwg.org)."""
    file = folder / "datapackage.json"
    profile = r'"profile"\s*:\s*"[^"]*camtrap-dp/1\.'
    return file.is_file() and re.search(profile, "".join(read_lines(file))) is not None


def _open_package(media: Table, observations: Table, data: Data) -> Table:
    """The images of a Camtrap DP with their observations, by mediaID; without such ones, with the events of their
    deployment and time. Images without a file or a label are left out.

    scientificName is the label: observationType where it lacks. eventID is the group: the deployment where it lacks.
    """
    needed = ("mediaID", "deploymentID", "observationLevel", "observationType", "scientificName")
    observed = _rows_with(observations, needed)
    for one in observed:
        one["scientificName"] = one["scientificName"] or one["observationType"]
    levels = _by_column((one for one in observed if one["observationType"] != "unclassified"), "observationLevel")
    rows = _rows_with(media, ("mediaID", "deploymentID", "timestamp", "filePath"))
    of_media = _by_column(levels["media"], "mediaID") or _events_of(rows, levels["event"])
    root = str(data.image_root or media.file.parent)
    has_paths = data.given_columns.get("path", "filePath") == "filePath"
    option = columns_option(data, {"path": "fileName"})
    fix = f"download them; -opts {option} finds those in {root} by fileName"
    missing = Reason("images are remote or missing", fix, "screen")
    videos = Reason("videos are not read", "save their frames as images", "screen")
    unlabelled = Reason("images have no label", f"add their rows of level media to {observations.file}", "screen")

    @cache
    def files_in(folder: str) -> set[str]:
        """A question per image would take minutes on the disk of a server."""
        with suppress(OSError):
            return {*list_directory(folder)[1]}
        return set()

    def added_to(cells: Cells) -> Cells | Reason:
        if cells.get("fileMediatype", "").startswith("video"):
            return videos
        folder, name = os.path.split(os.path.join(root, cells["filePath"].replace("\\", "/")))
        if has_paths and name not in files_in(folder):
            return missing
        found = of_media.get(cells["mediaID"])
        if not found:
            return unlabelled
        return {**_merged(found), "eventID": found[0].get("eventID") or cells["deploymentID"]}

    joined = JoinedTable(media, [*observations.header, "eventID"], added_to, "filePath")
    joined.columns = {"path": "filePath", "label": "scientificName"}
    if levels["media"] and levels["event"]:
        text = f"{len(levels['event']):,} rows of level event are not used, as there are rows of level media"
        joined.notes.append(Note("screen", f"{observations.file}: {text}"))
    return joined


def _events_of(media: Iterable[Cells], events: Iterable[Cells]) -> dict[str, list[Cells]]:
    """The events of the deployment and time of each medium, by mediaID."""
    of_deployments = _by_column(events, "deploymentID")

    @cache
    def timetable(deployment: str) -> tuple[list[tuple[float, float, Cells]], float]:
        """The start and the end of each event, in the order of the starts, and the duration of the longest one."""
        timed = []
        for event in of_deployments[deployment]:
            start, end = (_seconds(event.get(name, "")) for name in ("eventStart", "eventEnd"))
            timed.append((start, end, event))
        timed.sort(key=itemgetter(0))
        return timed, max((end - start for start, end, _ in timed), default=0)

    found = {}
    for cells in media:
        time = _seconds(cells["timestamp"])
        timed, longest = timetable(cells["deploymentID"])
        first = bisect_left(timed, time - longest, key=itemgetter(0))
        last = bisect_right(timed, time, key=itemgetter(0))
        found[cells["mediaID"]] = [event for _, end, event in timed[first:last] if time <= end]
    return found


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"Camtrap DP: {shorten(time)} is no time of media or observations; write it as 2024-05-01T10:00:00Z"
        ) from error
