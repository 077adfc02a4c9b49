"""The images that a run reads, as a table; each stage of `datasets.reading` returns another one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from datasets.sources.samples import Samples
from datasets.sources.source import Source, Wanted
from datasets.sources.split import RunSplit, cut_images
from utils.errors import Finding, UserError
from utils.notes import Note


@dataclass(frozen=True)
class Rows:
    """The table: the images of each split, with equal columns (`Samples.arrays`) and classes.

    splits: of the data, after `cut` of the run. uncut: the split that `cut` divides; None if there is none. notes: for
    the log. findings: errors, after which no stage changes the table. run_split, num_trained: of `cut_images`.
    """

    splits: Mapping[str, Samples]
    uncut: str | None = None
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    run_split: RunSplit | None = None
    num_trained: int = 0

    @property
    def class_names(self) -> list[str]:
        """The names of the classes; of labels that are numbers, the highest one may be in one split only."""
        return max((samples.class_names for samples in self.splits.values()), key=len)

    @property
    def has_class_names(self) -> bool:
        return all(samples.has_class_names for samples in self.splits.values())

    @property
    def class_counts(self) -> np.ndarray:
        """The images of each class in all splits, int64 (classes,)."""
        return np.sum([samples.class_counts(len(self.class_names)) for samples in self.splits.values()], axis=0)

    def each(self, change: Callable[[str, Samples], Samples]) -> "Rows":
        """The table with other samples of each split."""
        return replace(self, splits={split: change(split, samples) for split, samples in self.splits.items()})

    def named(self, labels: np.ndarray, class_names: list[str]) -> "Rows":
        """The table with other classes, see `Samples.with_classes`."""
        return self.each(lambda _, samples: samples.with_classes(labels, class_names))

    def noted(self, *notes: Note) -> "Rows":
        return replace(self, notes=(*self.notes, *notes))

    def found(self, *findings: Finding) -> "Rows":
        return replace(self, findings=(*self.findings, *findings))


def read_rows(source: Source, wanted: Wanted) -> Rows:
    """The images of the splits of the data that have the splits of the run; the errors of the others."""
    tried = set[str]()
    splits = dict[str, Samples]()
    findings = list[Finding]()
    for split in wanted.splits:
        try:
            name = source.split_for(split)
            if name not in tried:
                tried.add(name)
                splits[name] = source.read(name)
        except UserError as error:
            findings.append(error)
    folds = wanted.data.folds
    if folds and {"train", "val"} <= splits.keys() and not source.has_folds:
        findings.append(
            f"DATA.FOLDS {folds}: {wanted.data.dataset} has a validation split here; "
            f"{source.way_to_folds}, or remove DATA.FOLDS"
        )
    notes = dict[Note, None]()
    for samples in splits.values():
        notes |= dict.fromkeys(samples.notes)  # notes on a whole folder are notes of each split
        findings += samples.findings
    return Rows(splits, source.uncut if splits else None, (*notes,), (*findings,))


def cut(rows: Rows, wanted: Wanted) -> Rows:
    """Divides the images of data without a validation split, see `cut_images`."""
    whole = rows.splits.get(rows.uncut or "")
    if whole is None:
        if wanted.history.held_out:
            return rows.found(f"-held_out: {wanted.data.data_path} has a validation split of its own; remove the flag")
        return rows
    images = whole.names_for_split, whole.targets, whole.groups
    found = cut_images(*images, wanted.data, wanted.splits, wanted.history)
    splits = {}
    for split in wanted.splits:
        is_part = found.is_val == (split != "train")
        splits[split] = rows.splits["test"] if split == "test" else whole.select(np.flatnonzero(is_part))
    findings = (f"{wanted.data.data_path}: {found.problem}",) if found.problem else ()
    return Rows(splits, None, (*rows.notes, *found.notes), findings, found.run_split, found.num_trained)
