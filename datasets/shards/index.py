"""The index of a data set of shards: position, size, CRC-32, label and name of each image, in one file.

`index.safetensors` contains the arrays as tensors, and in its metadata a JSON text and a SHA-256 of both.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load, save

from datasets.shards.records import Label, Record, is_class_name
from datasets.sources.samples import MAX_FILE_BYTES
from datasets.sources.shared_arrays import StringPacker, strings_in, to_arrays, to_nfc
from datasets.sources.tables import LABEL_DIGITS
from utils.errors import UserError

INDEX_NAME = "index.safetensors"
INFO_FILE = "_info.json"  # timm's description of the shards
_OF_IMAGES = {"offsets": "<i8", "lengths": "<i4", "crcs": "<u4", "targets": "<i8"}
_COLUMNS = {"ends": "<i8", **_OF_IMAGES, "names": "|u1", "names_ends": "<i8"}
_GROUP_COLUMNS = {"groups": "|u1", "groups_ends": "<i8"}
_FORMAT = "AmpViT shards 1"
_ONE_KIND = "use numbers or names for all samples"
LOCAL_VERSION = "mtime-"  # begins the `version` of a local file


class Shard(NamedTuple):
    """A tar file: its path relative to the location of the data set, such as 'train-000001.tar', and its size.

    version: its ETag, or for a local file `LOCAL_VERSION` and the time of its last change in ns; None if unknown.
    is_assumed: whether the index was made without this version, so that the shard may be newer than its rows.
    """

    name: str
    num_bytes: int
    version: str | None = None
    is_assumed: bool = False

    def is_same_as(self, other: "Shard") -> bool:
        """Tells whether both have one size and, where both know it, one version.

        A local version and an ETag cannot be compared: shards may be uploaded with their index.
        """
        return self[:2] == other[:2] and (self.version == other.version or not self.is_comparable_with(other))

    def is_comparable_with(self, other: "Shard") -> bool:
        """Tells whether both know a version, and of the same kind."""
        if self.version is None or other.version is None:
            return False
        return self.version.startswith(LOCAL_VERSION) == other.version.startswith(LOCAL_VERSION)


@dataclass(frozen=True)
class Index:
    """The N images of S shards.

    shards: S shards; each of them at most once.
    class_names: the sorted names of the classes if the labels are names, else None.
    arrays: `ends` int64 (S,): the images up to the end of each shard. `offsets` int64 (N,), `lengths` int32 (N,),
        `crcs` uint32 (N,): position in the shard, size in bytes and CRC-32 of each image. `targets` int64 (N,): -1 for
        no label. `names` and `names_ends`: the names of the files as packed strings. With a `group_key`, `groups` and
        `groups_ends`: their groups, '' for none.
    label_key, group_key: the keys of the labels and of the groups in .json files, or ''.
    """

    shards: list[Shard]
    class_names: list[str] | None
    arrays: Mapping[str, np.ndarray]
    label_key: str = ""
    group_key: str = ""

    def __len__(self) -> int:
        return len(self.arrays["offsets"])

    @property
    def shard_of(self) -> np.ndarray:
        """The position in `shards` of each image, int64 (N,)."""
        return np.repeat(np.arange(len(self.shards)), np.diff(self.arrays["ends"], prepend=0))

    def rows_of(self, names: Collection[str]) -> np.ndarray:
        """The positions of the images in the shards with these names, sorted."""
        is_wanted = np.array([shard.name in names for shard in self.shards], bool)
        return np.flatnonzero(is_wanted[self.shard_of])

    def of_shard(self, position: int) -> "Index":
        """The index of the shard at `position`, with views of the arrays."""
        ends = self.arrays["ends"]
        start, end = int(ends[position - 1]) if position else 0, int(ends[position])
        return self._part(slice(start, end), [self.shards[position]], np.array([end - start]))

    def select(self, rows: np.ndarray) -> "Index":
        """The index of the images at `rows`, (M,), sorted, and of the shards that contain one of them."""
        used, counts = np.unique(self.shard_of[rows], return_counts=True)
        return self._part(rows, [self.shards[shard] for shard in used], np.cumsum(counts))

    def _part(self, rows: slice | np.ndarray, shards: list[Shard], ends: np.ndarray) -> "Index":
        arrays = {name: self.arrays[name][rows] for name in _OF_IMAGES} | {"ends": ends}
        for name in ("names", "groups") if self.group_key else ("names",):
            strings = strings_in(self.arrays, name)
            part = strings.part(rows.start, rows.stop) if isinstance(rows, slice) else strings.select(rows)
            arrays |= to_arrays(part, name)
        return replace(self, shards=shards, arrays=arrays)


def _columns(has_groups: object) -> dict[str, str]:
    return _COLUMNS | _GROUP_COLUMNS if has_groups else _COLUMNS


def to_index(shard: Shard, records: Sequence[Record], origin: str, group_key: str = "") -> Index:
    """The index of one shard; raises UserError if labels are both numbers and names."""
    labels = {record.label for record in records if record.label is not None}
    class_names = sorted(label for label in labels if isinstance(label, str)) or None
    if class_names and len(class_names) < len(labels):
        raise UserError(f"{origin}: has numbers and names as labels; {_ONE_KIND}")
    number: dict[Label, int] = {name: position for position, name in enumerate(class_names or ())}
    targets = [-1 if record.label is None else number.get(record.label, record.label) for record in records]
    columns = [r.offset for r in records], [r.length for r in records], [r.crc for r in records], targets
    arrays = {name: np.array(column, _OF_IMAGES[name]) for name, column in zip(_OF_IMAGES, columns, strict=True)}
    arrays |= {"ends": np.array([len(records)])} | to_arrays(
        StringPacker(record.name for record in records).strings(), "names"
    )
    if group_key:
        arrays |= to_arrays(StringPacker(record.group for record in records).strings(), "groups")
    return Index([shard], class_names, arrays, group_key=group_key)


def join(indexes: Sequence[Index], label_key: str = "", group_key: str = "") -> Index:
    """The index of the shards of several indexes. Its `class_names` are the classes with an image.

    With a `group_key`, all of them have groups; without, the groups are left out. Raises UserError if some labels are
    numbers and others are names.
    """
    labelled = [index for index in indexes if (index.arrays["targets"] >= 0).any()]
    example = {index.class_names is None: index.shards[0].name for index in labelled}
    if len(example) > 1:
        raise UserError(f"{example[True]}: has numbers as labels, but {example[False]} names; {_ONE_KIND}")
    dtypes = _columns(group_key)
    columns = {name: [index.arrays[name] for index in indexes] for name in dtypes}
    class_names = None
    if False in example:
        lists = {id(one.class_names): np.array(list(map(to_nfc, one.class_names or ())), object) for one in indexes}
        is_used = {key: np.zeros(len(names) + 1, bool) for key, names in lists.items()}  # the last is of targets of -1
        for index in indexes:  # many shards share one list
            is_used[id(index.class_names)][index.arrays["targets"]] = True
        class_names = sorted({name for key, names in lists.items() for name in names[is_used[key][:-1]]})
        number = {name: label for label, name in enumerate(class_names)}
        labels = {key: np.array([*(number.get(name, -1) for name in names), -1]) for key, names in lists.items()}
        columns["targets"] = [labels[id(index.class_names)][index.arrays["targets"]] for index in indexes]
    ends = [name for name in columns if name.endswith("ends")]
    for name in ends:
        columns[name] = [np.diff(part, prepend=0) for part in columns[name]]
    arrays = {name: np.concatenate([np.empty(0, dtypes[name]), *parts]) for name, parts in columns.items()}
    arrays |= {name: np.cumsum(arrays[name]) for name in ends}
    return Index([shard for index in indexes for shard in index.shards], class_names, arrays, label_key, group_key)


def encode_index(index: Index) -> bytes:
    """The content of the file of an index."""
    text = json.dumps([index.shards, index.class_names, index.label_key, *filter(None, [index.group_key])])
    dtypes = _columns(index.group_key)
    arrays = {name: np.ascontiguousarray(index.arrays[name], dtype) for name, dtype in dtypes.items()}
    return save(arrays, {"format": _FORMAT, "index": text, "sha256": index_digest(text, arrays)})


def index_digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the JSON text and the arrays of an index."""
    sha256 = hashlib.sha256(text.encode())
    for name in _columns("groups" in arrays):
        sha256.update(f"{name} {len(arrays[name])} ".encode())
        sha256.update(np.ascontiguousarray(arrays[name]).data)
    return sha256.hexdigest()


