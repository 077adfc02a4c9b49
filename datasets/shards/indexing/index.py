"""The index of a data set of shards: position, size, CRC-32, label and name of each image, in one file.

`index.safetensors` contains the arrays as tensors, and in its metadata a JSON text and a SHA-256 of both.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from configs.reading.yaml_io import shorten
from datasets.shards.indexing.labels import MAX_CLASS_NAME_CHARS, Label, is_encodable
from datasets.shards.indexing.records import Record
from datasets.shards.shard import Shard
from datasets.sources.arrays.strings import PackedStrings, StringPacker, strings_in, to_arrays
from datasets.sources.files.rows import LABEL_DIGITS
from datasets.sources.samples import MAX_FILE_BYTES
from utils.atomic_file import open_atomically
from utils.errors import UserError

INDEX_NAME = "index.safetensors"
INFO_FILE = "_info.json"  # timm's description of the shards
COLUMNS = {
    "ends": "<i8", "offsets": "<i8", "lengths": "<i4", "crcs": "<u4", "targets": "<i8", "names": "|u1",
    "names_ends": "<i8",
}  # fmt: skip
_OF_IMAGES = ("offsets", "lengths", "crcs", "targets")
_FORMAT = "AmpViT shards 1"
_FIX = "remove it, and the index is built again"


class _Damaged(Exception):
    """A problem of the content of an index."""


@dataclass(frozen=True)
class Index:
    """The N images of S shards.

    shards: S shards; each of them at most once.
    class_names: the sorted names of the classes if the labels are names, else None.
    arrays: `ends` int64 (S,): the images up to the end of each shard. `offsets` int64 (N,), `lengths` int32 (N,),
        `crcs` uint32 (N,): position in the shard, size in bytes and CRC-32 of each image. `targets` int64 (N,): -1 for
        no label. `names` and `names_ends`: the names of the files as packed strings.
    label_key: the key of the labels in .json files, or ''.
    """

    shards: list[Shard]
    class_names: list[str] | None
    arrays: Mapping[str, np.ndarray]
    label_key: str = ""

    def __len__(self) -> int:
        return len(self.arrays["offsets"])

    @property
    def shard_of(self) -> np.ndarray:
        """The position in `shards` of each image, int64 (N,)."""
        return np.repeat(np.arange(len(self.shards)), np.diff(self.arrays["ends"], prepend=0))

    def of_shard(self, position: int) -> "Index":
        """The index of the shard at `position`, with views of the arrays."""
        ends, names = self.arrays["ends"], strings_in(self.arrays, "names")
        start, end = int(ends[position - 1]) if position else 0, int(ends[position])
        first = int(names.ends[start - 1]) if start else 0
        last = int(names.ends[end - 1]) if end > start else first
        own_names = to_arrays(PackedStrings(names.encoded[first:last], names.ends[start:end] - first), "names")
        columns = {name: self.arrays[name][start:end] for name in _OF_IMAGES}
        arrays = columns | own_names | {"ends": np.array([end - start])}
        return Index([self.shards[position]], self.class_names, arrays, self.label_key)

    def select(self, rows: np.ndarray) -> "Index":
        """The index of the images at `rows`, (M,), sorted, and of the shards that contain one of them."""
        used, counts = np.unique(self.shard_of[rows], return_counts=True)
        columns = {name: self.arrays[name][rows] for name in _OF_IMAGES}
        names = to_arrays(strings_in(self.arrays, "names").select(rows), "names")
        arrays = columns | names | {"ends": np.cumsum(counts)}
        return Index([self.shards[shard] for shard in used], self.class_names, arrays, self.label_key)


def to_index(shard: Shard, records: Sequence[Record], origin: str) -> Index:
    """The index of one shard; raises UserError if labels are both numbers and names."""
    by_kind = {type(record.label): record for record in reversed(records) if record.label is not None}
    if len(by_kind) > 1:
        raise _two_kinds(*(f"{origin}: {record.name}" for record in (by_kind[int], by_kind[str])))
    class_names = sorted({record.label for record in records if isinstance(record.label, str)}) or None
    number: dict[Label, int] = {name: position for position, name in enumerate(class_names or ())}
    columns = {
        "ends": [len(records)],
        "offsets": [record.offset for record in records],
        "lengths": [record.length for record in records],
        "crcs": [record.crc for record in records],
        "targets": [-1 if record.label is None else number.get(record.label, record.label) for record in records],
    }
    arrays = {name: np.array(values, COLUMNS[name]) for name, values in columns.items()}
    names = StringPacker(record.name for record in records).strings()
    return Index([shard], class_names, arrays | to_arrays(names, "names"))


def join(indexes: Sequence[Index], label_key: str = "") -> Index:
    """The index of the shards of several indexes. Its `class_names` are the classes with an image.

    Raises:
        UserError: some labels are numbers and others are names.
    """
    examples: dict[bool, str] = {}
    for index in indexes:
        labelled = np.flatnonzero(index.arrays["targets"] >= 0)
        if len(labelled):
            first = index.select(labelled[:1])
            name = f"{first.shards[0].name}: {strings_in(first.arrays, 'names')[0]}"
            examples.setdefault(index.class_names is None, name)
    if len(examples) > 1:
        raise _two_kinds(examples[True], examples[False])
    class_names, targets = _number_classes(indexes) if False in examples else (None, None)
    arrays = {}
    for name, dtype in COLUMNS.items():
        parts = [index.arrays[name] for index in indexes]
        if name == "targets" and targets:
            parts = targets
        is_ends = name in ("ends", "names_ends")
        if is_ends:
            parts = [np.diff(part, prepend=0) for part in parts]
        joined = np.concatenate([np.empty(0, dtype), *parts])
        arrays[name] = np.cumsum(joined) if is_ends else joined
    return Index([shard for index in indexes for shard in index.shards], class_names, arrays, label_key)


def _two_kinds(number: str, name: str) -> UserError:
    return UserError(f"{number} has a number as its label, but {name} a name; use numbers or names for all samples")


def _number_classes(indexes: Sequence[Index]) -> tuple[list[str], list[np.ndarray]]:
    """The sorted names of all classes with an image, and the targets of each index as positions in them."""
    lists = {id(index.class_names): index.class_names or [] for index in indexes}  # many shards share one list
    is_used = {key: np.zeros(len(names), bool) for key, names in lists.items()}
    for index in indexes:
        targets = index.arrays["targets"]
        is_used[id(index.class_names)][targets[targets >= 0]] = True
    used = {key: [names[label] for label in np.flatnonzero(is_used[key])] for key, names in lists.items()}
    class_names = sorted(set().union(*used.values()))
    number = {name: label for label, name in enumerate(class_names)}
    labels = {}
    for key, names in lists.items():
        labels[key] = np.full(len(names) + 1, -1)  # the last one is of targets of -1
        labels[key][:-1][is_used[key]] = [number[name] for name in used[key]]
    return class_names, [labels[id(index.class_names)][index.arrays["targets"]] for index in indexes]


def write_index(path: Path, index: Index) -> None:
    """Writes the index atomically; raises OSError."""
    with open_atomically(path, "wb") as file:
        file.write(encode_index(index))


def encode_index(index: Index) -> bytes:
    """The content of the file of an index."""
    text = json.dumps([index.shards, index.class_names, index.label_key])
    arrays = {name: np.ascontiguousarray(index.arrays[name], dtype) for name, dtype in COLUMNS.items()}
    return save(arrays, {"format": _FORMAT, "index": text, "sha256": index_digest(text, arrays)})


def index_digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the JSON text and the arrays of an index."""
    sha256 = hashlib.sha256(text.encode())
    for name in COLUMNS:
        sha256.update(f"{name} {len(arrays[name])} ".encode())
        sha256.update(np.ascontiguousarray(arrays[name]).data)
    return sha256.hexdigest()


