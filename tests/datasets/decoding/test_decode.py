import contextlib
import io
import random
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import torch
from conftest import each_value, line_of, values_of
from PIL import Image, ImageOps, features
from pytest import mark, raises
from torch import Tensor

from datasets.decoding import decode
from datasets.decoding.decode import open_image
from datasets.decoding.images import BadImage
from tests.datasets.photo import PHOTO, as_tensor, decode_image, encode, jpeg, photos, with_bytes

ALPHA = Image.radial_gradient("L").resize(PHOTO.size)


def pillow(data: bytes, mode: str) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return as_tensor(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode))


def assert_like_pillow(data: bytes):
    for channels, mode in ((3, "RGB"), (1, "L")):
        image = decode_image(data, channels)
        reference = pillow(data, mode)
        assert image.dtype == torch.uint8
        assert image.shape == reference.shape
        # Two builds of libjpeg may differ in the last bit.
        assert (image.int() - reference.int()).abs().max() <= 1


def ycck_jpeg() -> bytes:
    """Pillow writes CMYK as Adobe does, inverted, with the transform flag 0; the flag 2 makes the same bytes YCCK."""
    data = jpeg(PHOTO.convert("CMYK"), quality=95)
    return with_bytes(data, data.index(b"Adobe") + 11, b"\x02")


KINDS = {
    **photos("""
jpeg 4:2:0              | RGB  | JPEG | {quality: 90}
jpeg progressive        | RGB  | JPEG | {progressive: true}
jpeg in RGB             | RGB  | JPEG | {keep_rgb: true}
jpeg grey               | L    | JPEG | {}
jpeg CMYK               | CMYK | JPEG | {}
jpeg rotated            | RGB  | JPEG | {orientation: 5}
jpeg of no orientation  | RGB  | JPEG | {orientation: 9}
png rotated             | RGB  | PNG  | {orientation: 6}
png                     | RGB  | PNG  | {}
png transparent colour  | RGB  | PNG  | {transparency: [255, 255, 255]}
gif                     | P    | GIF  | {}
webp                    | RGB  | WEBP | {}
ppm                     | RGB  | PPM  | {}
pgm                     | L    | PPM  | {}
"""),
    "jpeg YCCK": ycck_jpeg(),
    "jpeg of two (MPO)": encode(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),
    "jpeg with bytes after its end": jpeg() + b"\0" * 999,
    "png alpha": encode(Image.merge("RGBA", (*PHOTO.split(), ALPHA)), "PNG"),
    "png palette, alpha": encode(PHOTO.quantize(64), "PNG", transparency=bytes(range(64))),
}
if features.check("avif"):
    KINDS["avif"] = encode(PHOTO, "AVIF", quality=90)


@mark.parametrize("kind", KINDS)
def test_pixels_equal_pillows(kind):
    data = KINDS[kind]
    assert_like_pillow(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_image(data, 3)


@mark.filterwarnings("ignore:Corrupt EXIF data")
@each_value(r"""
exif
""
"nonsense"
"MM\0*\0\0\0\x08\0\x02\x01\x12\0\x03"
""")
def test_damaged_exif_is_ignored(exif):
    damaged = jpeg(quality=90, exif=b"Exif\0\0" + exif.encode())
    assert torch.equal(decode_image(damaged, 3), decode_image(jpeg(quality=90), 3))


@each_value("""
kind | channels
jpeg 4:2:0 | 3
jpeg in RGB | 3
jpeg with bytes after its end | 3
jpeg of two (MPO) | 3
jpeg grey | 1
jpeg grey | 3
ppm | 3
pgm | 1
""")
def test_pillow_does_not_open_a_common_jpeg_or_stored_pixels(monkeypatch, kind, channels):
    monkeypatch.setattr(decode, "open_with_pillow", None)
    assert decode_image(KINDS[kind], channels).shape == (channels, PHOTO.height, PHOTO.width)


@mark.filterwarnings("ignore")
@mark.parametrize("value", [0xC2, 0xFF])
def test_a_damaged_header_has_the_result_of_pillow(monkeypatch, value):
    """Each byte of the header is replaced in turn."""

    def result(data):
        with contextlib.suppress(BadImage):
            return tuple(decode_image(data, 3).shape)

    data = jpeg(PHOTO.resize((24, 19)), comment=b"x")
    damaged = [with_bytes(data, place, bytes([value])) for place in range(data.index(b"\xff\xda") + 14)]
    found = [result(one) for one in damaged]
    monkeypatch.setattr(decode, "read_header", lambda *_: None)
    assert found == [result(one) for one in damaged]


@mark.parametrize("decoder", [Mock(side_effect=RuntimeError), None])
def test_pillow_decodes_jpegs_that_no_other_decoder_does(monkeypatch, decoder):
    monkeypatch.setattr(decode, "_decode_jpeg", decoder)
    assert_like_pillow(KINDS["jpeg 4:2:0"])


def test_the_first_decoder_that_loads_is_used(monkeypatch):
    """In this order: torchcodec, torchvision, Pillow."""
    decoder = SimpleNamespace(decode_jpeg=lambda data, mode: (data, mode))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoder)
    assert decode._find_jpeg_decoder()(b"file") == (b"file", "UNCHANGED")
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)  # its import fails
    monkeypatch.setattr(torch.ops, "image", decoder)
    assert decode._find_jpeg_decoder()(b"file") == (b"file", 0)
    monkeypatch.setattr(torch.ops, "image", SimpleNamespace())
    assert decode._find_jpeg_decoder() is None


