"""Faults in image files."""

import io
import os
import struct
import zlib

import numpy as np
from faults.data import with_file
from faults.runner import Fault, Provoke
from faults.scene import Scene, Skipped, image_bytes
from PIL import Image


def image_faults() -> list[Fault]:
    def replaced(content: bytes, name: str = "train/cat/3.jpg", *options: str) -> Provoke:
        return with_file(name, content, *options)

    cut = r"3\.jpg: cannot be decoded \(.*\); replace or remove it"
    table: dict[str, tuple[Provoke, str]] = {
        "cut short": (replaced(image_bytes()[:400]), cut),
        "cut short, in validation": (replaced(image_bytes()[:400], "val/cat/3.jpg"), cut),
        "text": (replaced(b"hello"), r"3\.jpg: is not an image of a supported format"),
        "empty": (replaced(b""), r"3\.jpg: is empty \(0 bytes\)"),
        "PostScript": (
            replaced(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
            r"3\.jpg: is not an image of",
        ),
        "a claim of 10^10 pixels": (replaced(png_claiming(100_000, 100_000)), r"3\.jpg: cannot be decoded \(.*pixels"),
        "a claim of 10^8 pixels": (replaced(png_claiming(10_000, 10_000)), r"3\.jpg: cannot be decoded"),
        "floating-point pixels": (
            replaced(encode_image(np.ones((8, 8), "f4"), "TIFF")),
            r"3\.jpg: cannot be decoded \(floating-point",
        ),
        "missing": (_without_image, r"train_list.txt:7: 'train/cat/3\.jpg' is not a file"),
        "a folder": (_folder_as_image, r"3\.jpg' is not a file"),
        "a pipe": (_pipe_as_image, r"3\.jpg' is not a file"),
        "without read permission": (_unreadable, r"3\.jpg: cannot be read \(Permission denied"),
    }
    return [
        *(Fault(f"image: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault(
            "image: cut short, read by a worker",
            replaced(image_bytes()[:400], "train/cat/3.jpg", "DATA.NUM_WORKERS=1"),
            cut,
            can_fork=False,
        ),
        Fault(
            "image: 16 bits per channel",
            replaced(encode_image(np.arange(64, dtype="u2").reshape(8, 8) * 900, "PNG")),
            None,
            status=(0,),
        ),
        Fault(
            "image: text, with ON_BAD_IMAGE=skip",
            replaced(b"hello", "train/cat/3.jpg", "DATA.ON_BAD_IMAGE=skip"),
            None,
            (0,),
            state="finished",
            prints="1 of 24 training images could not be read and were skipped",
        ),
    ]


def _folder_as_image(scene: Scene) -> list[str]:
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").unlink()
    (scene.data / "train/cat/3.jpg").mkdir()
    return flags


def _pipe_as_image(scene: Scene) -> list[str]:
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").unlink()
    os.mkfifo(scene.data / "train/cat/3.jpg")
    return flags


def _unreadable(scene: Scene) -> list[str]:
    if os.geteuid() == 0:
        raise Skipped("root can read all files")
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").chmod(0)
    return flags


def _without_image(scene: Scene) -> list[str]:
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").unlink()
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
