"""Which shards a data set has, and to which split each belongs."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from configs.reading.yaml_io import shorten
from datasets.shards.location import MAX_NAMES, SHARD_SUFFIX, Location, check_not_compressed, name_problem
from datasets.shards.shard import Shard
from datasets.shards.storage.store import ShardStore
from utils.errors import UserError

INFO_FILE = "_info.json"  # timm's and ours
_SPLIT_TOKENS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test",)}
_SPLIT_OF_TOKEN = {token: split for split, tokens in _SPLIT_TOKENS.items() for token in tokens}
_MAX_INFO_BYTES = 64 << 20
_MAX_CLASSES = 10**6


@dataclass
class FoundShards:
    """The shards of each split ('train', 'val', 'test'), or `unsplit` ones; sorted by name, at least one.

    class_names: the name of each label, or None. label_key: the key of the label in a sample's JSON file, or ''.
    """

    splits: dict[str, list[Shard]] = field(default_factory=dict)
    unsplit: list[Shard] = field(default_factory=list)
    class_names: list[str] | None = None
    label_key: str = ""

    @property
    def shards(self) -> list[Shard]:
        """All shards, each once."""
        return [*chain.from_iterable(self.splits.values()), *self.unsplit]


def find_shards(location: Location, store: ShardStore) -> FoundShards:
    """Finds the shards by the names in DATA.DATA_PATH, by `_info.json`, or by listing the folder.

    Raises:
        UserError: a shard does not exist, no shard is found, or it is not clear to which split one belongs.
    """
    return _find(location, store, store.head)


def find_splits(location: Location, store: ShardStore) -> list[str]:
    """Those of 'train', 'val' and 'test' that have shards; as `find_shards`, but without a request for each shard."""
    return list(_find(location, store, lambda names: [Shard(name, 0) for name in names]).splits)


def _find(location: Location, store: ShardStore, head: Callable[[Sequence[str]], list[Shard]]) -> FoundShards:
    """`head`: `ShardStore.head`, for shards of which the names are known."""
    if location.names:
        return _split_by_name(location, head(location.names))
    info = store.read_small(INFO_FILE, _MAX_INFO_BYTES)
    if info is not None:
        return _read_info(info, location, head)
    if not store.can_list:
        raise UserError(
            f"{location.root}: the shards on a web server cannot be listed, and there is no {INFO_FILE}; give a "
            f"pattern, such as {location.url('train-{0000..0127}.tar')}"
        )
    return _split_by_name(location, _list_shards(location, store))


def split_of(name: str) -> str | None:
    """The split in the name of a shard: its first part that is one: 'in1k-train-0000.tar', 'val/0.tar'."""
    return next((_SPLIT_OF_TOKEN[token] for token in re.split(r"[/\-_.]", name) if token in _SPLIT_OF_TOKEN), None)


def _list_shards(location: Location, store: ShardStore) -> list[Shard]:
    """The shards at the root, and those in its folders that are named after a split; raises UserError without any."""
    files, folders = store.list_folder()
    for folder in folders:
        if split_of(folder):
            files += store.list_folder(folder)[0]
    shards = [file for file in files if not name_problem(file.name) and not file.name.split("/")[-1].startswith(".")]
    if shards:
        return shards
    for file in files:
        check_not_compressed(file.name)
    fix = "for folders of images use -dataset=folder; scripts/make_shards.py writes shards" if folders else "check it"
    raise UserError(f"DATA.DATA_PATH: {location.root}: has no shard (*{SHARD_SUFFIX}); {fix}")


def _split_by_name(location: Location, shards: list[Shard]) -> FoundShards:
    found = FoundShards()
    for shard in sorted(shards):
        split = split_of(shard.name)
        (found.splits.setdefault(split, []) if split else found.unsplit).append(shard)
    if found.splits and found.unsplit:
        other = next(iter(found.splits.values()))[0].name
        raise UserError(
            f"{location.url(found.unsplit[0].name)}: has no 'train', 'val' or 'test' in its name, but {other} has; "
            "rename it, or move it out of the data set"
        )
    return found


def _read_info(data: bytes, location: Location, head: Callable[[Sequence[str]], list[Shard]]) -> FoundShards:
    try:
        names, found = _parse_info(json.loads(data))
    except RecursionError:
        problem = "its JSON is nested too deeply"
    except ValueError as error:
        problem = str(error) if type(error) is ValueError else "is not JSON"
    else:
        heads = iter(head([name for split in names.values() for name in split]))
        found.splits = {split: [next(heads) for _ in split_names] for split, split_names in names.items()}
        return found
    raise UserError(f"{location.url(INFO_FILE)}: {problem}; correct it, or give a pattern of names instead")


def _parse_info(info: Any) -> tuple[dict[str, list[str]], FoundShards]:
    """The names of each split's shards, and the rest. The file may come from anyone; raises ValueError."""
    splits = info.get("splits") if isinstance(info, dict) else None
    if not isinstance(splits, dict) or not splits:
        raise ValueError("has no 'splits'")
    names: dict[str, list[str]] = {}
    label_keys = set()
    for key, entry in splits.items():
        split = _SPLIT_OF_TOKEN.get(key)
        if not split or split in names:
            raise ValueError(f"has a split {shorten(key)}, which is not one of train, val and test, or twice the same")
        if not isinstance(entry, dict):
            raise ValueError(f"has a split {shorten(key)} that is not an object")
        names[split] = _checked_names(entry.get("filenames"), key)
        label_keys.add(_checked_text(entry.get("alt_label") or "", "alt_label"))
    every_name = [name for split in names.values() for name in split]
    if len(set(every_name)) < len(every_name) or len(every_name) > MAX_NAMES:
        raise ValueError(f"names a shard twice, or more than {MAX_NAMES:,} shards")
    if len(label_keys) > 1:
        raise ValueError("has several values of 'alt_label'")
    return names, FoundShards(class_names=_checked_classes(info.get("class_names")), label_key=label_keys.pop())


def _checked_names(names: Any, split: str) -> list[str]:
    if not isinstance(names, list) or not names:
        raise ValueError(f"has no 'filenames' for the split {shorten(split)}")
    for name in names:
        if problem := name_problem(_checked_text(name, "filenames")):
            raise ValueError(f"names a shard {shorten(name)}, which {problem}")
    return sorted(names)


def _checked_classes(class_names: Any) -> list[str] | None:
    if class_names is None:
        return None
    if not isinstance(class_names, list) or not 0 < len(class_names) <= _MAX_CLASSES:
        raise ValueError("has 'class_names' that are not a list of names")
    checked: Sequence[str] = [_checked_text(name, "class_names") for name in class_names]
    if len(set(checked)) < len(checked) or "" in checked:
        raise ValueError("has two 'class_names' that are equal, or an empty one")
    return list(checked)


def _checked_text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"has a value of '{key}' that is not a text: {shorten(value)}")
    return value