def flat(width: int, height: int, kind: str = "PNG") -> bytes:
    return encode(Image.new("1", (width, height)), kind)


def scan_bomb() -> bytes:
    """A progressive JPEG with 125,000 additional scans."""
    data = jpeg(progressive=True)
    return data[:-2] + b"\xff\xda" * 125_000 + data[-2:]


ANIMATION = encode(PHOTO, "WEBP", save_all=True, append_images=[ALPHA.convert("RGB")])
SIZE_OF_FRAME = jpeg().index(b"\xff\xc0") + 5
REFUSED = {  # a part of the error: the file
    "is not an image": b"\x80\x04cos\nsystem\n.",
    "9300 x 9300 pixels": flat(9300, 9300),
    "56540 x 56540 pixels": with_bytes(jpeg(), SIZE_OF_FRAME, b"\xdc\xdc" * 2),
    "a part of its data is missing": jpeg()[:9000] + bytes(99_999),
    "too many scans": scan_bomb(),
    "16384 x 16384 pixels": with_bytes(ANIMATION, 24, b"\xff\x3f\x00" * 2),
    "99999 x 99999 pixels": b"P6 99999 99999 255\n",
    "1001 x 10 pixels": flat(1001, 10),
    "1001 x 1 pixels": b"P6\n1001 1\n255\n" + bytes(3003),
    "1 x 101 pixels": flat(1, 101, "JPEG"),
}


@each_value(r"""
start | text
"\xff\xc1\0\x11\x0c"        | is a JPEG of 12 bits per channel
"\xff\xc3\0\x11\x10"        | JPEG of 16 bits
"\xff\xf7\0\x11\x08"        | is JPEG-LS
"\n<!doctype HTML><p>404"    | begins with <!doctype HTML
"\xef\xbb\xbf<html lang=en>" | begins with <html
""")
def test_a_file_that_no_decoder_reads_has_its_kind(start, text):
    """A JPEG whose frame begins otherwise, or a page of HTML."""
    data = start.encode("latin-1")
    if data[0] == 0xFF:
        data = with_bytes(jpeg(), SIZE_OF_FRAME - 5, data)
    message = line_of(decode_image, data, 3, "x.jpg")
    assert text in message
    assert "is not an image" not in message


@mark.parametrize("problem", REFUSED)
def test_refused_files_are_one_line(problem):
    message = line_of(decode_image, REFUSED[problem], 3, "some/file.jpg")
    assert message.startswith("some/file.jpg: ")
    assert problem in message
    assert "0x" not in message


OPTIONS = dict(
    values_of("""
baseline | {quality: 90}
'4:4:4' | {quality: 92, subsampling: 0}
optimized | {optimize: true}
progressive | {progressive: true}
restarts | {restart_marker_blocks: 7}
rows | {restart_marker_rows: 1}
""")
)
SIZES = {"large": PHOTO, "small": PHOTO.resize((37, 53)), "gray": PHOTO.convert("L")}
WHOLE = {f"{kind} {size}": jpeg(SIZES[size], **OPTIONS[kind]) for kind in OPTIONS for size in SIZES}


def damages(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Restarted downloads; missing and overwritten middles, with the rest, the end marker, or nothing after them;
    random bytes."""
    length = len(data)
    start = data.index(b"\xff\xda") + 14
    yield data[: length // 8] + data
    yield data[: length // 2] + data
    for share in (0.2, 0.5, 0.9):
        place = start + int((length - start) * share)
        end = min(place + (length - start) // 4, length - 2)
        gap = end - place
        for middle, rest in product((b"", bytes(gap), b"\xff" * gap, bytes(5 * length)), (data[end:], data[-2:], b"")):
            yield data[:place] + middle + rest
    for _ in range(6):
        part = rng.randbytes(rng.randrange(1, 400))
        yield with_bytes(data, rng.randrange(start, length - 400), part)


@mark.parametrize("kind", WHOLE)
def test_a_damaged_jpeg_has_the_pixels_of_pillow_or_is_refused(kind, capfd):
    """No gray stands for missing pixels. In all 800 files."""
    for number, data in enumerate(damages(WHOLE[kind], random.Random(kind))):
        with contextlib.suppress(BadImage):
            pixels = decode_image(data, 3)
            assert (pixels.int() - pillow(data, "RGB").int()).abs().max() <= 1, number
            assert pixels[0].numel() < 100 or not (pixels[:, -1] == 128).all(), number
    assert capfd.readouterr().err == ""


@mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}])
@mark.parametrize("side", [8, 33, 250])
def test_gray_pixels_are_not_taken_for_missing_ones(options, side):
    gray = Image.new("RGB", (side, side), (128, 128, 128))
    gray.paste(PHOTO.resize((side // 2, side // 2)))
    for more in ({}, {"orientation": 6}):  # Pillow decodes the second one
        assert_like_pillow(jpeg(gray, **options, **more))


def test_a_warning_of_a_decoder_is_kept_with_the_image(capfd):
    data = jpeg()
    image = open_image(data[:-2] + b"1234567890" * 9 + data[-2:], 3, str)
    assert torch.equal(image.pixels, decode_image(data, 3))
    assert "extraneous bytes before marker 0xd9" in image.warning
    assert capfd.readouterr().err == ""


def test_max_pixels_and_the_longest_side():
    data = flat(1000, 10)
    with raises(BadImage, match=r"DATA.MAX_PIXELS=10000"):
        decode_image(data, 3, max_pixels=9999)
    assert decode_image(data, 3, max_pixels=10_000).shape == (3, 10, 1000)
