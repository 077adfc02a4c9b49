"""Formats of files that are not read, and the way on: of a file that is given, of files in a folder, and of shards."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple

from datasets.decoding.images import is_image_name
from datasets.sources.path_words import split_of
from utils.errors import UserError


class Format(NamedTuple):
    """what: the problem of one file, '' if it may be read where it is given. fix: the way on. name: of files in a
    folder; '' stands for their ending.
    """

    what: str
    fix: str
    name: str = ""


class _Compression(NamedTuple):
    """program: decompresses a file. open: reads one; None: Python has no reader."""

    program: str
    open: Callable[..., Any] | None


_COMPRESSIONS = {
    ".gz": _Compression("gunzip", gzip.open),
    ".bz2": _Compression("bunzip2", bz2.open),
    ".xz": _Compression("unxz", lzma.open),
    ".zst": _Compression("unzstd", None),
}
_TARS = {".tar": "", ".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"} | {f".tar{one}": one for one in _COMPRESSIONS}
_FOLDERS = "docs/data.md#other-formats writes class folders"
_ARCHIVE = Format("is an archive", "unpack it, and give the folder that it contains")
_ARRAYS = Format("contains arrays", "docs/data.md#images-in-arrays writes them to class folders")
RAW = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".srw")  # begin as TIFF does
_IMAGES = (
    *RAW, ".jp2", ".j2k", ".jpx", ".jpf", ".jxl", ".jxr", ".jls", ".fits", ".fit", ".fts", ".exr", ".hdr", ".tga",
    ".ico", ".pcx", ".psd", ".xcf", ".svg", ".eps", ".dds", ".qoi", ".svs", ".ndpi", ".mrxs", ".scn", ".vsi", ".czi",
    ".lif", ".nd2", ".oib", ".nii", ".nii.gz", ".nrrd", ".mha", ".mhd",
)  # fmt: skip
_VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
_ROWS = {  # by endings, or by whole names
    _IMAGES: Format("", "convert images to PNG or JPEG"),
    (".zip", ".7z", ".rar"): _ARCHIVE,
    (".csv", ".tsv", ".jsonl", ".parquet"): Format("", "give it as -data_path, if it has the labels"),
    (".json", ".ndjson"): Format("is JSON", "docs/data.md#labels-in-json makes a table of it"),
    (".xlsx", ".xls", ".ods"): Format("is a workbook, which is not read", "save it as CSV"),
    (".npz", ".npy", ".mat", ".h5", ".hdf5", ".pt", ".pth", ".pkl", ".pickle"): _ARRAYS,
    (".zarr", "zarr.json", ".zarray", ".zgroup"): _ARRAYS._replace(name="Zarr"),
    _VIDEOS: Format("is a video", "save its frames as images: ffmpeg -i VIDEO FOLDER/%06d.png"),
    (".arrow",): Format("is of datasets", "write parquet with datasets (docs/python.md)"),
    (".lance", ".txn", ".manifest"): Format("is of Lance", "docs/data.md#other-formats writes parquet", "Lance"),
    ("next_base", "dataset_meta.json", "tensor_meta.json"): Format("is of Deep Lake", _FOLDERS, "Deep Lake"),
    (".lmdb", ".mdb"): Format("is of LMDB", _FOLDERS, "LMDB"),
    (".tfrecord", ".tfrecords", ".tfrec"): Format("is of TensorFlow", _FOLDERS, "TFRecord"),
    (".mds",): Format("is of mosaicml-streaming", f"{_FOLDERS} with mosaicml-streaming"),
    (".beton",): Format("is of FFCV", "give the images from which it was written"),
}
_FORMATS = {ending: found for endings, found in _ROWS.items() for ending in endings}
_CHUNK = Format("is of litdata", f"{_FOLDERS} with litdata")  # chunk-0-0.bin
_UNKNOWN = Format("", "docs/data.md has the formats that are read")
ONE_CLASS = "has the images of one class"
_SEEN = 20  # members of an archive


def ending_of(path: str) -> str:
    """The ending by which a format is known: '.gz', '.csv.gz', '.tfrecord' of x.tfrecord-00000-of-00001."""
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    if ending in _COMPRESSIONS:
        return os.path.splitext(stem)[1] + ending
    return ending.partition("-")[0]


def format_of(path: str) -> Format:
    """The format by the name of a file, or of a folder around it; of a tar archive, by its first members, too."""
    ending = ending_of(path)
    if ending in _TARS:
        return _format_of_tar(path, ending)
    *folders, name = path.split("/")
    for key in (name, ending, *map(ending_of, folders)):
        if key in _FORMATS:
            return _FORMATS[key]
    compression = _COMPRESSIONS.get(os.path.splitext(ending)[1] or ending)
    if compression:
        return Format("is compressed", f"decompress it with {compression.program}")
    return _CHUNK if name.startswith("chunk-") else _UNKNOWN


def refuse_format(path: str) -> None:
    """Raises UserError: a file is of a format that is not read, such as an archive, a workbook, arrays or JSON."""
    found = format_of(path)
    if found.what and os.path.isfile(path):
        raise UserError(f"{path}: {found.what}; {found.fix}")


def _format_of_tar(path: str, ending: str) -> Format:
    """A shard has labels in files, or the name of a split; members that begin with its own name are one class."""
    folder, name = os.path.split(path)
    members = _members_of(path, ending)
    files = [os.path.basename(one) for one in members]
    are_plain = bool(members) and all(is_image_name(one) and "/" not in one.removeprefix("./") for one in members)
    if any(file.endswith((".cls", ".json")) for file in files) or (split_of(name) and not are_plain):
        fix = "read tar shards with -dataset=tar"
        compression = _COMPRESSIONS.get(_TARS[ending])
        if compression:
            fix = f"decompress it with {compression.program}, and {fix}"
        return Format("is a tar shard", fix)
    stem = name.removesuffix(ending)
    if are_plain and all(file.startswith(stem) for file in files):
        place = quote(folder or ".")
        new = f'"${{f%{ending}}}"'
        unpack = f'for f in {place}/*{ending}; do mkdir {new} && tar -xf "$f" -C {new}; done'
        return Format(ONE_CLASS, f"unpack each archive: {unpack}; then give -data_path={place}")
    return _ARCHIVE


def _members_of(path: str, ending: str) -> list[str]:
    """The names of the first files in a tar archive; none if it cannot be read."""
    from datasets.shards.records import Archive, chunks_of  # which reads tables of labels

    compression = _COMPRESSIONS.get(_TARS[ending])
    opener = compression.open if compression else open
    names = list[str]()
    if opener:
        with suppress(Exception):  # of almost any type, for a damaged archive, or a file of another machine
            names += [one.name for one in islice(Archive(chunks_of(opener(path, "rb")), path).members(), _SEEN)]
    return names
