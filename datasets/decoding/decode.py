"""Bytes -> uint8 crop, the fast path.

Of a plain JPEG only the box that is wanted is decoded, where nvImageCodec is there (`partial_jpeg.py`), else
torchvision decodes the whole, a fifth faster than Pillow; Pillow decodes all else. All give the same pixels. An image
(C, H, W) has its channels innermost in memory, as decoders write them, and so resampling runs at twice the speed of a
planar image.
"""

import contextlib
import io
import math
import random
import warnings
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch.nn.functional import interpolate
from torchvision.io import decode_jpeg

from datasets.decoding.bad_images import BadImage
from datasets.decoding.partial_jpeg import Box, decode_part
from utils.errors import to_single_line

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # EPS is left out: Pillow runs Ghostscript for it
MAX_PIXELS = 64_000_000
MAX_ASPECT = 100  # a longer side would be resized to gigabytes together with the shorter one
MAX_SCANNED_PIXELS = 100 * MAX_PIXELS  # a kilobyte of a progressive JPEG can hold a scan of the whole image

Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # Pillow warns from here on, and refuses to decode from twice as many
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# Of damaged EXIF data, which ImageNet has: the pixels are sound.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")


class Picture:
    """An image in memory: its `pixels`, torch.uint8 (C, H, W), are to be read only."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return tuple(self.pixels.shape[1:])

    def region(self, box: Box) -> torch.Tensor:
        """The pixels of a box inside the image, torch.uint8 (C, height, width)."""
        top, left, height, width = box
        return self.pixels[:, top : top + height, left : left + width]


class PlainJpeg(Picture):
    """A JPEG of the wanted colours, not turned, of which no more is decoded than is asked for.

    Its pixels raise a BadImage, calling it `name`, where they are truncated or damaged.
    """

    def __init__(self, header: Image.Image, data: bytes, name: str) -> None:
        self.header, self.data, self.name = header, data, name

    @property
    def has_end(self) -> bool:
        """Whether the file was not cut off; some cameras add a few bytes."""
        return self.data.rfind(b"\xff\xd9", -1024) >= 0

    @property
    def size(self) -> tuple[int, int]:
        return self.header.height, self.header.width

    @cached_property
    def pixels(self) -> torch.Tensor:
        with _told_of(self.name):
            with contextlib.suppress(RuntimeError):  # Pillow has the last word on what torchvision refuses
                return decode_jpeg(torch.frombuffer(bytearray(self.data), dtype=torch.uint8))
            return _decode_with_pillow(self.header, self.header.mode)

    def region(self, box: Box) -> torch.Tensor:
        part = decode_part(self.data, box) if self.header.mode == "RGB" and self.has_end else None
        return super().region(box) if part is None else part


def open_image(data: bytes, channels: int, name: str) -> Picture:
    """Reads an image's size; its pixels, turned as its EXIF data say, may be decoded later.

    Args:
        data: the file's bytes: JPEG, PNG, WebP, BMP, GIF, TIFF or PPM, recognized by content. Of several frames the
            first; 16-bit grey is scaled to 8 bits.
        channels: 1 for grey, 3 for RGB; other images are converted by Pillow's rules (transparency is dropped).
        name: what to call the image in an error.

    Raises:
        BadImage: no such image, or one that is truncated, damaged, too large or of floating-point pixels.
        MemoryError: the host has no memory left.
    """
    mode = "L" if channels == 1 else "RGB"
    with _told_of(name):
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_cost(image, data)
        if image.format in ("JPEG", "MPO") and image.mode == mode and not _is_turned(image):
            return PlainJpeg(image, data, name)
        return Picture(_decode_with_pillow(image, mode))


def decode_image(data: bytes, channels: int, name: str) -> torch.Tensor:
    """The pixels of `open_image`, torch.uint8 (channels, H, W); raises as it does."""
    return open_image(data, channels, name).pixels


@contextlib.contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Raises what a decoder raises as a BadImage that names the image."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise BadImage(name, f"is no image in any of {', '.join(FORMATS)}", "replace or remove it") from error
    except MemoryError:
        raise
    except Exception as error:  # on damaged files Pillow raises nearly anything
        reason = to_single_line(str(error)) or type(error).__name__
        raise BadImage(name, f"cannot be decoded ({reason})", "replace or remove it") from error


def _check_cost(image: Image.Image, data: bytes) -> None:
    """Refuses, before it is decoded, a small file that would take long; of many pixels Pillow takes care itself."""
    width, height = image.size
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(f"of its sides, {width} x {height} pixels, one is more than {MAX_ASPECT} times the other")
    if image.info.get("progressive") and width * height * data.count(b"\xff\xda") > MAX_SCANNED_PIXELS:
        raise ValueError(f"its {width} x {height} pixels are scanned more often than any camera's")


def _is_turned(image: Image.Image) -> bool:
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception:  # damaged EXIF data say nothing; the pixels are sound all the same
        return False


def _decode_with_pillow(image: Image.Image, mode: str) -> torch.Tensor:
    image.load()
    if _is_turned(image):
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range: save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _scale_to_8_bits(image)
    image.info.pop("transparency", None)  # changes no pixel; Pillow would warn of it
    pixels = np.array(image if image.mode == mode else image.convert(mode))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def _scale_to_8_bits(image: Image.Image) -> Image.Image:
    """From 16 bits of grey, in mode I;16 or I; Pillow's own conversion turns all values above 255 white."""
    values = np.array(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels lie outside 0..65535: save it with 8 or 16 bits")
    values = values.astype(np.int32, copy=False)
    values += 128
    values //= 257
    return Image.fromarray(values.astype(np.uint8))


def centre_crop(image: torch.Tensor, size: int, crop_pct: float) -> torch.Tensor:
    """The centre of a torch.uint8 image (C, H, W) as (C, size, size), for evaluation.

    The shorter side is resized to floor(size / crop_pct), so that the crop shows `crop_pct` of it; rounding is that of
    torchvision's Resize and CenterCrop.
    """
    short_target = math.floor(round(size / crop_pct, 6))  # 224 / 0.56 is 399.99999999999994
    height, width = (side * short_target // min(image.shape[1:]) for side in image.shape[1:])
    top, left = round((height - size) / 2), round((width - size) / 2)
    return resize(image, height, width)[:, top : top + size, left : left + size]


def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A torch.uint8 image (C, H, W) resampled to (C, height, width): bicubic, antialiased.

    One of that size already is returned as it is, its pixels untouched.
    """
    if image.shape[1:] == (height, width):
        return image
    return interpolate(image[None], size=(height, width), mode="bicubic", antialias=True)[0]


def random_crop_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: random.Random
) -> Box:
    """A random box inside an image of `height` x `width` pixels, by the rule of torchvision's RandomResizedCrop.

    Its area is a share of the image's drawn from `scale`, its width / height is drawn from `ratio` on a logarithmic
    scale. After ten boxes that stick out, the central one comes nearest to `ratio`.
    """
    log_ratio = [math.log(bound) for bound in ratio]
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < box_height <= height and 0 < box_width <= width:
            return rng.randint(0, height - box_height), rng.randint(0, width - box_width), box_height, box_width
    box_height = min(height, round(width / ratio[0]))
    box_width = min(width, round(height * ratio[1]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width
