"""The size of an image from the first and last bytes of its file, in microseconds, if the file looks whole."""

import os
import re
import struct
from typing import Any

from PIL import Image

from datasets.decoding.images import FORMATS, kind_of, missing_decoder
from datasets.decoding.partial_jpeg import captured_stderr, read_header

HEAD_BYTES, TAIL_BYTES = 4096, 1024  # cameras and editors append bytes after the end of the image
_MANY_BYTES = 1 << 18  # a JPEG with a preview in its EXIF data
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # by the type of color
_STRIPS, _TILES = (273, 279), (324, 325)  # TIFF: tags of offsets and lengths
_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "jpeg", "group3", "group4")
_RARE_MODES = ("F", "I", "LAB")  # TIFF: not each of them has gray values
_BYTES_PER_PIXEL = {"L": 1, "RGB": 3, "I": 2}  # PPM


def size_if_whole(file: int, head: bytes, tail: bytes, num_bytes: int) -> tuple[int, int] | None:
    """Height and width in pixels of an image with common pixels whose last part is there; None: a decoder must decide.

    Raises any exception for a damaged file. file: its descriptor. head, tail: its first HEAD_BYTES and last TAIL_BYTES.
    """
    kind = kind_of(head)
    if kind is None or missing_decoder(kind):
        return None
    if kind == "JPEG":
        if b"\xff\xd9" not in tail:
            return None
        header = read_header(head) or read_header(os.pread(file, _MANY_BYTES, 0))
        return header and (header.height, header.width)
    if kind == "PNG":
        width, height, depth, color, *methods, interlace = struct.unpack_from(">IIBBBBB", head, 16)
        is_known = depth in _PNG_DEPTHS.get(color, ()) and methods == [0, 0] and interlace < 2
        return (height, width) if is_known and b"IEND" in tail and b"acTL" not in head else None
    if kind == "GIF":
        width, height = struct.unpack_from("<HH", head, 6)
        return (height, width) if tail.endswith(b";") else None
    if kind == "WEBP":
        if struct.unpack_from("<I", head, 4)[0] + 8 > num_bytes:
            return None
        if head[12:16] == b"VP8X":
            width, height = (1 + int.from_bytes(head[place : place + 3], "little") for place in (24, 27))
        elif head[12:16] == b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        else:
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", head, 26))
        return height, width
    return _boxes_size(file, num_bytes) if kind in ("AVIF", "HEIC") else _stored_size(file, num_bytes)


def _boxes_size(file: int, num_bytes: int) -> tuple[int, int] | None:
    """Of AVIF and HEIC: boxes, each with its length; of the sizes of the image, its tiles and previews the largest."""
    position = 0
    while position < num_bytes:
        length, _, long = struct.unpack(">I4sQ", os.pread(file, 16, position).ljust(16, b"\0"))
        if 1 < length < 8:
            return None
        position += (long if length == 1 else length) or num_bytes
    head = os.pread(file, 1 << 16, 0)
    sizes = [struct.unpack_from(">II", head, box.end() + 4) for box in re.finditer(b"ispe", head)]
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return (height, width) if position == num_bytes else None


def _stored_size(file: int, num_bytes: int) -> tuple[int, int] | None:
    """Of TIFF, BMP and PPM."""
    with captured_stderr(), open(file, "rb", closefd=False) as stream, Image.open(stream, formats=FORMATS) as image:
        last: Any = image.tile[-1]
        codec, _, end, options = last
        width, height = image.size
        if image.format == "TIFF":
            tags = image.tag_v2  # type: ignore[attr-defined]
            offsets, lengths = (tags[tag] for tag in (_STRIPS if _STRIPS[0] in tags else _TILES))
            end = max(map(sum, zip(offsets, lengths, strict=True)))
            order = ">" if os.pread(file, 2, 0) == b"MM" else "<"
            (start,) = struct.unpack(f"{order}I", os.pread(file, 4, 4))
            (num_tags,) = struct.unpack(f"{order}H", os.pread(file, 2, start))
            is_whole = len(tags) == num_tags  # Pillow leaves out the tags that are missing at the end of the file
            is_common = is_whole and image.mode not in _RARE_MODES and image.info["compression"] in _COMPRESSIONS
        elif image.format == "BMP":
            is_common, end = codec == "raw", end + options[1] * height
        else:
            is_common = codec == "raw" and image.mode in _BYTES_PER_PIXEL
            end += width * height * _BYTES_PER_PIXEL.get(image.mode, 0)
    return (height, width) if is_common and end <= num_bytes else None
