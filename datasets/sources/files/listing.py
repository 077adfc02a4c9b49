"""The image files of a split and their labels, before the images are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from datasets.sources.arrays.strings import PackedStrings, StringPacker, strings_in, to_arrays


@dataclass
class Listing:
    """N image files: their paths relative to `root`, their labels, and the name of each class.

    `arrays` holds the paths as packed strings, `paths_crcs` uint32 (N,), `targets` int64 (N,), -1 for an invalid label,
    or int8 (N, classes) with several labels per image, and `lines` int32 (N,): the lines of `file` that name the
    images. Without a `file`, `lines` is empty.

    `findings` are messages about errors, `notes` are for the log: one line of text each. `has_class_names` is
    False if the names are only the labels.
    """

    root: Path
    class_names: list[str]
    arrays: Mapping[str, np.ndarray]
    file: Path | None = None
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_class_names: bool = True

    @property
    def paths(self) -> PackedStrings:
        return strings_in(self.arrays, "paths")

    def location(self, index: int) -> str:
        """A line of the list or, without a list, the image file."""
        return f"{self.file}:{self.arrays['lines'][index]}" if self.file else str(self.root / self.paths[index])

    def select(self, indices: np.ndarray) -> "Listing":
        """The listing of the images at `indices` (M,), sorted and unique, with all `findings` and `notes`."""
        columns = {name: values[indices] for name, values in self.arrays.items() if name in ("targets", "paths_crcs")}
        columns["lines"] = self.arrays["lines"][indices] if self.file else self.arrays["lines"]
        return replace(self, arrays=to_arrays(self.paths.select(indices), "paths") | columns)


def listing_arrays(paths: StringPacker, targets: np.ndarray, lines: np.ndarray) -> dict[str, np.ndarray]:
    """The `arrays` of a `Listing`."""
    columns = {"paths_crcs": paths.crcs(), "targets": targets, "lines": lines}
    return to_arrays(paths.strings(), "paths") | columns


def unlabelled_arrays(paths: StringPacker) -> dict[str, np.ndarray]:
    """The `arrays` of a `Listing` without a file, in which each image has the label 0."""
    return listing_arrays(paths, np.zeros(len(paths), np.int64), np.empty(0, np.int32))
