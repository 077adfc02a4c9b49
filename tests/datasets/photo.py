"""A photograph for the tests of decoding and crops."""

import io
import struct
import zlib

import numpy as np
import torch
from conftest import rotated, values_of
from PIL import Image, TiffImagePlugin
from sklearn.datasets import load_sample_images
from torch import Tensor

from datasets.decoding.decode import Decoding, open_image

PHOTO = Image.fromarray(load_sample_images().images[0]).crop((150, 100, 411, 299))  # 261 x 199: no multiple of 8


def as_tensor(image: Image.Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def decode_image(data: bytes, channels: int, name: str = "x", **decoding) -> Tensor:
    return open_image(data, channels, lambda: name, Decoding(**decoding)).pixels


def encode(image: Image.Image, kind: str, orientation: int = 0, **options) -> bytes:
    """options: Pillow's. orientation: of EXIF; 0: none."""
    if orientation:
        options["exif"] = rotated(orientation)
    image.save(stream := io.BytesIO(), kind, **options)
    return stream.getvalue()


def jpeg(image: Image.Image = PHOTO, **options) -> bytes:
    return encode(image, "JPEG", **options)


def photos(table: str, size: tuple[int, int] = PHOTO.size) -> dict[str, bytes]:
    """The photograph in files. Lines of the table: a name, Pillow's mode, the format, options of `encode`."""
    photo = PHOTO.resize(size)
    return {name: encode(photo.convert(mode), kind, **options) for name, mode, kind, options in values_of(table)}


def with_bytes(data: bytes, start: int, new: bytes) -> bytes:
    """The data with other bytes from `start` on."""
    return data[:start] + new + data[start + len(new) :]


def png16(values: np.ndarray, orientation: int = 1) -> bytes:
    """A PNG of 16 bits, which Pillow does not write. values: (H, W, 3)."""
    height, width, _ = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    exif = rotated(orientation).tobytes().removeprefix(b"Exif\0\0")
    parts = {b"IHDR": header, b"eXIf": exif, b"IDAT": zlib.compress(rows), b"IEND": b""}
    chunks = (struct.pack(">I", len(data)) + kind + data for kind, data in parts.items())
    sums = (struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(bytes.__add__, chunks, sums))


def tiff16(values: np.ndarray, photometric: int = 2, extra: int = 2) -> bytes:
    """A TIFF of 16 bits, which Pillow does not write. values: (H, W, C).

    extra: the meaning of the fourth channel; 2: alpha.
    """
    height, width, channels = values.shape
    data = values.astype("<u2").tobytes()
    tags = TiffImagePlugin.ImageFileDirectory_v2(prefix=b"II")
    for tag, value in {
        256: width, 257: height, 258: (16,) * channels, 259: 1, 262: photometric, 273: 0, 277: channels, 278: height,
        279: len(data), 284: 1,
    }.items():  # fmt: skip
        tags[tag] = value
    if channels == 4:
        tags[338] = extra
    tags.save(file := io.BytesIO())
    return file.getvalue() + data
