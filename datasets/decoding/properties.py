"""Properties of image files that are refused: the table in docs/data.md has them, and how the others are read."""

from collections.abc import Callable
from typing import NamedTuple

from PIL.ExifTags import Base
from PIL.TiffImagePlugin import COMPRESSION_INFO

from datasets.decoding.tiff import TiffHeader

_IMAGE_DEPTH = 32997
_WEBP = 50001  # Pillow's packages lack its decoder
_SHOWN = (
    "SamplesPerPixel", "BitsPerSample", "SampleFormat", "PlanarConfiguration", "Compression",
    "PhotometricInterpretation",
)  # fmt: skip
_BANDS = (
    "models have 1 or 3 channels: save one band, or three as interleaved RGB (PhotometricInterpretation 2), "
    "in unsigned 8 or 16 bits: docs/data.md"
)
FLOAT = "floating-point pixels have no defined range: save the image in unsigned 8 or 16 bits"
OUTSIDE = "pixels are negative (signed samples) or above 65535: save the image in unsigned 8 or 16 bits"
NO_RANGE = "DATA.GREY_RANGE is for gray and RGB: save the image as one of them"


class Property(NamedTuple):
    """A row of the table: its name, the reason and the fix. is_of: tells whether a TIFF file has the property."""

    name: str
    reason: str
    fix: str
    is_of: Callable[[TiffHeader], bool] = lambda header: True


REFUSED = (  # the first one counts
    Property(
        "BigTIFF in big-endian byte order",
        "is damaged, or a BigTIFF in big-endian byte order",
        "save it in little-endian byte order",
        lambda header: not header.page,
    ),
    Property(
        "raw photographs: CR2, DNGVersion",
        "is a raw photograph",
        "develop it, and save it as PNG or JPEG",
        lambda header: header.head[8:10] == b"CR" or Base.DNGVersion in header.page,
    ),
    Property(
        "a SubIFD wider than the first page, or another page if the first has NewSubfileType 1",
        "begins with a preview of the image",
        "save the whole image alone",
        TiffHeader.begins_with_preview,
    ),
    Property(
        "ImageDepth above 1 (a volume)",
        "has several slices",
        "save each as an image",
        lambda header: header.page.get(_IMAGE_DEPTH, 1) > 1,
    ),
    Property(
        "Compression 50001 (WebP), 34887 (LERC), 34712 (JPEG 2000), 50002 (JPEG XL), ...",
        "has a compression that is not read",
        "save it with Compression 1 (none), 5 (LZW) or 8 (deflate)",
        lambda header: not header["Compression"] <= COMPRESSION_INFO.keys() - {_WEBP},
    ),
    Property(
        "StripOffsets or TileOffsets with 0 (sparse)",
        "lacks strips or tiles",
        "save it with all of them",
        lambda header: 0 in header["StripOffsets"] | header["TileOffsets"],
    ),
    Property(
        "gray (PhotometricInterpretation 0, 1) of several bands, other than gray with alpha",
        "has several bands that are not marked as colors",
        _BANDS,
        lambda header: 0 in header["ExtraSamples"] and header["PhotometricInterpretation"] <= {0, 1},
    ),
    Property(
        "PlanarConfiguration 2 of several bands: of other than 8 bits, or with further bands without Compression",
        "has planes, which are read of 8 bits only, and with further bands only if compressed",
        _BANDS,
        lambda header: (
            header["PlanarConfiguration"] == {2}
            and header["SamplesPerPixel"] != {1}
            and (header["BitsPerSample"] != {8} or (header["Compression"] == {1} and 0 in header["ExtraSamples"]))
        ),
    ),
    Property("others that Pillow does not open", "is damaged, or has samples that are not read", _BANDS),
)
UNKNOWN = REFUSED[-1]


def describe(header: TiffHeader) -> str:
    """The values of the tags about pixels."""
    return ", ".join(f"{tag} {'/'.join(map(str, sorted(header[tag])))}" for tag in _SHOWN)
