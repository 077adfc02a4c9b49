"""Images that cannot be used: what is said of one, and the list of those that a run passed over."""

import csv
from collections.abc import Iterable
from pathlib import Path

from utils.errors import UserError, escape_control_characters
from utils.tables import read_rows

_COLUMNS = ["path", "reason"]


class BadImage(UserError):
    """An image file that cannot be used: its `path`, the `reason`, and what to do. It travels pickled."""

    def __init__(self, path: str, reason: str, cure: str) -> None:
        super().__init__(path, reason, cure)
        self.path, self.reason, self.cure = path, reason, cure

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.cure}"


class BadImageList:
    """One rank's `bad_images_{rank}.csv` in a run's folder: each file once, with the reason. None bad: no list."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file = folder / f"bad_images_{rank}.csv"
        self._listed: set[str] = set()
        if self.file.exists():  # of a run that is resumed
            self._listed = {row.get("path", "") for row in read_rows(self.file)}

    def add(self, images: Iterable[BadImage]) -> None:
        rows = {_as_text(image.path): _as_text(image.reason) for image in images}
        new = [(path, reason) for path, reason in rows.items() if path not in self._listed]
        if not new:
            return
        with open(self.file, "a", newline="", encoding="utf-8") as file:
            header = [] if file.tell() else [_COLUMNS]
            csv.writer(file).writerows(header + new)
        self._listed |= rows.keys()


def _as_text(text: str) -> str:
    return escape_control_characters(text.replace("\n", r"\n"))
