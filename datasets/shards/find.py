"""Finds the shards of a data set, and the split of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from configs.reading.yaml_io import shorten
from datasets.shards.indexing.index import INFO_FILE
from datasets.shards.location import MAX_NAMES, SHARD_SUFFIX, check_not_compressed, name_problem
from datasets.shards.storage.store import ShardStore
from datasets.sources.arrays.strings import to_nfc
from datasets.sources.split_names import SPLIT_NAMES, split_of
from utils.errors import UserError

_MAX_INFO_BYTES = 64 << 20
_ClassName = Annotated[str, Field(min_length=1), AfterValidator(to_nfc)]


@dataclass
class FoundShards:
    """The names of the shards of each split ('train', 'val', 'test'), or of `unsplit` ones; sorted, at least one.

    class_names: the name of each label, or None. label_key: the key of the label in a sample's JSON file, or ''.
    """

    splits: dict[str, list[str]] = field(default_factory=dict)
    unsplit: list[str] = field(default_factory=list)
    class_names: list[str] | None = None
    label_key: str = ""

    @property
    def names(self) -> list[str]:
        """The names of all shards, each once."""
        return [*chain.from_iterable(self.splits.values()), *self.unsplit]


def find_shards(store: ShardStore, names: Sequence[str] | None = None) -> FoundShards:
    """Finds the shards by their `names`, by `_info.json`, or by listing the folder.

    Raises:
        UserError: no shard is found, or it is not clear to which split one belongs.
    """
    if names:
        return _split_by_name(names, store)
    info = store.read_small(INFO_FILE, _MAX_INFO_BYTES)
    if info is not None:
        return _read_info(info, store.url(INFO_FILE))
    if not store.files.can_list:
        raise UserError(
            f"{store.root}: the shards on a web server cannot be listed, and there is no {INFO_FILE}; give a "
            f"pattern, such as {store.url('train-{0000..0127}.tar')}"
        )
    return _split_by_name(_list_shards(store), store)


def _list_shards(store: ShardStore) -> list[str]:
    """Lists the shards at the root, and in its folders whose names contain a split; raises UserError without any."""
    files, folders = store.list_folder()
    for folder in folders:
        if split_of(folder):
            files += store.list_folder(folder)[0]
    shards = [file for file in files if not name_problem(file) and not file.split("/")[-1].startswith(".")]
    if shards:
        return shards
    for file in files:
        check_not_compressed(file)
    raise UserError(
        f"DATA.DATA_PATH: {store.root}: has no shard (*{SHARD_SUFFIX}); check it, or use -dataset=folder for images"
    )


def _split_by_name(names: Sequence[str], store: ShardStore) -> FoundShards:
    found = FoundShards()
    for name in sorted(names):
        split = split_of(name)
        (found.splits.setdefault(split, []) if split else found.unsplit).append(name)
    if found.splits and found.unsplit:
        raise UserError(
            f"{store.url(found.unsplit[0])}: has no 'train', 'val' or 'test' in its name, but "
            f"{next(iter(found.splits.values()))[0]} has; rename it, or move it out of the data set"
        )
    return found


def _check_name(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"{shorten(name)} {problem}")
    return name


class _Split(BaseModel, strict=True):
    filenames: list[Annotated[str, AfterValidator(_check_name)]] = Field(min_length=1, max_length=MAX_NAMES)
    alt_label: str | None = None


class _Info(BaseModel, strict=True):
    splits: dict[str, _Split] = Field(min_length=1)
    class_names: list[_ClassName] | None = Field(None, min_length=1, max_length=10**6)

    @model_validator(mode="after")
    def _check(self) -> "_Info":
        splits = list(map(SPLIT_NAMES.get, self.splits))
        shards = [name for split in self.splits.values() for name in split.filenames]
        if None in splits or len(set(splits)) < len(splits):
            raise ValueError(f"the splits {shorten(list(self.splits))} are not train, val and test")
        if len(set(shards)) < len(shards) or len(set(self.class_names or ())) < len(self.class_names or ()):
            raise ValueError("names a shard or a class twice")
        if len({split.alt_label or "" for split in self.splits.values()}) > 1:
            raise ValueError("has several values of 'alt_label'")
        return self


def _read_info(data: bytes, url: str) -> FoundShards:
    """Reads timm's description of a data set, which may come from anyone; raises UserError."""
    try:
        info = _Info.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = f"{shorten('.'.join(map(str, first['loc'])))}: " if first["loc"] else ""
        problem = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{url}: {key}{problem}; correct it, or give a pattern of names instead") from None
    splits = {SPLIT_NAMES[name]: sorted(split.filenames) for name, split in info.splits.items()}
    label_key = next(iter(info.splits.values())).alt_label or ""
    return FoundShards(splits, class_names=info.class_names, label_key=label_key)
