"""Image files -> uint8 pixels.

torchcodec or torchvision decodes a JPEG, a fifth faster than Pillow. The pixels of a plain PPM are used as they are.
Pillow decodes all other files. The pixels are the same in each case. An image (C, H, W) has its channels innermost in
memory, as decoders write them: resampling is twice as fast as for a planar image.
"""

import importlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base
from PIL.ImageFile import ImageFile
from torch import Tensor

from configs.schema.data import MAX_PIXELS
from datasets.decoding.dicom import Dicom
from datasets.decoding.images import FORMATS, HEAD_BYTES, BadImage, kind_of, missing_decoder, pillow_formats
from datasets.decoding.jpeg import captured_stderr, is_cut_short, read_header, unread_property
from datasets.decoding.properties import FLOAT, NO_RANGE, OUTSIDE, REFUSED, UNKNOWN, describe
from datasets.decoding.tiff import TiffHeader
from utils.errors import to_single_line
from utils.system import package_folder

GreyRange = tuple[float, float]  # the values of 16 bits that become 0 and 255
Name = Callable[[], str]  # makes the name of an image, for an error
DeepValues = tuple[np.ndarray, int]  # of 16 bits per channel, (H, W) or (H, W, 3); and the one that becomes 255

MODES = {1: "L", 3: "RGB"}  # Pillow's, by the number of channels
MAX_VALUE = 65535
_MAX_ASPECT = 100  # resizing the shorter side of a longer image would take gigabytes
_MAX_BYTES_PER_PIXEL = 20  # of host memory, to decode an image
_MAX_SCANS = 100  # of the largest image; a kilobyte of a progressive JPEG can contain a scan of the whole image
PPM_KINDS = {1: b"5", 3: b"6"}  # by the number of channels
_PLAIN_PPM = re.compile(rb"P([56])\n(\d{1,5}) (\d{1,5})\n255\n")
_PPM_COMMENT = re.compile(rb"#[^\r\n]*")
_WEB_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*(<html|<!DOCTYPE html)", re.IGNORECASE)
_WHITE_IS_ZERO = 0  # PhotometricInterpretation of TIFF
# Pillow keeps the high byte of colors of 16 bits; these unpackers read the low one.
_GREY_ALPHA = "LA;16B"
_LOW_BYTES = {_GREY_ALPHA: "ARGB"} | {
    f"{channels};16{order}": f"{channels};16{other}"
    for channels in ("RGB", "RGBA", "RGBX")
    for order, other in ("LB", "BL", "NB")  # N: as this machine stores numbers, the low byte first
}
_FIX = "replace or remove it"

Image.MAX_IMAGE_PIXELS = None  # `_check_cost` has the limit
# About EXIF data, which are damaged in ImageNet, and animations: the pixels are intact.
warnings.filterwarnings("ignore", category=UserWarning, module=r"(PIL|pydicom)\.")
logging.getLogger("PIL.TiffImagePlugin").disabled = True  # it prints the number of channels that it refuses


@dataclass(frozen=True)
class Decoding:
    """grey_range: the values of 16 bits that become 0 and 255; None: 0 and 65535, of PGM and PPM its maxval."""

    grey_range: GreyRange | None = None
    max_pixels: int = MAX_PIXELS


def _find_jpeg_decoder() -> Callable[[Tensor], Tensor] | None:
    """The first decoder that loads: bytes, torch.uint8 (N,) -> torch.uint8 (1 or 3, H, W).

    None: Pillow decodes, 1.3 to 1.5 times as slow as torchcodec. torchvision's decoders are deprecated since 0.29, in
    favour of torchcodec's.
    """
    with suppress(Exception):  # not installed, or built for another torch
        torchcodec = importlib.import_module("torchcodec.decoders")
        return partial(torchcodec.decode_jpeg, mode="UNCHANGED")
    for library in package_folder("torchvision").glob("image*.so"):  # its import takes as long as torch's
        with suppress(OSError):
            torch.ops.load_library(library)
    with suppress(AttributeError):
        decode = torch.ops.image.decode_jpeg
        return lambda data: decode(data, 0)  # ImageReadMode.UNCHANGED: gray stays gray
    return None


_decode_jpeg = _find_jpeg_decoder()


@dataclass
class LazyImage:
    """An opened image: its pixels, torch.uint8 (C, H, W), read-only; and the warning of its decoder so far."""

    pixels: Tensor
    warning: str = ""


