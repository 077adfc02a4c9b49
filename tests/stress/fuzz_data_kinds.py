"""Data: images, lists, tar shards and their index.

Valid examples, readers that check the accepted content, and repairs of checksums.
"""

import contextlib
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from configs.schema import Data
from datasets.decoding.decode import open_image
from datasets.reading import unlabelled
from datasets.shards.index import Shard, encode_index, join_indexes, read_index, to_index
from datasets.shards.records import read_records
from datasets.sources.listed.lists import Lists, TableSplit, read_table
from datasets.sources.listed.parquet import Parquet
from datasets.sources.shared_arrays import strings_in
from datasets.sources.source import Wanted
from datasets.sources.tables.files import open_table
from datasets.transforms.host import eval_crop
from tests.datasets.photo import PHOTO, encode, photos
from tests.datasets.shards.tar_files import tar_of, with_header
from tests.datasets.shards.test_shard_index import index_of
from utils.errors import UserError

_BLOCK_BYTES = 512
_CHUNK_BYTES = 700
_LONG_NAME = "n" * 90 + "/" + "ü" * 90 + ".jpg"


def image_examples() -> list[bytes]:
    size = (24, 19)
    still = photos(
        """
progressive | RGB  | JPEG | {progressive: true}
rotated     | RGB  | JPEG | {orientation: 6}
restarts    | RGB  | JPEG | {restart_marker_blocks: 1}
palette     | P    | PNG  | {transparency: 3}
lossless    | RGB  | WEBP | {lossless: true}
packed      | RGB  | TIFF | {compression: tiff_lzw}
jpeg        | RGB  | JPEG | {}
grey jpeg   | L    | JPEG | {}
cmyk        | CMYK | JPEG | {}
png         | RGB  | PNG  | {}
grey png    | L    | PNG  | {}
alpha       | RGBA | PNG  | {}
deep        | I;16 | PNG  | {}
webp        | RGB  | WEBP | {}
bmp         | RGB  | BMP  | {}
grey bmp    | L    | BMP  | {}
tiff        | RGB  | TIFF | {}
float       | F    | TIFF | {}
32 bits     | I    | TIFF | {}
ppm         | RGB  | PPM  | {}
pgm         | L    | PPM  | {}
""",
        size,
    )
    frame = PHOTO.resize(size)
    return [*still.values(), encode(frame, "GIF", save_all=True, append_images=[frame.rotate(90)])]


def dicom_examples() -> list[bytes]:
    """Gray with and without a window, colors, and a frame that is a JPEG."""
    import pydicom

    from tests.datasets.decoding.test_dicom import CASES, dicom, grey_of

    jpeg = image_examples()[0]
    color = np.asarray(Image.open(io.BytesIO(jpeg)))
    frame = {"syntax": pydicom.uid.JPEGBaseline8Bit, "PixelData": pydicom.encaps.encapsulate([jpeg])}
    grey = [grey_of(dtype, elements)[1] for dtype, elements, *_ in CASES]
    return [*grey, dicom(color, "RGB", 8), dicom(color, "YBR_FULL_422", 8, **frame)]


def read_image(data: bytes, folder: Path) -> None:
    image = open_image(data, 3 if len(data) % 2 else 1, lambda: "image")
    eval_crop(Data(IMAGE_SIZE=16), image, random.Random(0))


def repair_png(data: bytes) -> bytes:
    """Returns a PNG with valid checksums, and other files unchanged."""
    if not data.startswith(b"\x89PNG"):
        return data
    result = data[:8]
    place = 8
    while place + 12 <= len(data):
        size = min(int.from_bytes(data[place : place + 4], "big"), len(data) - place - 12)
        chunk = data[place + 4 : place + 8 + size]
        result += data[place : place + 4] + chunk + struct.pack(">I", zlib.crc32(chunk))
        place += 12 + size
    return result


def list_examples() -> list[bytes]:
    """A list of files, tables with numbers, names and a column per class, and Hugging Face's metadata."""
    numbered = """image_path,target
a.png,0
"b,0.png",0
"b,1.png",1
"b,2.png",2
"""
    texts = (
        """a.png 0
b c.png\t0
a.png 1
b c.png\t1
a.png 2
""",
        numbered,
        numbered.replace(",0", ",cat").replace(",1", ",dog"),
        """image_path,cat,dog,split
a0.png,0,1,t
a1.png,1,0,v
a2.png,0,1,t
a3.png,1,0,v
""",
        """{"file_name": "0.png", "label": 0, "text": null}
{"file_name": "1.png", "label": 1, "text": null}
{"file_name": "2.png", "label": 0, "text": null}
""",
    )
    return [text.encode() for text in texts]


def read_list_file(data: bytes, folder: Path) -> None:
    (folder / "a.png").touch()
    file = folder / (
        "list.csv" if data.startswith(b"image") else "list.jsonl" if data.startswith(b"{") else "train_list.txt"
    )
    file.write_bytes(data)
    with contextlib.suppress(UserError):
        images = unlabelled(str(file), Data())
        images.open(len(images) - 1, 3)
    if file.suffix == ".txt":
        Lists(Wanted(Data(DATA_PATH=str(folder)))).read("train")
    else:
        whole = TableSplit(open_table(file), Data())
        read_table(whole, whole, Wanted(Data()))