def read_index(data: bytes, origin: str) -> Index:
    """The index in the content of a file; `origin` is its path or URL.

    Raises:
        UserError: it is damaged, of another version, or contradicts itself. The checksum does not prevent forgery.
    """
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header.get("__metadata__", {})
        if metadata.get("format") != _FORMAT:
            raise _Damaged(f"is not an index of this version, whose format is {_FORMAT}")
        for name, dtype in COLUMNS.items():
            if name not in arrays or arrays[name].dtype.str != dtype or arrays[name].ndim != 1:
                raise _Damaged(f"is damaged (the array {name} is missing, or has a wrong type)")
        text = metadata.get("index", "")
        if metadata.get("sha256") != index_digest(text, arrays):
            raise _Damaged("is damaged (its checksum does not match)")
        shards, class_names, label_key = _check_text(json.loads(text))
        index = Index(shards, class_names, {name: arrays[name] for name in COLUMNS}, label_key)
        _check_arrays(index)
        return index
    except _Damaged as error:
        raise UserError(f"{origin}: {error}; {_FIX}") from error
    except Exception as error:  # the library raises almost any type for a damaged file
        raise UserError(f"{origin}: is damaged or not an index ({shorten(str(error))}); {_FIX}") from error


def _check_text(content: Any) -> tuple[list[Shard], list[str] | None, str]:
    rows, class_names, label_key = content
    shards = [Shard(*row) for row in rows]
    for name, num_bytes, version in shards:
        if not (isinstance(name, str) and type(num_bytes) is int and 0 <= num_bytes < 2**62):
            raise _Damaged("is damaged (a shard has no valid name or size)")
        if not (version is None or isinstance(version, str)):
            raise _Damaged("is damaged (a shard has no valid version)")
    if len({shard.name for shard in shards}) < len(shards):
        raise _Damaged("is damaged (a shard occurs twice)")
    names = [] if class_names is None else list(class_names)
    if not all(isinstance(name, str) and len(name) <= MAX_CLASS_NAME_CHARS and is_encodable(name) for name in names):
        raise _Damaged("is damaged (a class has no valid name)")
    if names != sorted(set(names)) or not isinstance(label_key, str):
        raise _Damaged("is damaged (the names of the classes are not in order)")
    return shards, None if class_names is None else names, label_key


