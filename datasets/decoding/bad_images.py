"""Images that cannot be used: the error about one image, and a run's list of all of them."""

import csv
from collections.abc import Iterable
from pathlib import Path

from utils.errors import Unavailable, UserError
from utils.tables import read_rows, safe_cell

HOW_TO_SKIP = "to skip such images, set DATA.ON_BAD_IMAGE=skip"
_COLUMNS = ("path", "reason")


class BadImage(UserError):
    """An image that cannot be used: its `path`, the `reason`, and the `fix`. It can be pickled."""

    def __init__(self, path: str, reason: str, fix: str) -> None:
        super().__init__(path, reason, fix)
        self.path, self.reason, self.fix = path, reason, fix

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.fix}"

    def with_hint(self) -> "BadImage":
        """This error, and how to skip such images."""
        return type(self)(self.path, self.reason, f"{self.fix}; {HOW_TO_SKIP}")


class UnreadableImage(BadImage, Unavailable):
    """An image whose bytes cannot be read."""


class MissingImage(UnreadableImage):
    """An image that is not a file."""


class BadImageList:
    """One rank's `bad_images_{rank}.csv` in a run's folder: each image once, with the reason.

    The folder is opened before images are loaded. The file is created when the first bad image is added. A resumed run
    appends to the file of the original run.
    """

    def __init__(self, rank: int, folder: Path | None = None) -> None:
        self._name = f"bad_images_{rank}.csv"
        if folder:
            self.open(folder)

    def open(self, folder: Path) -> None:
        self.file = folder / self._name
        self._listed = {row.get("path", "") for row in read_rows(self.file)} if self.file.exists() else set()

    def add(self, images: Iterable[BadImage]) -> None:
        rows = {safe_cell(image.path): safe_cell(image.reason) for image in images}
        new = [(path, reason) for path, reason in rows.items() if path not in self._listed]
        if not new:
            return
        with open(self.file, "a", newline="", encoding="utf-8") as file:
            header = [] if file.tell() else [_COLUMNS]
            csv.writer(file).writerows(header + new)
        self._listed |= rows.keys()
