"""Valid examples and readers of data: images, lists, CIFAR batches, augmentation policies."""

import contextlib
import io
import pickle
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from configs.schema.train import check_policy
from datasets.decoding.decode import open_image
from datasets.registry import unlabelled
from datasets.sources.files.lists import read_list, read_table
from datasets.sources.in_memory import read_batch
from datasets.transforms.host import center_crop
from datasets.transforms.policies import TimmPolicy
from utils.errors import UserError


def image_examples() -> list[bytes]:
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(256, size=(19, 24, 3), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(60000, size=(9, 9)).astype("u2"))
    grey, exif = colour.convert("L"), Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    animation = {"save_all": True, "append_images": [colour.rotate(90)]}
    images = [
        (colour, "JPEG", {}), (grey, "JPEG", {}), (colour.convert("CMYK"), "JPEG", {}),
        (colour, "JPEG", {"progressive": True}), (colour, "JPEG", {"exif": exif}),
        (colour, "PNG", {}), (grey, "PNG", {}), (colour.convert("P"), "PNG", {"transparency": 3}),
        (colour.convert("RGBA"), "PNG", {}), (deep, "PNG", {}),
        (colour, "WEBP", {}), (colour, "WEBP", {"lossless": True}), (colour, "BMP", {}), (grey, "BMP", {}),
        (colour, "GIF", animation), (colour, "TIFF", {"compression": "tiff_lzw"}), (colour, "TIFF", {}),
        (grey.convert("F"), "TIFF", {}), (grey.convert("I"), "TIFF", {}), (colour, "PPM", {}), (grey, "PPM", {}),
    ]  # fmt: skip
    written = []
    for image, form, options in images:
        image.save(buffer := io.BytesIO(), form, **options)
        written.append(buffer.getvalue())
    return written


def read_image(data: bytes, folder: Path) -> None:
    image = open_image(data, 3 if len(data) % 2 else 1, lambda: "image")
    height, width = image.size
    image.crop((height // 3, width // 3, height - height // 2, width - width // 2))
    center_crop(image.pixels, 16, 0.875)


def repair_png(data: bytes) -> bytes:
    """Returns a PNG with valid checksums, and other files unchanged."""
    if not data.startswith(b"\x89PNG"):
        return data
    result, place = data[:8], 8
    while place + 12 <= len(data):
        size = min(int.from_bytes(data[place : place + 4], "big"), len(data) - place - 12)
        chunk = data[place + 4 : place + 8 + size]
        result += data[place : place + 4] + chunk + struct.pack(">I", zlib.crc32(chunk))
        place += 12 + size
    return result


def list_examples() -> list[bytes]:
    lines = "".join(f"a.png {label}\nb c.png\t{label}\n" for label in range(5))
    rows = "image_path,target\na.png,0\n" + "".join(f'"b,{label}.png",{label}\n' for label in range(5))
    return [lines.encode(), rows.encode(), rows.replace(",0", ",cat").replace(",1", ",dog").encode()]


def read_list_file(data: bytes, folder: Path) -> None:
    (folder / "a.png").touch()
    (folder / "list").write_bytes(data)
    unlabelled_file = folder / ("list.csv" if data.startswith(b"image") else "list.txt")
    unlabelled_file.write_bytes(data)
    with contextlib.suppress(UserError):
        images = unlabelled(str(unlabelled_file))
        images.open(len(images) - 1, 3)
    if data.startswith(b"image"):
        read_table(folder / "list", folder / "list")
    else:
        read_list(folder / "list")


def cifar_examples() -> list[bytes]:
    content = {
        b"data": np.zeros((2, 3072), "u1"),
        b"labels": [1, 2],
        "labels": [1, 2],
        "data": np.ones((2, 3072), "u1"),
    }
    return [pickle.dumps(content, protocol=protocol) for protocol in (0, 2, 4)]


def read_cifar(data: bytes, folder: Path) -> None:
    (folder / "batch").write_bytes(data)
    read_batch(folder / "batch", "labels", 10)


def policy_examples() -> list[bytes]:
    rand = "rand-m9-mstd0.5-inc1", "rand-n3-p1.0-tweights", "rand-m12-mmax15-mstd101-t3aw"
    return [text.encode() for text in (*rand, "augmix-m5-w4-d2-a0.5-b1-mstd1", "originalr-mstd0.5", "3a", "v0")]


def read_policy(data: bytes, folder: Path) -> None:
    """A string that is accepted must augment an image."""
    try:
        policy = check_policy(data.decode(errors="replace"))
    except ValueError as error:
        raise UserError(str(error)) from error
    TimmPolicy(policy, 8, (0.5, 0.5, 0.5))(Image.new("RGB", (8, 8)), random.Random(len(data)))
