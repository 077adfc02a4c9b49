"""The names of splits."""

import re
from collections.abc import Iterable

from configs.yaml_io import shorten
from utils.errors import UserError

SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test",
}  # fmt: skip


def split_of(name: str) -> str | None:
    """Returns the split that a name contains first: 'in1k-train-0000.tar', 'val/0.tar', 'Training_set'."""
    return next((SPLIT_NAMES[token] for token in re.split(r"[/\-_.]", name.lower()) if token in SPLIT_NAMES), None)


def find_split_names(names: Iterable[str], place: object) -> dict[str, str]:
    """The one of `names` that is the name of each split, in upper or lower case; 'val' rather than another name of val.

    Raises:
        UserError: several names of a split, none of which is 'train', 'val' or 'test'.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        if split := SPLIT_NAMES.get(name.lower()):
            found.setdefault(split, []).append(name)
    for split, several in found.items():
        if split not in several and len(several) > 1:
            raise UserError(f"{place}: {' and '.join(map(shorten, several))}: which one is {split}? Rename it {split}")
    splits = sorted(found, key=list(SPLIT_NAMES).index)  # train, val, test
    return {split: split if split in found[split] else found[split][0] for split in splits}
