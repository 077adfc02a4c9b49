"""Images by their content, also without labels: only files without a known ending are opened."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from source_helpers import names_of, options, write_classes, write_image

from configs.schema import Data
from datasets.decoding.images import kind_of, missing_decoder
from datasets.registry import read_samples, unlabelled
from datasets.sources import class_folders
from datasets.sources.class_folders import read_class_folders
from datasets.sources.split_folders import ClassFolders

HEIC = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(100)


@pytest.fixture
def without_heif(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    missing_decoder.cache_clear()
    yield
    missing_decoder.cache_clear()


def test_other_files_are_of_no_kind():
    for data in (
        b"",
        b"P1 notes",
        b"BMW and Audi, a text",
        b"RIFF\x24\0\0\0WAVEfmt ",
        b"\0\0\0\x18ftypisom\0\0\0\0mp42",
    ):
        assert kind_of(data) is None
    assert kind_of(HEIC[:32]) == "HEIC"


def test_jpegs_of_any_name_are_read(tmp_path, monkeypatch, cpu):
    write_classes(tmp_path, a=2, b=3)
    for name in ("IMG_1.HEIC", "photo", "x.jfif"):
        write_image(tmp_path / "a" / name)
    for name in (".DS_Store", "._000.jpg", "n.txt", "x.xmp", "raw.dng", "000.jpg_original"):
        (tmp_path / "a" / name).write_bytes(b"\xff\xd8\xff")
    (tmp_path / "b" / "table.xls").write_bytes(b"no image")
    opened = []
    kind_of_file = class_folders.kind_of_file
    monkeypatch.setattr(class_folders, "kind_of_file", lambda path: opened.append(path) or kind_of_file(path))
    (samples,) = read_samples(options(tmp_path, dataset="folder", batch_size=1), None, cpu, "all")
    assert names_of(samples) == [
        *("a/000.jpg", "a/001.jpg", "a/IMG_1.HEIC", "a/photo", "a/x.jfif", "b/000.jpg", "b/001.jpg", "b/002.jpg")
    ]
    assert [samples.open(index, 3).size for index in range(8)] == [(9, 12)] * 8
    assert len(set(opened)) == 4
    (ignored,) = map(str, samples.notes)
    assert f"{tmp_path}: 7 " in ignored and ".DS_Store" in ignored and "hidden .jpg" in ignored


def test_photos_without_a_decoder_are_counted(tmp_path, without_heif, cpu):
    write_classes(tmp_path, a=2, b=3)
    for name in ("a/1.heic", "a/2.HEIC", "b/3.heif"):
        (tmp_path / name).write_bytes(HEIC)
    samples = ClassFolders(options(tmp_path)).read("all")
    assert len(samples) == 5
    (warning,) = (note.text for note in samples.notes if note.kind == "warning")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.heic").write_bytes(HEIC)
    (finding,) = ClassFolders(options(tmp_path)).read("all").findings
    assert "3 HEIC" in warning and str(tmp_path / "c") in finding
    assert all("pip install pillow-heif" in text for text in (warning, finding))


def test_pillow_heif_decodes_where_it_is_installed(tmp_path, monkeypatch):
    def register_heif_opener() -> None:
        Image.register_open("HEIF", lambda file, name: Image.new("RGB", (20, 10), (9, 8, 7)))

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register_heif_opener))
    monkeypatch.setattr(Image, "OPEN", Image.OPEN.copy())
    monkeypatch.setattr(Image, "ID", Image.ID.copy())
    missing_decoder.cache_clear()
    write_classes(tmp_path, a=1, b=1)
    (tmp_path / "a" / "1.heic").write_bytes(HEIC)
    samples = ClassFolders(options(tmp_path)).read("all")
    missing_decoder.cache_clear()
    assert names_of(samples) == ["a/000.jpg", "a/1.heic", "b/000.jpg"]
    assert samples.open(1, 3).pixels[:, 0, 0].tolist() == [9, 8, 7]


def test_a_prediction_has_an_error_for_each_image_that_cannot_be_read(tmp_path, without_heif):
    write_image(tmp_path / "1.HEIC")
    (tmp_path / "2.heic").write_bytes(HEIC)
    (tmp_path / "3.heic").touch()
    (tmp_path / "4.jpg").write_bytes(HEIC)
    (tmp_path / "5.txt").write_bytes(HEIC)
    samples = unlabelled(str(tmp_path), Data())
    image, *errors = samples.open_all(range(len(samples)), 3)
    assert image.size == (9, 12)
    no_decoder = "is HEIC, for which no decoder is installed"
    assert [error.reason for error in errors] == [no_decoder, "is empty (0 bytes)", no_decoder]


def names(path) -> list[str]:
    samples = unlabelled(str(path), Data())
    return [samples.name(index) for index in range(len(samples))]


def test_a_folder_is_read_as_class_folders_are(tmp_path):
    for name in ("b/2.jpg", "b/deep/1.PNG", "a/3.jpg", ".hidden.jpg", ".git/4.jpg", "a/.5.jpg"):
        write_image(tmp_path / name)
    (tmp_path / "b" / "notes.txt").touch()
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "same").symlink_to(tmp_path / "b")
    samples = unlabelled(str(tmp_path), Data())
    assert [str(Path(samples.name(index)).relative_to(tmp_path)) for index in range(3)] == [
        *("a/3.jpg", "a/same/2.jpg", "a/same/deep/1.PNG")
    ]
    assert len(samples) == 3 and not samples.has_class_names
    assert samples.targets.tolist() == [0, 0, 0]
    assert samples.open(1, 3).pixels.shape == (3, 9, 12)
    labelled = read_class_folders(tmp_path)  # here, each class is read by itself
    assert labelled.arrays["targets"].tolist() == [0, 0, 0, 1, 1]


def test_a_list_has_paths_with_or_without_labels(tmp_path):
    text = "\ufeffa.jpg 3\r\nb c.jpg\t12\n\n  d e.jpg\n/abs/f.jpg\n../g.jpg 0\na.jpg\n"
    (tmp_path / "list.TXT").write_text(text, encoding="utf-8")
    assert names(tmp_path / "list.TXT") == [
        *(f"{tmp_path}/a.jpg", f"{tmp_path}/b c.jpg", f"{tmp_path}/d e.jpg", "/abs/f.jpg", f"{tmp_path}/../g.jpg"),
        f"{tmp_path}/a.jpg",
    ]
    samples = unlabelled(str(tmp_path / "list.TXT"), Data())
    assert samples.listed_name(1) == "b c.jpg" and samples.listed_name(5) == "a.jpg"
