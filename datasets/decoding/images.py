"""The kinds of images by their first bytes, their sizes, their decoders, and the error about an unusable image."""

import functools
import os
import re
import struct
from contextlib import suppress

from PIL import Image

from datasets.decoding.jpeg import read_header
from datasets.decoding.tiff import TiffHeader
from utils.errors import Unavailable, UserError
from utils.files import open_regular_file
from utils.system import is_installed

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
PHOTO_EXTENSIONS = (".heic", ".heif", ".avif", ".dcm", ".dicom")  # JPEGs have them, too: the first bytes decide
_FRAMED = ("GIF", "WEBP", "PNG", "AVIF", "HEIC", "DICOM")  # may have several frames
# cameras and editors append bytes after the end of the image
HEAD_BYTES = 4096
TAIL_BYTES = 1024
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not EPS: Pillow runs Ghostscript for it
_BRAND = rb".{4}ftyp(.{8}|.{12}|.{16}|.{20}|)"  # in the first box of an ISO base media file
_KINDS = {  # the first that matches: the first bytes of a DICOM may be of another kind
    kind: re.compile(pattern, re.DOTALL)
    for kind, pattern in {
        "DICOM": rb".{128}DICM",
        "JPEG": rb"\xff\xd8\xff",
        "PNG": rb"\x89PNG\r\n\x1a\n",
        "GIF": rb"GIF8[79]a",
        "TIFF": rb"II[*+]\0|MM\0[*+]",
        "WEBP": rb"RIFF.{4}WEBP",
        "BMP": rb"BM.{4}\0{4}",  # reserved bytes
        "PPM": rb"P[1-6]\s+[0-9#]",
        "AVIF": _BRAND + rb"avi[fs]",
        "HEIC": _BRAND + rb"(he[iv][cx]|hei[ms]|m[is]f1)",
    }.items()
}
_PACKAGES = {"HEIC": "pillow_heif", "DICOM": "pydicom"}  # that decode a kind; Pillow decodes the others
_MANY_BYTES = 1 << 18  # a JPEG with a preview in its EXIF data
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # by the type of color


def is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def kind_of(head: bytes) -> str | None:
    """One of `FORMATS`, 'HEIC', 'AVIF' or 'DICOM', by the first `HEAD_BYTES` of a file; None if it is no such image."""
    for kind, pattern in _KINDS.items():
        if pattern.match(head):
            return kind
    return None


def kind_of_file(path: str) -> str | None:
    """The kind of an image file; None for another file, or one that cannot be read."""
    with suppress(OSError), open_regular_file(path) as file:
        return kind_of(file.read(HEAD_BYTES))
    return None


def has_frames(path: str) -> bool:
    """Whether an image file has several frames or pages, of which the first is read."""
    kind = kind_of_file(path)
    with suppress(Exception):  # Pillow raises many types on damaged files; reading it reports them
        if kind == "TIFF":
            with open_regular_file(path) as file:
                return TiffHeader(file).has_more_pages()
        if kind in _FRAMED:
            with Image.open(path, formats=pillow_formats(kind)) as image:
                return getattr(image, "n_frames", 1) > 1
    return False


def has_more_bands(path: str) -> bool:
    """Whether an image file is a TIFF with bands after its colors, other than alpha, which are not read."""
    with suppress(Exception):
        if kind_of_file(path) == "TIFF":
            with open_regular_file(path) as file:
                return 0 in TiffHeader(file)["ExtraSamples"]
    return False


@functools.cache
def missing_decoder(kind: str) -> str | None:
    """A fix if this machine has no decoder for images of a kind; None if it has one."""
    package = _PACKAGES.get(kind)
    if package is None or is_installed(package):
        return None
    return f"pip install {package.replace('_', '-')}, or convert them to PNG or JPEG"


def pillow_formats(kind: str | None) -> tuple[str, ...]:
    """The formats as which Pillow may open a file of a kind. Other packages are loaded for the first one."""
    if kind == "HEIC":
        import pillow_heif

        pillow_heif.register_heif_opener()
        return ("HEIF",)
    if kind == "DICOM":
        from datasets.decoding.dicom import Dicom

        Image.register_open("DICOM", Dicom)
        return ("DICOM",)
    if kind == "AVIF":
        return ("AVIF",)
    return FORMATS


def size_if_whole(file: int, head: bytes, tail: bytes) -> tuple[int, int] | None:
    """Height and width in pixels of a JPEG or PNG whose last part is there; None: a decoder must decide.

    In microseconds. Raises any exception for a damaged file. file: its descriptor. head, tail: its first HEAD_BYTES and
    last TAIL_BYTES.
    """
    kind = kind_of(head)
    if kind == "JPEG":
        if b"\xff\xd9" not in tail:
            return None
        header = read_header(head) or read_header(os.pread(file, _MANY_BYTES, 0))
        return header and (header.height, header.width)
    if kind == "PNG":
        width, height, depth, color, *methods, interlace = struct.unpack_from(">IIBBBBB", head, 16)
        is_known = depth in _PNG_DEPTHS.get(color, ()) and methods == [0, 0] and interlace < 2
        is_whole = b"IEND" in tail and b"acTL" not in head  # acTL: an animation
        return (height, width) if is_known and is_whole else None
    return None


HOW_TO_SKIP = "to skip such images: -opts DATA.ON_BAD_IMAGE=skip"


class BadImage(UserError):
    """An image that cannot be used: its `path`, the `reason`, and the `fix`. It can be pickled."""

    def __init__(self, path: str, reason: str, fix: str) -> None:
        super().__init__(path, reason, fix)
        self.path = path
        self.reason = reason
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.fix}"

    def with_hint(self) -> "BadImage":
        """This error, and how to skip such images."""
        return type(self)(self.path, self.reason, f"{self.fix}; {HOW_TO_SKIP}")


class UnreadableImage(BadImage, Unavailable):
    """An image whose bytes cannot be read."""
