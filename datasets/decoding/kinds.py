"""Which files are images, by their ending or else their first bytes; the kind of an image and its decoder."""

import functools
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from PIL import features

from utils.files import open_regular_file
from utils.system import is_installed

HEAD_BYTES = 32
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not EPS: Pillow runs Ghostscript for it
_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"GIF87a": "GIF", b"GIF89a": "GIF", b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}  # fmt: skip
# The brands of an ISO base media file, whose first box is ftyp: still images and sequences of images.
_AVIF_BRANDS, _HEIC_BRANDS = (
    (b"avif", b"avis"),
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
)


def kind_of(head: bytes) -> str | None:
    """One of `FORMATS`, 'HEIC' or 'AVIF'; None if a file that begins with `head`, of `HEAD_BYTES`, is no such image."""
    for signature, kind in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:2] == b"BM" and head[6:10] == bytes(4):  # reserved bytes
        return "BMP"
    if re.match(rb"P[1-6]\s+[0-9#]", head):
        return "PPM"
    if head[4:8] == b"ftyp":
        brands = {head[start : start + 4] for start in (8, 16, 20, 24, 28)}
        return "AVIF" if brands.intersection(_AVIF_BRANDS) else "HEIC" if brands.intersection(_HEIC_BRANDS) else None
    return None


def kind_of_file(path: str) -> str | None:
    """The kind of an image file; None for another file, or one that cannot be read."""
    try:
        with open_regular_file(path) as file:
            return kind_of(file.read(HEAD_BYTES))
    except OSError:
        return None


@functools.cache
def missing_decoder(kind: str) -> str | None:
    """A fix if this machine has no decoder for images of a kind; None if it has one."""
    if kind == "HEIC" and not is_installed("pillow_heif"):
        return "pip install pillow-heif, or convert them to JPEG"
    if kind == "AVIF" and not features.check("avif"):
        return "install a Pillow that decodes AVIF, or convert them to JPEG"
    return None


def pillow_formats(kind: str | None) -> tuple[str, ...]:
    """The formats as which Pillow may open a file of a kind. The decoder of HEIC is loaded for the first such file."""
    if kind == "HEIC":
        import pillow_heif

        pillow_heif.register_heif_opener()
        return ("HEIF",)
    return ("AVIF",) if kind == "AVIF" else FORMATS


IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
PHOTO_EXTENSIONS = (".heic", ".heif", ".avif")  # JPEGs have them, too: the first bytes decide
# Never opened: files beside images, which may be as many; raw photos, which begin as TIFF files do; copies of images.
_OTHER_EXTENSIONS = (
    *(".txt", ".json", ".xml", ".csv", ".xmp", ".aae", ".md", ".yaml", ".html", ".py", ".ini", ".db", ".npy", ".mat"),
    *(".arw", ".cr2", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".srw"),
    *("_original", "~", ".bak", ".orig", ".tmp", ".part", ".crdownload"),
)
_MAX_ENDINGS = 8  # in a note


@dataclass
class FoundFiles:
    """Counts of files by their endings: of `others`, which are no images, and of images that were `recognized`.

    undecodable: the images of each kind that this machine cannot decode; they count as images with `keep_undecodable`.
    """

    keep_undecodable: bool = False
    others: Counter[str] = field(default_factory=Counter)
    recognized: Counter[str] = field(default_factory=Counter)
    undecodable: Counter[str] = field(default_factory=Counter)

    def select_images(self, folder: str | Path, names: list[str]) -> list[str]:
        """The names of the images among the files of a folder. Only files with unknown endings are opened."""
        images = [name for name in names if name.lower().endswith(IMAGE_EXTENSIONS) and not is_hidden(name)]
        if len(images) < len(names):
            known = set(images)
            images += [name for name in names if name not in known and self._is_image(folder, name)]
        return images

    def _is_image(self, folder: str | Path, name: str) -> bool:
        """Tells whether a file without the ending of an image is one, and counts it."""
        ending, is_opened = os.path.splitext(name)[1].lower(), not is_hidden(name)
        is_opened &= not name.lower().endswith(_OTHER_EXTENSIONS)
        kind = kind_of_file(os.path.join(folder, name)) if is_opened else None
        if kind and missing_decoder(kind):
            self.undecodable[kind] += 1
            return self.keep_undecodable
        if kind is None and not (is_opened and ending in PHOTO_EXTENSIONS):
            self.others[f"hidden {ending}" if is_hidden(name) and ending else ending or _without_ending(name)] += 1
            return False
        self.recognized[ending or _without_ending(name)] += kind is not None
        return True  # a damaged photo is an image, too: an error reports it

    def select_folders(self, names: list[str]) -> list[str]:
        """The sorted names of the folders that are not hidden."""
        self.others.update(f"{name}/" for name in names if is_hidden(name))
        return sorted(name for name in names if not is_hidden(name))

    def describe(self, root: Path) -> list[str]:
        """Notes about the files in `root`, which may be warnings."""
        effect = "" if self.keep_undecodable else " and are ignored"
        notes = [
            f"Warning: {root}: {count} {kind} image(s) cannot be decoded{effect}; {missing_decoder(kind)}"
            for kind, count in self.undecodable.items()
        ]
        for files, text in (
            (self.recognized, "file(s) without the ending of an image are images, by their first bytes"),
            (self.others, "file(s) and hidden folders are no images, and are ignored"),
        ):
            if files:
                counts = [
                    f"{count} {ending!r}"
                    for ending, count in sorted(files.items(), key=lambda item: (-item[1], item[0]))
                ]
                more = ", ..." if len(counts) > _MAX_ENDINGS else ""
                notes.append(f"{root}: {files.total()} {text}: {', '.join(counts[:_MAX_ENDINGS])}{more}")
        return notes


def is_hidden(name: str) -> bool:
    return name.startswith(".")


def _without_ending(name: str) -> str:
    return name if is_hidden(name) else "without ending"
