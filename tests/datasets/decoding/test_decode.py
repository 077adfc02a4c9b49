import contextlib
import io
import random
import sys
import warnings
import zlib
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from conftest import line_of, rotated, values_of
from PIL import Image, ImageOps, features
from pytest import mark, raises
from torch import Tensor

from datasets.decoding import decode
from datasets.decoding.decode import Decoding, open_image
from datasets.decoding.images import BadImage
from tests.datasets.photo import PHOTO, as_tensor, decode_image, encode, jpeg, png16, tiff16

ALPHA = Image.radial_gradient("L").resize(PHOTO.size)


def pillow(data: bytes, mode: str) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return as_tensor(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode))


def name() -> str:
    return "x"


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
    adobe = data.index(b"Adobe")
    return data[: adobe + 11] + b"\x02" + data[adobe + 12 :]


KINDS = {
    "jpeg 4:2:0": jpeg(quality=90),
    "jpeg progressive": jpeg(progressive=True),
    "jpeg in RGB": jpeg(keep_rgb=True),
    "jpeg grey": jpeg(PHOTO.convert("L")),
    "jpeg CMYK": jpeg(PHOTO.convert("CMYK")),
    "jpeg YCCK": ycck_jpeg(),
    "jpeg of two (MPO)": encode(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),
    "jpeg with bytes after its end": jpeg() + b"\0" * 999,
    "jpeg rotated": jpeg(exif=rotated(5)),
    "jpeg of no orientation": jpeg(exif=rotated(9)),
    "png rotated": encode(PHOTO, "PNG", exif=rotated(6)),
    "png": encode(PHOTO, "PNG"),
    "png alpha": encode(Image.merge("RGBA", (*PHOTO.split(), ALPHA)), "PNG"),
    "png transparent colour": encode(PHOTO, "PNG", transparency=(255, 255, 255)),
    "png palette, alpha": encode(PHOTO.quantize(64), "PNG", transparency=bytes(range(64))),
    "gif": encode(PHOTO.quantize(64), "GIF"),
    "webp": encode(PHOTO, "WEBP"),
    "ppm": encode(PHOTO, "PPM"),
    "pgm": encode(PHOTO.convert("L"), "PPM"),
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
@mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0nonsense", b"Exif\0\0MM\0*\0\0\0\x08\0\x02\x01\x12\0\x03"])
def test_damaged_exif_is_ignored(exif):
    plain = jpeg(quality=90)
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    image = decode_image(plain[:2] + segment + plain[2:], 3)
    assert torch.equal(image, decode_image(plain, 3))


@mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_are_scaled_and_rotated(kind):
    values = np.linspace(0, 65535, 64 * 48).astype(np.uint16).reshape(48, 64)
    pixels = decode_image(encode(Image.fromarray(values), kind, exif=rotated(6)), 1)[0].numpy()
    assert np.abs(pixels - np.rot90(values, -1) / 257).max() <= 0.5


DEEP = np.random.default_rng(0).integers(0, 4096, (30, 24, 4))
BIG_ENDIAN = partial(tiff16, order=">")
DEEP_FILES = [*product((2, 3, 4), [png16]), (3, partial(tiff16, compression=8)), *product((3, 4), [tiff16, BIG_ENDIAN])]


@mark.parametrize("channels, write", DEEP_FILES)
@mark.parametrize("grey_range", [None, (0, 4095)])
def test_colors_and_gray_with_alpha_of_16_bits_are_scaled_as_gray(channels, write, grey_range):
    file = write(DEEP[..., :channels])
    pixels = open_image(file, 3, name, Decoding(grey_range)).pixels
    values = DEEP[..., [0, 0, 0] if channels == 2 else [0, 1, 2]]
    _, highest = grey_range or (0, 65535)
    assert np.array_equal(pixels.permute(1, 2, 0), np.rint(values * 255 / highest))


def test_pillow_does_not_open_a_common_jpeg_or_stored_pixels(monkeypatch):
    monkeypatch.setattr(decode, "open_with_pillow", None)
    for kind in ("jpeg 4:2:0", "jpeg in RGB", "jpeg with bytes after its end", "jpeg of two (MPO)"):
        assert decode_image(KINDS[kind], 3).shape == (3, PHOTO.height, PHOTO.width)
    for channels in (1, 3):
        assert decode_image(KINDS["jpeg grey"], channels).shape == (channels, PHOTO.height, PHOTO.width)
    for kind, channels, mode in (("ppm", 3, "RGB"), ("pgm", 1, "L")):
        assert torch.equal(decode_image(KINDS[kind], channels), as_tensor(PHOTO.convert(mode)))


@mark.parametrize("value", [0xC2, 0xFF])
def test_a_damaged_header_has_the_result_of_pillow(monkeypatch, value):
    """Each byte of the header is replaced in turn."""

    def result(data):
        with contextlib.suppress(BadImage), warnings.catch_warnings(action="ignore"):
            return tuple(decode_image(data, 3).shape)

    data = jpeg(PHOTO.resize((24, 19)), comment=b"x")
    damaged = [data[:place] + bytes([value]) + data[place + 1 :] for place in range(data.index(b"\xff\xda") + 14)]
    found = [result(one) for one in damaged]
    monkeypatch.setattr(decode, "read_header", lambda *_: None)
    assert found == [result(one) for one in damaged]


def refuse(data: Tensor) -> Tensor:
    raise RuntimeError


@mark.parametrize("decoder", [refuse, None])
def test_pillow_decodes_jpegs_that_no_other_decoder_does(monkeypatch, decoder):
    monkeypatch.setattr(decode, "_decode_jpeg", decoder)
    assert_like_pillow(KINDS["jpeg 4:2:0"])


def test_the_first_decoder_that_loads_is_used(monkeypatch):
    """In this order: torchcodec, torchvision, Pillow."""
    modes = []
    codec = SimpleNamespace(decode_jpeg=lambda data, mode: modes.append(mode) or data)
    monkeypatch.setitem(sys.modules, "torchcodec", SimpleNamespace(decoders=codec))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", codec)
    assert decode._find_jpeg_decoder()(torch.ones(1)) == torch.ones(1)
    assert modes == ["UNCHANGED"]
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)  # its import fails
    monkeypatch.setattr(torch.ops, "image", SimpleNamespace(decode_jpeg=lambda data, mode: data + mode))
    assert decode._find_jpeg_decoder()(torch.ones(1)) == torch.ones(1)
    monkeypatch.setattr(torch.ops, "image", SimpleNamespace())
    assert decode._find_jpeg_decoder() is None


