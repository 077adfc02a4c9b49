"""The index of a data set of shards: position, size, CRC-32, label and name of each image, in one file.

`index.npz` contains the arrays, and a JSON text with the shards, the names of the classes and the keys of the labels.
"""

import io
import json
import zipfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType
from typing import NamedTuple

import numpy as np

from configs.schema.section import without
from configs.yaml_io import Values
from datasets.shards.records import Label, Record, is_class_name
from datasets.sources.class_names import positions
from datasets.sources.samples import MAX_FILE_BYTES
from datasets.sources.shared_arrays import Arrays, select_rows, strings_in, to_arrays, to_nfc
from datasets.sources.tables.files import LABEL_DIGITS
from utils.errors import UserError

INDEX_NAME = "index.npz"
INFO_FILE = "_info.json"  # timm's description of the shards
_OF_IMAGES = {"offsets": "<i8", "lengths": "<i4", "crcs": "<u4", "targets": "<i8"}
_TEXTS_OF_IMAGES = ("names", "groups")  # packed
_COLUMNS = {"ends": "<i8", **_OF_IMAGES, "names": "|u1", "names_ends": "<i8", "groups": "|u1", "groups_ends": "<i8"}
_FORMAT = "AmpViT shards 2"
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
    class_names: the sorted names of the classes if the labels are names, else none.
    arrays: `ends` int64 (S,): the images up to the end of each shard. `offsets` int64 (N,), `lengths` int32 (N,),
        `crcs` uint32 (N,): position in the shard, size in bytes and CRC-32 of each image. `targets` int64 (N,): -1 for
        no label. `names` and `names_ends`: the names of the files as packed strings. `groups` and `groups_ends`: their
        groups, '' for none.
    label_key, group_key: the keys of the labels and of the groups in .json files, or ''.
    """

    shards: list[Shard]
    class_names: list[str]
    arrays: Arrays
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
        start = int(ends[position - 1]) if position else 0
        end = int(ends[position])
        arrays = {name: self.arrays[name][start:end] for name in _OF_IMAGES} | {"ends": np.array([end - start])}
        for name in _TEXTS_OF_IMAGES:
            arrays |= to_arrays(strings_in(self.arrays, name).part(start, end), name)
        return replace(self, shards=[self.shards[position]], arrays=arrays)

    def select(self, rows: np.ndarray) -> "Index":
        """The index of the images at `rows`, (M,), sorted, and of the shards that contain one of them."""
        used, counts = np.unique(self.shard_of[rows], return_counts=True)
        of_images = without(self.arrays, ("ends",))
        arrays = select_rows(of_images, rows) | {"ends": np.cumsum(counts)}
        return replace(self, shards=[self.shards[shard] for shard in used], arrays=arrays)


def to_index(shard: Shard, records: Sequence[Record], origin: str) -> Index:
    """The index of one shard; raises UserError if labels are both numbers and names."""
    labels = {record.label for record in records} - {None}
    class_names = sorted(label for label in labels if isinstance(label, str))
    if class_names and len(class_names) < len(labels):
        raise UserError(f"{origin}: has numbers and names as labels; {_ONE_KIND}")
    number: dict[Label, Label] = {None: -1}
    number |= {name: position for position, name in enumerate(class_names)}
    rows = [(*record[:3], number.get(record.label, record.label)) for record in records]
    columns = np.array(rows, list(_OF_IMAGES.items()))
    arrays = {"ends": np.array([len(records)])} | {name: columns[name] for name in _OF_IMAGES}
    arrays |= to_arrays((record.name for record in records), "names")
    arrays |= to_arrays((record.group for record in records), "groups")
    return Index([shard], class_names, arrays)


def join_indexes(indexes: Sequence[Index], label_key: str = "", group_key: str = "") -> Index:
    """The index of the shards of several indexes. Its `class_names` are the classes with an image.

    Raises UserError if some labels are numbers and others are names.
    """
    columns = {name: [index.arrays[name] for index in indexes] for name in _COLUMNS}
    example = {}
    for index in indexes:
        if (index.arrays["targets"] >= 0).any():
            example[not index.class_names] = index.shards[0].name
    if len(example) > 1:
        raise UserError(f"{example[True]}: has numbers as labels, but {example[False]} names; {_ONE_KIND}")
    class_names = list[str]()
    if False in example:
        class_names, columns["targets"] = _number_together(indexes)
    arrays = {}
    for name, parts in columns.items():
        empty = np.empty(0, _COLUMNS[name])
        if name.endswith("ends"):  # in each part they count from its own start
            arrays[name] = np.cumsum(np.concatenate([empty, *(np.diff(part, prepend=0) for part in parts)]))
        else:
            arrays[name] = np.concatenate([empty, *parts])
    return Index([shard for index in indexes for shard in index.shards], class_names, arrays, label_key, group_key)


def _number_together(indexes: Sequence[Index]) -> tuple[list[str], list[np.ndarray]]:
    """The sorted names of the classes with an image, in NFC, and the targets of each index as places in this list.

    Many shards share one list of names, which is read once.
    """
    lists = {id(index.class_names): list(map(to_nfc, index.class_names)) for index in indexes}
    used = set[str]()
    for index in indexes:
        labels = np.unique(index.arrays["targets"])
        used.update(lists[id(index.class_names)][label] for label in labels[labels >= 0])
    names = sorted(used)
    number = positions(names)
    # -1, for no label, takes the last entry
    numbers = {key: np.array([*(number.get(name, -1) for name in one), -1]) for key, one in lists.items()}
    return names, [numbers[id(index.class_names)][index.arrays["targets"]] for index in indexes]


def encode_index(index: Index) -> bytes:
    """The content of the file of an index."""
    text = json.dumps([_FORMAT, index.shards, index.class_names or None, index.label_key, index.group_key])
    arrays: Values = {name: np.asarray(index.arrays[name], dtype) for name, dtype in _COLUMNS.items()}
    np.savez(file := io.BytesIO(), about=np.frombuffer(text.encode(), np.uint8), **arrays)
    return file.getvalue()


def read_index(data: bytes, origin: str) -> Index:
    """The index in the content of a file; `origin` is its path or URL.

    Raises UserError: it is damaged, of another version, or contradicts itself.
    """
    with suppress(Exception), np.load(io.BytesIO(data), allow_pickle=False) as file:  # numpy raises almost any type
        if any(part.compress_type != zipfile.ZIP_STORED for part in file.zip.infolist()):
            raise ValueError  # a small file could fill the memory
        about, rows, class_names, label_key, group_key = json.loads(file["about"].tobytes())
        shards = [Shard(*row[:4]) for row in rows]  # an earlier version wrote another column
        names = class_names or []
        arrays = {name: file[name] for name in _COLUMNS}
        index = Index(shards, names, arrays, label_key, group_key)
        checks = [
            about == _FORMAT,
            {name: array.dtype.str for name, array in arrays.items()} == _COLUMNS,
            all(array.ndim == 1 for array in arrays.values()),
            {tuple(map(type, shard[:3])) for shard in shards} <= {(str, int, str), (str, int, NoneType)},
            len({shard.name for shard in shards}) == len(shards),
            all(0 <= shard.num_bytes < 2**62 for shard in shards),
            all(map(is_class_name, names)),
            names == sorted(set(names)),
            {type(label_key), type(group_key)} == {str},
        ]
        if all(checks) and _has_valid_rows(index):
            return index
    raise UserError(f"{origin}: is damaged, or not an index of this version; remove it, and it is built again")


def _has_valid_rows(index: Index) -> bool:
    """Tells whether each image is inside of its shard, and has a class if it has a label."""
    arrays = index.arrays
    num_images = len(index)
    ends = {"ends": (len(index.shards), num_images)}  # how many, and the last one
    ends |= {f"{name}_ends": (num_images, len(arrays[name])) for name in _TEXTS_OF_IMAGES}
    if any(arrays[name].shape != (num_images,) for name in _OF_IMAGES):
        return False
    for name, (count, last) in ends.items():
        edges = np.concatenate([[0], arrays[name], [last]])
        if len(edges) != count + 2 or (edges[1:] < edges[:-1]).any() or edges[-2] != last:
            return False
    offsets = arrays["offsets"]
    lengths = arrays["lengths"].astype(np.int64)
    targets = arrays["targets"]
    sizes = np.array([shard.num_bytes for shard in index.shards], np.int64)[index.shard_of]
    num_classes = len(index.class_names) or 10**LABEL_DIGITS
    is_valid = (lengths >= 0) & (lengths <= MAX_FILE_BYTES) & (offsets >= 0) & (offsets <= sizes - lengths)
    return bool((is_valid & (targets >= -1) & (targets < num_classes)).all())
