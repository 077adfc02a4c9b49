"""Near copies of evaluated images: found when encoded anew or cut; not among images that resemble many others."""

import numpy as np
import pytest
from conftest import TINY_VIT, train
from PIL import Image

from configs.schema import Data
from datasets.sources.files.class_folders import read_class_folders
from datasets.sources.files.image_files import ImageFiles
from engine.report.contents import read_contents
from engine.report.page import run_page
from engine.training import small_images
from engine.training.small_images import find_copies, read_thumbnails
from utils.tables import read_rows


def picture(seed, size=(96, 64)):
    """A photograph's large shapes: smooth noise."""
    pixels = np.random.default_rng(seed).integers(256, size=(6, 9, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    for split, numbers in (("train", range(40)), ("val", range(100, 110))):
        for number in numbers:
            path = tmp_path / "data" / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(number).save(path, quality=90)
    picture(7).crop((1, 1, 95, 63)).resize((60, 40)).save(tmp_path / "data" / "val" / "a" / "copy.jpg", quality=40)
    return tmp_path / "data"


def samples_of(folder):
    return ImageFiles(read_class_folders(folder))


def test_a_copy_is_found_and_others_are_not():
    rng = np.random.default_rng(0)
    train = rng.integers(256, size=(500, 192), dtype=np.uint8)
    others = rng.integers(256, size=(50, 192), dtype=np.uint8)
    noise = rng.normal(0, 12, (3, 192))
    others[[3, 9, 40]] = (train[[400, 2, 77]] + noise).clip(0, 255)
    found = find_copies(train, others)
    assert [pair[:2] for pair in found] == [(3, 400), (9, 2), (40, 77)]
    expected = [np.corrcoef(train[match].astype(float), others[index])[0, 1] for index, match, _ in found]
    assert [pair[2] for pair in found] == pytest.approx(expected, abs=1e-5)


def test_images_that_resemble_many_are_copies_only_if_they_are_equal():
    rng = np.random.default_rng(0)
    sky = np.linspace(80, 250, 192)
    train = (sky + rng.normal(0, 9, (30, 192))).clip(0, 255).astype(np.uint8)
    others = (sky + rng.normal(0, 9, (8, 192))).clip(0, 255).astype(np.uint8)
    others[5] = train[11]
    assert [pair[:2] for pair in find_copies(train, others)] == [(5, 11)]
    flat = np.full((2, 192), 9, np.uint8)  # no pixel differs from the mean, as of an unreadable image
    assert find_copies(flat, flat) == []


def test_thumbnails_are_read_once(folder, tmp_path, monkeypatch):
    kept, data, samples = tmp_path / "kept", Data(DATASET="folder"), samples_of(folder / "train")
    first = read_thumbnails(data, samples, kept)
    read, small = [], small_images.read_small
    monkeypatch.setattr(small_images, "read_small", lambda *given: read.append(given[2]) or small(*given))
    assert np.array_equal(read_thumbnails(data, samples, kept), first) and not read
    (folder / "train" / "a" / "0.jpg").write_bytes(b"no image")
    again = read_thumbnails(data, samples, kept)
    assert read == [0] and not again[0].any() and np.array_equal(again[1:], first[1:])
    val = read_thumbnails(data, samples_of(folder / "val"), kept)
    assert len(read) == 12 and np.array_equal(read_thumbnails(data, samples, kept), again) and len(read) == 12
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert np.array_equal(read_thumbnails(data, samples_of(folder / "val"), kept), val)


def test_a_run_lists_the_copies(folder, tmp_path, cpu):
    flags = [f"-output={tmp_path / 'out'}", "-dataset=folder", f"-data_path={folder}", "-batch_size=8"]
    options = ["DATA.IMAGE_SIZE=16", "TRAIN.NUM_EPOCHS=1", "DATA.NEAR_COPIES=true", "DATA.NUM_WORKERS=0"]
    run = train([*flags, "-opts", *TINY_VIT, *options], cpu)
    (row,) = read_rows(run / "copies" / "copies.csv")
    assert row["path"].endswith("val/a/copy.jpg") and row["training_image"].endswith("train/b/7.jpg")
    assert float(row["similarity"]) > 0.95 and (row["label"], row["label_in_training"]) == ("a", "b")
    assert len(list((run / "copies" / "pictures").iterdir())) == 2
    log = (run / "log.txt").read_text()
    assert "near copies of training images: 1 of 11 val images" in log
    assert "with a near copy in the training" in run_page(read_contents(run))