def bomb() -> bytes:
    """A PNG whose header claims 30000 x 30000 pixels."""
    data = bytearray(encode(PHOTO, "PNG"))
    data[16:24] = (30000).to_bytes(4, "big") * 2
    return bytes(data[:29]) + zlib.crc32(data[12:29]).to_bytes(4, "big") + bytes(data[33:])


def jpeg_bomb() -> bytes:
    data = bytearray(jpeg())
    start_of_frame = data.index(b"\xff\xc0")
    data[start_of_frame + 5 : start_of_frame + 9] = b"\xff\xdc\xff\xdc"
    return bytes(data)


def flat(width: int, height: int, kind: str, **options) -> bytes:
    return encode(Image.new("L", (width, height)), kind, **options)


def scan_bomb() -> bytes:
    """A progressive JPEG with 125,000 additional scans."""
    data = jpeg(progressive=True)
    return data[:-2] + b"\xff\xda" * 125_000 + data[-2:]


def webp_bomb() -> bytes:
    """An animation whose header claims 16384 x 16384 pixels."""
    data = bytearray(encode(PHOTO, "WEBP", save_all=True, append_images=[ALPHA.convert("RGB")]))
    data[24:30] = (16383).to_bytes(3, "little") * 2
    return bytes(data)


REFUSED = {
    "pickle": b"\x80\x04cos\nsystem\n.",
    "png bomb": bomb(),
    "jpeg bomb": jpeg_bomb(),
    "jpeg of many scans": scan_bomb(),
    "webp bomb": webp_bomb(),
    "ppm bomb": b"P6 99999 99999 255\n",
    "wide": flat(1001, 10, "PNG"),
    "high": flat(1, 101, "JPEG"),
}