def parquet_examples() -> list[bytes]:
    """Files of the hub and of pandas, in several row groups and compressions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = image_examples()[5]
    features = {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    hub = {"image": [{"bytes": image, "path": "a.png"}] * 6, "label": [0, 1] * 3}
    plain = {"image": [image] * 6, "label": ["cat", "dog"] * 3, "split": ["train", "test"] * 3}
    tables = [pa.table(hub).replace_schema_metadata(metadata), pa.table(plain)]
    files = []
    for table in tables:
        for compression in ("snappy", "none", "zstd"):
            pq.write_table(table, buffer := io.BytesIO(), row_group_size=2, compression=compression)
            files.append(buffer.getvalue())
    return files


def read_parquet(data: bytes, folder: Path) -> None:
    file = folder / "0.parquet"
    file.write_bytes(data)
    source = Parquet(Wanted(Data(DATA_PATH=str(file), DATASET="parquet")))
    samples = source.read("train" if "train" in source.splits else "all")
    for index in range(len(samples)):
        samples.open(index, 3)


def tar_examples() -> list[bytes]:
    """Archives of WebDataset's, img2dataset's and timm's layouts in three formats, and one of links and a folder."""
    labelled = {f"{number:04d}.{end}": b"%d" % number for number in range(3) for end in ("jpg", "cls")}
    in_json = {"a.png": b"1", "a.json": b'{"caption": "x", "label": 3}', "b.jpg": b"x" * 900, "b.json": b'{"label": 4}'}
    in_folders = {"cat/1.jpg": b"1", "dog/2.JPEG": b"2" * 600, "./dog/x.y/caf\udce9.webp": b""}
    in_long_names = {_LONG_NAME: b"1", _LONG_NAME.replace("n", "m"): b"2"}
    examples = [_tar_of(labelled, tarfile.PAX_FORMAT, comment="x" * 40)]
    for files in (labelled, in_json, in_folders):
        examples.append(_tar_of(files, tarfile.USTAR_FORMAT))
    for files in (labelled, in_json, in_folders, in_long_names):  # which USTAR cannot hold
        examples += [_tar_of(files, tarfile.GNU_FORMAT), _tar_of(files, tarfile.PAX_FORMAT)]
    return examples


def _tar_of(files: dict[str, bytes], tar_format: int, **global_header: str) -> bytes:
    content = tar_of(files, tar_format, **global_header).rstrip(b"\0")
    return content + bytes(-len(content) % _BLOCK_BYTES + 2 * _BLOCK_BYTES)  # without padding, which is most of it


def read_tar(data: bytes, folder: Path) -> None:
    """Reads a shard. The index of the accepted records can be written and read."""
    chunks = (data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES))
    records, others = read_records(chunks, "shard", "label" if data.startswith(b"a.png") else "")
    for record in records:
        assert 0 <= record.offset <= len(data) - record.length
    index = join_indexes([to_index(Shard("shard", len(data)), records, "shard")])
    assert len(read_index(encode_index(index), "index")) == len(records)
    assert all(note.text.isprintable() for note in others.notes())


def repair_tar(data: bytes) -> bytes:
    """Writes a valid checksum into every block that looks like a header."""
    for start in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        if b"ustar" in data[start : start + _BLOCK_BYTES]:
            data = with_header(data, start)
    return data


def tar_index_examples() -> list[bytes]:
    names = [["cat", "dog"], [None, "ant"]]
    return [encode_index(index_of(*one)) for one in ([[[3, 1, None], [], [999_999]]], [names, "alt"], [[[]]])]


def read_tar_index(data: bytes, folder: Path) -> None:
    """Reads an index. One that is accepted has no image outside of its shard and no label without a class."""
    index = read_index(data, "index")
    parts = [index.of_shard(position) for position in range(len(index.shards))]
    for one in parts:
        arrays = one.arrays
        ends = arrays["offsets"] + arrays["lengths"]
        assert ((arrays["offsets"] >= 0) & (arrays["lengths"] >= 0) & (ends <= one.shards[0].num_bytes)).all()
        assert (arrays["targets"] >= -1).all()
        assert not index.class_names or (arrays["targets"] < len(index.class_names)).all()
        assert all(isinstance(name, str) for name in strings_in(arrays, "names"))
    again = join_indexes(parts, index.label_key)
    assert len(read_index(encode_index(again), "index")) == len(index)


def repair_tar_index(data: bytes) -> bytes:
    """The index with checksums that fit its arrays, if it still is a zip archive with one."""
    repaired = io.BytesIO()
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as old:  # almost any type
        with zipfile.ZipFile(repaired, "w") as new:
            for part in old.infolist():
                header = data[part.header_offset : part.header_offset + 30]
                start = part.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
                new.writestr(part.filename, data[start : start + part.file_size])
        return repaired.getvalue()
    return data
