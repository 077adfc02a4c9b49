"""Faults in image files."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from faults.data import with_file
from faults.runner import Fault, Provoke, finished
from faults.scene import Scene, Skipped, image_bytes
from PIL import Image


def image_faults() -> list[Fault]:
    def replaced(content: bytes, name: str = "train/cat/3.jpg", *options: str) -> Provoke:
        return with_file(name, content, *options)

    cut = r"3\.jpg: cannot be decoded \(.*\); replace or remove it"
    by_worker = replaced(image_bytes()[:400], "train/cat/3.jpg", "DATA.NUM_WORKERS=1")
    deep = np.arange(64, dtype="u2").reshape(8, 8) * 900
    table: dict[str, tuple[Provoke, str]] = {
        "cut short": (replaced(image_bytes()[:400]), cut),
        "cut short, in validation": (replaced(image_bytes()[:400], "val/cat/3.jpg"), cut),
        "text": (replaced(b"hello"), r"3\.jpg: is not an image of a supported format"),
        "empty": (replaced(b""), r"3\.jpg: is empty \(0 bytes\)"),
        "PostScript": (replaced(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), r"3\.jpg: is not an image of"),
        "a claim of 10^10 pixels": (replaced(png_claiming(100_000, 100_000)), r"3\.jpg: cannot be decoded \(.*pixels"),
        "a claim of 10^8 pixels": (replaced(png_claiming(10_000, 10_000)), r"3\.jpg: cannot be decoded"),
        "floating-point pixels": (replaced(encode_image(np.ones((8, 8), "f4"), "TIFF")), r"3\.jpg: cannot .*floating"),
        "missing": (_in_place_of_an_image(str), r"train_list.txt:7: 'train/cat/3\.jpg' is not a file"),
        "a folder": (_in_place_of_an_image(Path.mkdir), r"3\.jpg' is not a file"),
        "a pipe": (_in_place_of_an_image(os.mkfifo), r"3\.jpg' is not a file"),
        "without read permission": (_unreadable, r"3\.jpg: cannot be read \(Permission denied"),
    }
    return [
        *(Fault(f"image: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault("image: cut short, read by a worker", by_worker, cut, can_fork=False),
        Fault("image: 16 bits per channel", replaced(encode_image(deep, "PNG")), None, status=(0,)),
        finished(
            "image: text, with ON_BAD_IMAGE=skip",
            replaced(b"hello", "train/cat/3.jpg", "DATA.ON_BAD_IMAGE=skip"),
            prints="1 of 24 training images could not be read and were skipped",
        ),
    ]


def _in_place_of_an_image(make: Callable[[Path], object]) -> Provoke:
    def provoke(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").unlink()
        make(scene.data / "train/cat/3.jpg")
        return flags

    return provoke


def _unreadable(scene: Scene) -> list[str]:
    if os.geteuid() == 0:
        raise Skipped("root can read all files")
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").chmod(0)
    return flags


def encode_image(pixels: np.ndarray, form: str) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), form)
    return buffer.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG without pixels whose header has the given size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