class PlainJpeg(LazyImage):
    """A JPEG that needs no rotation, and at most the conversion from gray to RGB; it is decoded on first use.

    `pixels` raises BadImage if the file is truncated or damaged.
    """

    def __init__(self, data: bytes, channels: int, name: Name) -> None:
        self.data = data
        self.channels = channels
        self.name = name
        self.warning = ""

    @cached_property
    def pixels(self) -> Tensor:  # type: ignore[override]  # mypy takes it for a property
        with errors_as_bad_image(self.name):
            if _decode_jpeg:
                pixels = None
                with captured_stderr() as messages, suppress(RuntimeError):
                    data = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
                    pixels = _decode_jpeg(data).expand(self.channels, -1, -1)
                if pixels is not None and not messages:
                    return pixels
                self.warning = "; ".join(messages)
            # Pillow decides about damaged files, and decodes some that the others refuse.
            return _decode_with_pillow(self.data, open_with_pillow(self.data, self.name), MODES[self.channels])


def open_image(data: bytes, channels: int, name: Name, decoding: Decoding = Decoding()) -> LazyImage:
    """Reads an image's header; its pixels, rotated as its EXIF data say, may be decoded later.

    data: the content of a JPEG, PNG, WebP, BMP, GIF, TIFF, PPM, AVIF or, with pillow-heif, HEIC file, recognized by its
    first bytes. Of several frames the first is used.
    channels: 1 for gray, 3 for RGB; other images are converted by Pillow's rules (transparency is dropped).
    name: returns the image's name, for an error.
    Raises BadImage: empty, no image of these formats, truncated, damaged, too large, or in floating point; MemoryError:
    out of host memory.
    """
    header = read_header(data)
    if header and header.is_baseline:
        is_plain = header.components in (1, channels) and not header.has_app1
        if is_plain and is_affordable(header.height, header.width, decoding.max_pixels):  # Pillow takes 0.1 ms
            return PlainJpeg(data, channels, name)
    plain = _open_plain_ppm(data, channels, decoding.max_pixels)
    if plain:
        return plain
    if not data:
        raise BadImage(name(), "is empty (0 bytes)", _FIX)
    with _opened(data, name, decoding.max_pixels) as (image, messages):
        if image.format in ("JPEG", "MPO") and image.mode in ("L", MODES[channels]) and not _has_exif_rotation(image):
            return PlainJpeg(data, channels, name)
        pixels = _decode_with_pillow(data, image, MODES[channels], decoding.grey_range)
    return LazyImage(pixels, "; ".join(messages))


def is_affordable(height: int, width: int, max_pixels: int) -> bool:
    """Tells whether an image is small enough to be decoded; `_check_cost` describes the problem of another one."""
    return 0 < max(height, width) <= _MAX_ASPECT * min(height, width) and height * width <= max_pixels


def _open_plain_ppm(data: bytes, channels: int, max_pixels: int) -> LazyImage | None:
    """A PPM or PGM as `make_shards.py -size` writes it, in a tenth of Pillow's time; None for another file."""
    header = _PLAIN_PPM.match(data)
    if not header or header[1] != PPM_KINDS[channels]:
        return None
    height = int(header[3])
    width = int(header[2])
    is_whole = len(data) - header.end() == height * width * channels
    if not (is_whole and is_affordable(height, width, max_pixels)):
        return None
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=header.end())
    return LazyImage(pixels.view(height, width, channels).permute(2, 0, 1))


def decode_small(data: bytes, mode: str, side: int, decoding: Decoding) -> Image.Image:
    """The image, a JPEG at 1/8 of its size or more, so that each side has `side` pixels. Raises as `open_image`."""
    with _opened(data, str, decoding.max_pixels) as (image, _):
        image.draft(mode, (side, side))
        return _convert(data, image, mode, decoding.grey_range)


def read_deep_values(data: bytes, name: str, max_pixels: int) -> DeepValues | None:
    """The stored values of an image of 16 bits per channel, upright, without alpha; None for another image.

    Raises BadImage: as `open_image`.
    """
    with _opened(data, lambda: name, max_pixels) as (image, _):
        return _deep_values(data, image)


