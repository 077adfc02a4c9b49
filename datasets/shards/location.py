"""Finds the shards of each split at a location: a folder or its URL, with an optional pattern of names in braces."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from configs.schema.data import secret_in_url
from configs.yaml_io import shorten
from datasets.shards.index import INFO_FILE
from datasets.shards.store import SCHEME, ShardStore
from datasets.sources.formats import format_of, refuse_format
from datasets.sources.path_words import SPLIT_NAMES, split_of
from datasets.sources.shared_arrays import to_nfc
from utils.errors import UserError
from utils.system import require

_SUFFIX = ".tar"
MAX_NAMES = 10**6
_NAME = re.compile(r"([^\\:/.][^\\:/]*/)*[^\\:/.][^\\:/]*\.tar")  # nothing hidden
_NO_NAME = f"is not a short relative path of a {_SUFFIX} file without '..', ':', backslashes and control characters"
_MAX_INFO_BYTES = 64 << 20
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)")
_HOST = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")  # a name or a number, or a bucket
_ClassName = Annotated[str, Field(min_length=1), AfterValidator(to_nfc)]


def parse_location(data_path: str) -> tuple[str, list[str]]:
    """Parses DATA.DATA_PATH: a folder, one `.tar` file, or a pattern: `https://host/{train,val}-{0000..0127}.tar`.

    Returns the root, a local folder or a URL (http, https, s3, gs) without '/' at its end, and the names of the shards
    relative to it; none: all that are found there.

    Raises UserError: the scheme is not supported, the URL contains credentials or a query, or the pattern is not valid.
    """
    scheme = SCHEME.match(data_path)
    if not scheme:
        return _split_pattern(data_path)
    name = scheme[1].lower()
    rest = data_path[scheme.end() :].rstrip("/")
    if name not in ("http", "https", "s3", "gs"):
        raise UserError(f"DATA.DATA_PATH: URLs of {shorten(name)} are not supported; use http, https, s3 or gs")
    url = f"{name}://{rest}"
    if problem := secret_in_url(url):
        raise UserError(f"DATA.DATA_PATH: {problem}")
    host, *path = rest.split("/")
    if not (_HOST.fullmatch(host) and {"", ".", ".."}.isdisjoint(path)):
        raise UserError(f"DATA.DATA_PATH: {shorten(url)} is not a valid URL")
    root, names = _split_pattern(url)
    return root, list(map(unquote, names)) if name.startswith("http") else names


def _split_pattern(path: str) -> tuple[str, list[str]]:
    """Splits a path before its first part with a brace, or before a last part `*.tar`: the rest is a pattern.

    The names of the pattern are in the order in which Bash expands it.
    """
    if os.path.isdir(path) or not ("{" in path or path.endswith(_SUFFIX)):
        refuse_format(path)
        return path.rstrip("/") or "/", []
    before, brace, after = path.partition("{")
    root, slash, start = before.rpartition("/")
    pattern = start + brace + after
    names = list(dict.fromkeys(_expand(pattern))) if brace else [pattern]
    for name in names:
        if not _is_name(name):
            raise UserError(f"DATA.DATA_PATH: {shorten(name)}, from the pattern {shorten(pattern)}, {_NO_NAME}")
    return root or slash or ".", names


def _expand(pattern: str) -> list[str]:
    """The names of a pattern in braces. Raises UserError: they are not balanced, or there are too many names."""
    require("DATA.DATA_PATH with a pattern in braces", "braceexpand")
    from braceexpand import braceexpand

    names = []
    try:
        in_ranges = sum(abs(int(end) - int(start)) + 1 for start, end in _RANGE.findall(pattern))
        if in_ranges <= MAX_NAMES:  # `braceexpand` lists each range as a whole
            names = list(islice(braceexpand(pattern, escape=False), MAX_NAMES + 1))
    except (ValueError, RecursionError):
        raise UserError(
            f"DATA.DATA_PATH: the braces of the pattern {shorten(pattern)} are not balanced or too deep"
        ) from None
    if not 0 < len(names) <= MAX_NAMES:
        raise UserError(f"DATA.DATA_PATH: the pattern {shorten(pattern)} has more than {MAX_NAMES:,} names; shorten it")
    return names


def _is_name(name: str) -> bool:
    """Tells whether this text, which may come from a foreign file, is the name of a shard relative to the root."""
    return len(name) <= 1024 and name.isprintable() and bool(_NAME.fullmatch(name))


def _check_name(name: str) -> str:
    if not _is_name(name):
        raise ValueError(f"{shorten(name)} {_NO_NAME}")
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
        if None in splits:
            raise ValueError(f"the splits {shorten(list(self.splits))} are not train, val and test")
        for names in (splits, shards, self.class_names or ()):
            if len(set(names)) < len(names):
                raise ValueError("names a split, a shard or a class twice")
        if len({split.alt_label or "" for split in self.splits.values()}) > 1:
            raise ValueError("has several values of 'alt_label'")
        return self


@dataclass
class FoundShards:
    """The sorted names of the shards of each split: 'train', 'val', 'test', or only 'all'.

    class_names: the name of each label, or none. label_key: the key of the label in a sample's JSON file, or ''.
    """

    splits: dict[str, list[str]]
    class_names: list[str] = field(default_factory=list)
    label_key: str = ""


def find_shards(store: ShardStore, names: Sequence[str] = ()) -> FoundShards:
    """Finds the shards by their `names`, by `_info.json`, or in the root and its folders whose names contain a split.

    Raises UserError: no shard is found, or it is not clear to which split one belongs.
    """
    if names:
        return _split_by_name(names, store)
    data = store.read_small(INFO_FILE, _MAX_INFO_BYTES)  # of timm, or of anyone
    if data is not None:
        try:
            info = _Info.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            raise UserError(
                f"{store.url(INFO_FILE)}: {shorten(key)}: {first['msg'].removeprefix('Value error, ')}; "
                "correct it, or give a pattern of names instead"
            ) from None
        splits = {SPLIT_NAMES[name]: sorted(split.filenames) for name, split in info.splits.items()}
        label_key = next(iter(info.splits.values())).alt_label or ""
        return FoundShards(splits, class_names=info.class_names or [], label_key=label_key)
    if not store.files.can_list:
        raise UserError(
            f"{store.root}: the shards on a web server cannot be listed, and there is no {INFO_FILE}; "
            f"give a pattern, such as {store.url('train-{0000..0127}.tar')}"
        )
    files, folders = store.list_folder()
    for folder in folders:
        if split_of(folder):
            files += store.list_folder(folder)[0]
    shards = [file for file in files if _is_name(file)]
    if not shards:
        formats = [format_of(os.path.join(store.root, file)) for file in files]
        fixes = [found.fix for found in formats if found.what] or ["check it, or use -dataset=folder for images"]
        raise UserError(f"DATA.DATA_PATH: {store.root}: has no shard (*{_SUFFIX}, not compressed); {fixes[0]}")
    return _split_by_name(shards, store)


def _split_by_name(names: Sequence[str], store: ShardStore) -> FoundShards:
    splits = defaultdict(list)
    for name in sorted(names):
        splits[split_of(name) or "all"].append(name)
    if "all" in splits and len(splits) > 1:
        other = next(names for split, names in splits.items() if split != "all")[0]
        raise UserError(
            f"{store.url(splits['all'][0])}: has no 'train', 'val' or 'test' in its name, but {other} has; "
            "rename it, or move it out of the data set"
        )
    return FoundShards(dict(splits))