def with_frame(start: bytes, of_frame: bytes = b"\xff\xc0\0\x11\x08") -> bytes:
    """A baseline JPEG whose frame begins otherwise."""
    data = jpeg()
    assert of_frame in data
    return data.replace(of_frame, start)


@mark.parametrize("data, text", [
    (with_frame(b"\xff\xc1\0\x11\x0c"), "is a JPEG of 12 bits per channel"),
    (with_frame(b"\xff\xc3\0\x11\x10"), "JPEG of 16 bits"),
    (with_frame(b"\xff\xf7\0\x11\x08"), "is JPEG-LS"),
    (b"\n<!doctype HTML><p>404", "begins with <!doctype HTML"),
    (b"\xef\xbb\xbf<html lang=en>", "begins with <html"),
], ids=["12 bits", "16 bits", "lossless", "page", "html"])  # fmt: skip
def test_a_file_that_no_decoder_reads_has_its_kind(data, text):
    message = line_of(decode_image, data, 3, "x.jpg")
    assert text in message
    assert "is not an image" not in message


@mark.parametrize("kind", REFUSED)
def test_refused_files_are_one_line(kind):
    message = line_of(decode_image, REFUSED[kind], 3, "some/file.jpg")
    assert message.startswith("some/file.jpg: ")
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


def damages(data: bytes, rng: random.Random) -> dict[str, bytes]:
    """Restarted downloads, missing and overwritten middles, zeroed tails with and without the end, random bytes."""
    length = len(data)
    start = data.index(b"\xff\xda") + 14
    damaged = {"restarted": data[: length // 8] + data, "restarted late": data[: length // 2] + data}
    for share in (0.2, 0.5, 0.9):
        place = start + int((length - start) * share)
        end = min(place + (length - start) // 4, length - 2)
        head = data[:place]
        tail = data[end:]
        damaged |= {
            f"middle missing {share}": head + tail,
            f"middle of zeros {share}": head + bytes(end - place) + tail,
            f"middle of ones {share}": head + b"\xff" * (end - place) + tail,
            f"cut before its end {share}": head + data[-2:],
            f"zeros at the end {share}": head + bytes(length - place),
            f"many zeros at the end {share}": head + bytes(5 * length),
            f"zeros before its end {share}": head + bytes(length - place - 2) + data[-2:],
        }
    for number in range(6):
        place = rng.randrange(start, length - 400)
        part = rng.randbytes(rng.randrange(1, 400))
        damaged[f"random {number}"] = data[:place] + part + data[place + len(part) :]
    return damaged


@mark.parametrize("kind", WHOLE)
def test_a_damaged_jpeg_has_the_pixels_of_pillow_or_is_refused(kind, capfd):
    """No gray stands for missing pixels. In all 500 files."""
    rng = random.Random(kind)
    for damage, data in damages(WHOLE[kind], rng).items():
        with contextlib.suppress(BadImage):
            pixels = decode_image(data, 3)
            assert (pixels.int() - pillow(data, "RGB").int()).abs().max() <= 1, damage
            assert pixels[0].numel() < 100 or not (pixels[:, -1] == 128).all(), damage
    assert capfd.readouterr().err == ""


@mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}])
@mark.parametrize("side", [8, 33, 250])
def test_gray_pixels_are_not_taken_for_missing_ones(options, side):
    gray = Image.new("RGB", (side, side), (128, 128, 128))
    gray.paste(PHOTO.resize((side // 2, side // 2)))
    for more in ({}, {"exif": rotated(6)}):  # Pillow decodes the second one
        assert_like_pillow(jpeg(gray, **options, **more))


def test_a_warning_of_a_decoder_is_kept_with_the_image(capfd):
    data = jpeg()
    image = open_image(data[:-2] + b"1234567890" * 9 + data[-2:], 3, name)
    assert torch.equal(image.pixels, decode_image(data, 3))
    assert "extraneous bytes before marker 0xd9" in image.warning
    assert capfd.readouterr().err == ""


def test_max_pixels_and_the_longest_side():
    data = flat(1000, 10, "PNG")
    with raises(BadImage, match=r"DATA.MAX_PIXELS=10000"):
        open_image(data, 3, name, Decoding(max_pixels=9999))
    assert open_image(data, 3, name, Decoding(max_pixels=10_000)).pixels.shape == (3, 10, 1000)
