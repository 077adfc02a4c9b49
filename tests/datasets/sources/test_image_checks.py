"""Unusable images are found before the first step, and usable ones are never refused."""

import os
import re
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
from conftest import cells_of, line_of, told
from PIL import Image, features
from pytest import fixture, raises
from source_helpers import options, read, read_checked, tree, write_classes

from datasets.sources import checks
from datasets.sources.checks import check_files, check_images, decode_images
from datasets.sources.folders.split_folders import ImageFolders
from datasets.sources.samples import Samples
from datasets.sources.source import Wanted
from tests.datasets import photo
from utils.errors import Findings

NOISE = Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 50, 3), dtype=np.uint8))


def encode(kind, image=NOISE, **parameters):
    return photo.encode(image, kind, **parameters)


def both_splits(root: Path) -> list[Samples]:
    return read(root, "train", "val", dataset="folder")


@fixture
def samples_of(tmp_path):
    """Writes the contents as images of one class, beside another class; all are training images."""

    def write(**contents):
        write_classes(tmp_path / "train", other=2)
        write_classes(tmp_path / "val", **{"other": 1, "class": 1})
        for name, content in contents.items():
            (tmp_path / "train" / "class").mkdir(exist_ok=True)
            (tmp_path / "train" / "class" / f"{name}.jpg").write_bytes(content)
        return ImageFolders(Wanted(options(tmp_path))).read("train")

    return write


def reasons(samples):
    return {image.path.rpartition("/")[2]: image.reason for image in check_files([samples], 3)[0]}


def test_unusual_but_usable_images_are_not_refused(samples_of):
    usable = {
        "trailing": encode("JPEG") + b"a video" * 9999, "progressive": encode("JPEG", progressive=True),
        "png_with_more": encode("PNG") + bytes(9999), "gif": encode("GIF"), "webp": encode("WEBP", lossless=True),
        "tiny_ppm": encode("PPM", NOISE.crop((0, 0, 1, 1))), "tiff": encode("TIFF", compression="tiff_lzw"),
        "deep": encode("PNG", Image.fromarray(np.full((9, 9), 900, dtype=np.uint16))), "bmp": encode("BMP"),
        "mpo": encode("MPO", save_all=True, append_images=[NOISE]),
    }  # fmt: skip
    assert reasons(samples_of(**usable)) == {}


def boxed(data):
    """An AVIF with a size of 10000 x 10000 pixels in its boxes."""
    place = data.index(b"ispe") + 8
    return data[:place] + (10_000).to_bytes(4, "big") * 2 + data[place + 8 :]


PNG = encode("PNG")
JPEG = encode("JPEG")
REFUSED = {
    "cut_lzw.tif": encode("TIFF", compression="tiff_lzw")[:3000],
    "cut_tables.tif": encode("TIFF", compression="jpeg")[:-2],  # behind the last strip
    "cut.pgm": encode("PPM", NOISE.convert("L"))[:900],
    "size.bmp": b"BM" + bytes(4) + encode("BMP")[6:3000],  # without the size of the file
    "large.png": encode("PNG", Image.new("1", (9500, 9500))),
    "thin.png": encode("PNG", Image.new("L", (3100, 30))),
    "depth.png": PNG[:24] + b"\x07" + PNG[25:],
    "text.ppm": b"P3 9 9 255 " + b"1 " * 99,
    "no_pixels.jpg": JPEG[:300] + b"\xff\xd9",
    "tables.jpg": b"\xff\xd8" + bytes(99) + b"\xff\xd9",
    "signature.jpg": b"\xff\xd8\xff",
    "twice.jpg": JPEG[:1500] + JPEG,
    "pixels.png": PNG[:2000] + bytes(400) + PNG[2400:],
    "page": b"<html>404</html>" * 9,
    "empty": b"",
}
# Files, their formats and the place where they are cut
CUT = """
cut.tif | TIFF | 3000
cut.gif | GIF | 900
cut.ppm | PPM | 3000
cut.bmp | BMP | 3000
cut.webp | WEBP | 300
cut.jpg | JPEG | 1500
no_end.jpg | JPEG | -2
cut.png | PNG | 3000
"""
for name, kind, end in cells_of(CUT):
    REFUSED[name] = encode(kind)[: int(end)]
if features.check("avif"):
    REFUSED |= {"cut.avif": encode("AVIF")[:-500], "large.avif": boxed(encode("AVIF"))}


BY_HEADER = {name for name in REFUSED if not name.endswith(("tif", "gif", "ppm", "bmp", "pgm", "webp", "avif"))}
BY_HEADER -= {"twice.jpg", "pixels.png"}


def test_headers_of_jpegs_and_pngs_show_all_that_decoding_refuses_but_damaged_pixels(samples_of):
    """Other kinds are decoded beside the first steps, or in the first epoch."""
    whole = {kind: encode("TIFF", compression=kind) for kind in ("tiff_lzw", "jpeg")}
    lab = encode("TIFF", NOISE.convert("RGB").convert("LAB"))
    samples = samples_of(**REFUSED, **whole, lab=lab)
    found = reasons(samples)
    assert found.keys() == {f"{name}.jpg" for name in BY_HEADER}
    decoded = {Path(image.path).name for image in decode_images([samples, samples], 3)}
    assert decoded == {f"{name}.jpg" for name in REFUSED}
    assert "9500 x 9500 pixels, more than DATA.MAX_PIXELS 64000000" in found["large.png.jpg"]
    of_gray = [image.path for image in check_files([samples], 1, decode_seconds=60)[0]]
    assert len(of_gray) == len(REFUSED) + 1
    assert any(path.endswith("lab.jpg") for path in of_gray)