def _check_arrays(index: Index) -> None:
    arrays, num_images = index.arrays, len(index)
    ends, offsets, lengths = arrays["ends"], arrays["offsets"], arrays["lengths"].astype(np.int64)
    if any(len(arrays[name]) != num_images for name in ("lengths", "crcs", "targets", "names_ends")):
        raise _Damaged("is damaged (its columns differ in length)")
    for name, values, last in (("ends", ends, num_images), ("names_ends", arrays["names_ends"], len(arrays["names"]))):
        edges = np.concatenate([[0], values])
        if not (edges[1:] >= edges[:-1]).all() or edges[-1] != last:
            raise _Damaged(f"is damaged ({name} are not in order)")
    if len(ends) != len(index.shards):
        raise _Damaged("is damaged (it has another number of shards)")
    shard_of = index.shard_of
    sizes = np.array([shard.num_bytes for shard in index.shards], np.int64)[shard_of]
    if not ((lengths >= 0) & (lengths <= MAX_FILE_BYTES) & (offsets >= 0) & (offsets <= sizes - lengths)).all():
        raise _Damaged("is damaged (an image is outside of its shard)")
    is_same_shard = shard_of[1:] == shard_of[:-1]
    if (is_same_shard & (offsets[1:] < offsets[:-1] + lengths[:-1])).any():
        raise _Damaged("is damaged (images overlap)")
    num_classes = 10**LABEL_DIGITS if index.class_names is None else len(index.class_names)
    if ((arrays["targets"] < -1) | (arrays["targets"] >= num_classes)).any():
        raise _Damaged("is damaged (a label has no class)")