def read_index(data: bytes, origin: str) -> Index:
    """The index in the content of a file; `origin` is its path or URL.

    Raises UserError: it is damaged, of another version, or contradicts itself. The checksum does not prevent forgery.
    """
    with suppress(Exception):  # the library raises almost any type for a damaged file
        arrays = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        rows, class_names, label_key, *group_key = json.loads(text := metadata["index"])
        shards, dtypes = [Shard(*row) for row in rows], _columns(group_key)
        index = Index(shards, class_names, {name: arrays[name] for name in dtypes}, label_key, *group_key)
        types, names = {tuple(map(type, shard[:3])) for shard in shards}, class_names or []
        if (
            metadata["format"] == _FORMAT
            and all(arrays[name].dtype.str == dtype and arrays[name].ndim == 1 for name, dtype in dtypes.items())
            and metadata["sha256"] == index_digest(text, arrays)
            and types <= {(str, int, str), (str, int, NoneType)}
            and len({shard.name for shard in shards}) == len(shards)
            and all(0 <= shard.num_bytes < 2**62 for shard in shards)
            and all(map(is_class_name, names))
            and names == sorted(set(names))
            and {type(index.label_key), type(index.group_key)} == {str}
            and _has_valid_rows(index)
        ):
            return index
    raise UserError(f"{origin}: is damaged, or not an index of this version; remove it, and it is built again")


def _has_valid_rows(index: Index) -> bool:
    """Tells whether each image is inside of its shard, and has a class if it has a label."""
    arrays, num_images = index.arrays, len(index)
    rows = dict.fromkeys(("lengths", "crcs", "targets", "names_ends"), num_images) | {"ends": len(index.shards)}
    rows |= {"groups_ends": num_images} if index.group_key else {}
    if any(len(arrays[name]) != number for name, number in rows.items()):
        return False
    lasts = {"ends": num_images} | {f"{name}_ends": len(arrays[name]) for name in ("names", "groups") if name in arrays}
    for name, last in lasts.items():
        edges = np.concatenate([[0], arrays[name], [last]])
        if (edges[1:] < edges[:-1]).any() or edges[-2] != last:
            return False
    offsets, lengths, targets = arrays["offsets"], arrays["lengths"].astype(np.int64), arrays["targets"]
    sizes = np.array([shard.num_bytes for shard in index.shards], np.int64)[index.shard_of]
    num_classes = 10**LABEL_DIGITS if index.class_names is None else len(index.class_names)
    is_valid = (lengths >= 0) & (lengths <= MAX_FILE_BYTES) & (offsets >= 0) & (offsets <= sizes - lengths)
    return bool((is_valid & (targets >= -1) & (targets < num_classes)).all())