def test_a_run_that_ends_at_an_unreadable_image_names_those_that_only_decoding_finds(samples_of, tmp_path, cpu):
    """Who has seven damaged images, of which one looks so at its header, started seven runs."""
    samples = samples_of(empty=b"", pixels=REFUSED["pixels.png"])
    with raises(Findings, match="2 images"):
        check_images([samples], options(tmp_path), cpu)


def test_if_no_image_can_be_read_one_is_named_and_none_is_skipped(tmp_path):
    tree(tmp_path, "{a,b}/{0..3}.jpg!")
    line = line_of(read_checked, tmp_path, "all", dataset="folder")
    assert str(tmp_path / "a/0.jpg") in line
    assert " 8 images" in line
    assert "skip" not in line


def test_the_batch_size_to_type_has_several_steps_per_epoch(tmp_path):
    tree(tmp_path, "{a,b,c,d,e,f,g,h}")  # 32 images, of which 8 are held out
    advice = line_of(read, tmp_path, batch_size=1000)
    assert re.search(r"-batch_size=(\d+)", advice)[1] == "8"


def test_of_many_files_all_of_some_sizes_are_checked(tmp_path, cpu, monkeypatch):
    """So that a pair of equal files is checked or not, never one of the two. Empty and missing files are always."""
    for number in range(120):
        path = tmp_path / ("train", "val")[number % 2] / "ab"[number % 4 // 2] / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode("BMP", NOISE.resize((9, 1 + number // 6))))
    (tmp_path / "train/a/0.bmp").write_bytes(b"")
    splits = both_splits(tmp_path)
    (tmp_path / "val/a/1.bmp").unlink()
    opened = []
    looks_intact = checks._looks_intact
    monkeypatch.setattr(
        checks, "_looks_intact", lambda *which: opened.append(which[0].name(which[1])) or looks_intact(*which)
    )
    monkeypatch.setattr(checks, "_MOST_CHECKED", 32)
    with raises(Findings, match="2 images"):
        check_images(splits, options(tmp_path), cpu)
    assert len({*opened}) == 32
    assert {Path(name).name for name in opened} >= {"0.bmp", "1.bmp"}
    sizes = Counter(os.path.getsize(name) for name in {*opened} if os.path.exists(name))
    assert sorted(sizes.values()) in ([1, 6, 6, 6, 6, 6], [1, 4, 6, 6, 6, 6, 6])
    for name in ("train/a/0.bmp", "val/a/1.bmp"):
        (tmp_path / name).write_bytes(encode("BMP"))
    assert told(check_images(splits, options(tmp_path), cpu), "32 of 120", "log")
    opened = os.listdir("/proc/self/fd")
    monkeypatch.setattr(checks, "ThreadPoolExecutor", Mock(side_effect=RuntimeError("can't start new thread")))
    with raises(RuntimeError):
        check_images(splits, options(tmp_path), cpu)
    assert len(os.listdir("/proc/self/fd")) <= len(opened)


def test_copies_in_two_splits_are_counted_or_the_rest_is_said(tmp_path, monkeypatch):
    """For people whose validation images are copies of training images, among many files of one size, such as BMP."""
    tree(tmp_path, "{train,val}/{a,b}/")
    for number in range(1100):
        name = f"{'ab'[number % 2]}/{number}.bmp"
        (tmp_path / "train" / name).write_bytes(number.to_bytes(2, "little"))
        os.link(tmp_path / "train" / name, tmp_path / "val" / name)
    splits = both_splits(tmp_path)
    of_end = np.concatenate([np.ones(len(samples), np.uint64) for samples in splits])
    (note,) = checks._notes_on_equal_files(splits, of_end)
    assert "2200 files" in note.text
    monkeypatch.setattr(checks, "_MAX_COMPARE_SECONDS", -1.0)
    (note,) = checks._notes_on_equal_files(splits, of_end)
    assert "0 of 2200" in note.text


def test_files_with_equal_bytes_under_two_classes_or_in_two_splits_are_named(tmp_path, cpu):
    images = [encode("BMP", Image.effect_noise((20, 20), seed)) for seed in range(10, 16)]  # of one size
    files = {
        "train/a/0.bmp": images[0], "train/a/1.bmp": images[1], "train/b/0.bmp": images[2], "train/b/1.bmp": images[0],
        "train/b/2.bmp": images[2], "val/a/0.bmp": images[3], "val/b/0.bmp": images[4], "val/b/1.bmp": images[2],
        # Equal at its end only: the whole files differ.
        "val/a/1.bmp": images[1][:60] + bytes([images[1][60] ^ 1]) + images[1][61:],
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def notes(*names):
        splits = [ImageFolders(Wanted(options(tmp_path))).read(split) for split in names]
        lengths = list(map(len, splits))
        found = check_images(splits, options(tmp_path), cpu)
        assert list(map(len, splits)) == lengths  # a warning moves no image
        return told(found)

    labels, splits = notes("train", "val")
    assert "train/b/1.bmp" in labels
    assert "val/b/1.bmp" in splits
    (tmp_path / "val/a/2.bmp").write_bytes(images[0])  # the third copy, with the label of the first
    assert "train/b/1.bmp" in notes("train", "val")[0]
    assert ": 10 files" in notes("train", "train")[1]  # one path in two splits
