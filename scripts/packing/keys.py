"""Makes the keys of samples in tar shards: the names of their members up to the first dot."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable

from datasets.sources.arrays.strings import PackedStrings, StringPacker

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")  # WebDataset skips a member whose name has a line break
_LEADING_UNDERSCORES = re.compile("^_{2,}")  # members such as __meta__/x are no samples in WebDataset


def unique_keys(paths: Iterable[str]) -> PackedStrings:
    """The key of each image, given the images' paths relative to the data: equal ones get a number, in order."""
    keys, used, last_number = StringPacker(), set(), Counter()
    for path in paths:
        base = key = key_of(path)
        while key in used:
            last_number[base] += 1
            key = f"{base}_{last_number[base] + 1}"
        used.add(key)
        keys.add(key)
    return keys.strings()


def key_of(path: str) -> str:
    """The path without its extension, relative and without `..`, and no dot in its last part.

    WebDataset's rule: the key of a member ends at the first dot of the last part of its name.
    """
    folder, name = posixpath.split(posixpath.normpath(path.strip("/") or "image"))
    folders = ["__" if part == ".." else part for part in folder.split("/") if part]
    stem = _LEADING_UNDERSCORES.sub("_", os.path.splitext(name)[0].replace(".", "_"))
    key = _CONTROL_CHARACTERS.sub("_", "/".join([*folders, stem]))
    return _LEADING_UNDERSCORES.sub("_", key)