@contextmanager
def _opened(data: bytes, name: Name, max_pixels: int) -> Iterator[tuple[ImageFile, list[str]]]:
    """The image, opened by Pillow and not too large; and the lines of libraries in the block, at its end."""
    with errors_as_bad_image(name), captured_stderr() as messages:
        image = open_with_pillow(data, name)
        _check_cost(image, data, name, max_pixels)
        yield image, messages


def open_with_pillow(data: bytes, name: Name) -> ImageFile:
    """Reads the header of an image; raises BadImage if its decoder is not installed, and Pillow's errors."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind and (fix := missing_decoder(kind)):
        raise BadImage(name(), f"is {kind}, for which no decoder is installed", fix)
    if page := _WEB_PAGE.match(data):
        start = page[2].decode()
        raise BadImage(name(), f"is a web page, of a failed download (it begins with {start})", "download it again")
    formats = pillow_formats(kind)
    if kind == "JPEG" and (problem := unread_property(data)):
        raise BadImage(name(), problem, "save it as PNG")
    if kind != "TIFF":
        return Image.open(io.BytesIO(data), formats=formats)
    header = TiffHeader(io.BytesIO(data))
    refusal = next(row for row in REFUSED if row.is_of(header))
    if refusal is UNKNOWN:
        with suppress(UnidentifiedImageError):
            return Image.open(io.BytesIO(data), formats=formats)
    raise BadImage(name(), f"{refusal.reason} ({describe(header)})", refusal.fix)


@contextmanager
def errors_as_bad_image(name: Name) -> Iterator[None]:
    """Converts a decoder's exceptions into a BadImage, or a MemoryError, that names the image."""
    try:
        yield
    except BadImage:
        raise
    except MemoryError as error:
        raise MemoryError(name()) from error
    except UnidentifiedImageError as error:
        reason = f"is not an image of a supported format ({', '.join(FORMATS)}, of 1 to 4 channels)"
        raise BadImage(name(), reason, _FIX) from error
    except Exception as error:  # Pillow raises many types on damaged files
        reason = to_single_line(str(error)) or type(error).__name__
        raise BadImage(name(), f"cannot be decoded ({reason})", _FIX) from error


def _check_cost(image: Image.Image, data: bytes, name: Name, max_pixels: int) -> None:
    """Refuses images that would take long to decode, also if the file is small."""
    width, height = image.size
    if max(width, height) > _MAX_ASPECT * min(width, height):
        raise ValueError(f"{width} x {height} pixels: one side is more than {_MAX_ASPECT} times the other")
    if (pixels := width * height) > max_pixels:
        reason = f"has {width} x {height} pixels, more than DATA.MAX_PIXELS {max_pixels}"
        memory = f"{pixels * _MAX_BYTES_PER_PIXEL / 1e9:,.1f} GB of memory"
        raise BadImage(name(), reason, f"{_FIX}, or read it in {memory} with -opts DATA.MAX_PIXELS={pixels}")
    scans = data.count(b"\xff\xda") if image.info.get("progressive") else 1
    if pixels * scans > _MAX_SCANS * max_pixels:
        raise ValueError(f"{width} x {height} pixels with {scans} scans: too many scans")


def _has_exif_rotation(image: Image.Image) -> bool:
    with suppress(Exception):  # damaged EXIF data: the pixels are intact
        return image.getexif().get(Base.Orientation) in range(2, 9)
    return False


def _decode_with_pillow(data: bytes, image: ImageFile, mode: str, grey_range: GreyRange | None = None) -> Tensor:
    """data: the content of the opened image."""
    if image.format in ("JPEG", "MPO"):
        image.load()
        if is_cut_short(data, image):
            raise ValueError("a part of its data is missing: the decoder leaves gray there")
    return from_pillow(_convert(data, image, mode, grey_range))


def to_pillow(pixels: Tensor) -> Image.Image:
    """uint8 (1 or 3, H, W) -> mode L, which may share memory with `pixels`, or RGB.

    A resized crop has planes in memory: to merge them takes a fifth of the time of a copy to interleaved channels.
    """
    planes = [Image.fromarray(plane.numpy()) for plane in pixels]
    return planes[0] if len(planes) == 1 else Image.merge("RGB", planes)


def from_pillow(image: Image.Image) -> Tensor:
    """Mode L or RGB -> uint8 (1 or 3, H, W), a copy with the channels innermost in memory."""
    array = np.array(image)
    return torch.from_numpy(array.reshape(*array.shape[:2], -1)).permute(2, 0, 1)


def _convert(data: bytes, image: ImageFile, mode: str, grey_range: GreyRange | None) -> Image.Image:
    """Decodes the image, upright, in this mode. data: the content of its file."""
    deep = _deep_values(data, image)
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if deep:  # Pillow's own conversion makes all values of gray above 255 white
        values, highest = deep
        levels = scale_to_8_bits(values, grey_range or (0, highest))
        is_inverted = tags.get(Base.PhotometricInterpretation) == _WHITE_IS_ZERO  # Pillow inverts 8 bits only
        upright = Image.fromarray(255 - levels if is_inverted else levels)
    else:
        upright = _upright(image)
        if upright.mode == "F":
            raise ValueError(FLOAT)
        if grey_range and max(tags.get(Base.BitsPerSample, (8,))) > 8:
            raise ValueError(NO_RANGE)
    upright.info.pop("transparency", None)  # it changes no pixel, but Pillow would warn
    return upright if upright.mode == mode else upright.convert(mode)


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    if _has_exif_rotation(image):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _deep_values(data: bytes, image: ImageFile) -> DeepValues | None:
    """As `read_deep_values`, of an opened image, which is not decoded if it is another one."""
    if isinstance(image, Dicom):
        return (image.scaled("u2"), MAX_VALUE) if image.is_deep else None
    if image.format == "PPM":
        return _deep_ppm(data, image)
    if image.mode.startswith("I"):
        values = np.array(_upright(image))
        if values.min() < 0 or values.max() > MAX_VALUE:
            raise ValueError(OUTSIDE)
        return values, MAX_VALUE
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if 2 in tags.get(Base.SampleFormat, ()) and np.array(_upright(image)).max() > 127:  # signed: it is negative
        raise ValueError(OUTSIDE)
    tiles = _deep_tiles(image)
    if not tiles:
        return None
    low = open_with_pillow(data, str)
    image.tile = tiles
    low.tile = [tile._replace(args=(_LOW_BYTES[tile.args[0]], *tile.args[1:])) for tile in tiles]
    values = np.array(_upright(image), np.uint16) << 8 | np.array(_upright(low))
    return (values[..., 0] if tiles[0].args[0] == _GREY_ALPHA else values[..., :3]), MAX_VALUE


def _deep_ppm(data: bytes, image: ImageFile) -> DeepValues | None:
    """The stored values of a PGM or PPM file, which Pillow scales, colors to 8 bits; None for 8 bits."""
    tile = image.tile[0]
    highest = tile.args[-1] if isinstance(tile.args, tuple) else 0
    if tile.args == "I;16B":
        highest = MAX_VALUE
    if image.mode not in ("I", "RGB") or highest < 256:
        return None
    width, height = image.size
    shape = (height, width, 3) if image.mode == "RGB" else (height, width)
    pixels = data[tile.offset :]
    if tile.codec_name == "ppm_plain":
        numbers = _PPM_COMMENT.sub(b"", pixels).split()
        values = np.array(numbers[: prod(shape)]).astype(np.uint16)
        if values.max() > highest:
            raise ValueError(f"it has values above its maxval {highest}")
    else:
        values = np.frombuffer(pixels, ">u2", prod(shape))
    return values.reshape(shape), highest


def _deep_tiles(image: ImageFile) -> list[Any]:
    """Pillow's tiles of an image of 16 bits per color, with the unpackers of the high bytes; none of another image."""
    tiles = []
    for tile in image.tile:
        name, *others = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if name not in _LOW_BYTES:  # of GIF, it is the number of bits
            return []
        tiles.append(tile._replace(args=(name, *others)))
    return tiles


def scale_to_8_bits(values: np.ndarray, grey_range: GreyRange) -> np.ndarray:
    """Integers in 0..65535 -> uint8; values outside of `grey_range` are clipped."""
    low, high = grey_range
    scaled = (values.astype(np.float32) - low) * 255 / (high - low)
    return np.rint(scaled).clip(0, 255).astype(np.uint8)


def convert_channels(image: Tensor, channels: int) -> Tensor:
    """torch.uint8 (1 or 3, H, W) -> (channels, H, W), with Pillow's conversion."""
    if channels == len(image):
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1)
    return from_pillow(to_pillow(image).convert("L"))
