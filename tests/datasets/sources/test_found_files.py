"""Images by their content and at any depth, with or without labels: links, hidden files, decoders; the Caltech sets."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
from conftest import CPU, each_row, line_of, refused, told
from PIL import Image
from pytest import fixture, mark
from source_helpers import expand, names_of, options, read, read_checked, tree, write_classes, write_image, write_rows

from configs.schema import Data
from configs.yaml_io import parse_value
from datasets.decoding.images import kind_of, missing_decoder
from datasets.reading import unlabelled
from datasets.recognition import recognize_dataset
from datasets.sources.folders import class_folders
from datasets.sources.folders.class_folders import read_class_folders
from datasets.sources.folders.split_folders import ImageFolders
from datasets.sources.listing import forget_listings, list_directory
from datasets.sources.shared_arrays import PackedStrings
from datasets.sources.source import Wanted
from tests.datasets.photo import tiff16
from tests.datasets.shards import tar_files
from utils.errors import did_you_mean

HEIC = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(100)


@fixture(params=[None, "decodes"])
def heif(monkeypatch, request):
    """With and without the package that decodes HEIC."""

    def open_file(file, name):
        image = Image.new("RGB", (20, 10), (9, 8, 7))
        image.tile = []  # as of Pillow's plugins
        return image

    def register_heif_opener():
        Image.register_open("HEIF", open_file)

    package = SimpleNamespace(register_heif_opener=register_heif_opener) if request.param else None
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    Image.init()  # registers Pillow's own formats
    monkeypatch.setattr(Image, "OPEN", Image.OPEN.copy())
    monkeypatch.setattr(Image, "ID", Image.ID.copy())
    missing_decoder.cache_clear()
    yield package
    missing_decoder.cache_clear()


def test_files_of_any_name_are_read_by_their_first_bytes(tmp_path, monkeypatch):
    others = (b"", b"P1 notes", b"BMW and Audi", b"RIFF\x24\0\0\0WAVEfmt ", b"\0\0\0\x18ftypisom\0\0\0\0mp42")
    assert [kind_of(data) for data in (*others, HEIC[:32])] == [None] * len(others) + ["HEIC"]
    write_classes(tmp_path, a=2, b=3)
    for name in ("IMG_1.HEIC", "photo", "x.jfif"):
        write_image(tmp_path / "a" / name)
    for name in (".DS_Store", "._000.jpg", "n.txt", "x.xmp", "raw.dng", "000.jpg_original", "table.xls"):
        (tmp_path / "a" / name).write_bytes(b"no image" if name == "table.xls" else b"\xff\xd8\xff")
    opened = []
    kind_of_file = class_folders.kind_of_file
    monkeypatch.setattr(class_folders, "kind_of_file", lambda path: opened.append(path) or kind_of_file(path))
    (samples,) = read(tmp_path, "all", dataset="folder")
    assert names_of(samples) == [
        *("a/000.jpg", "a/001.jpg", "a/IMG_1.HEIC", "a/photo", "a/x.jfif", "b/000.jpg", "b/001.jpg", "b/002.jpg")
    ]
    assert [samples.open(index, 3).pixels.shape for index in range(8)] == [(3, 9, 12)] * 8
    assert len(set(opened)) == 4


def test_photos_need_their_decoder(tmp_path, heif):
    """A prediction has an error for each image that cannot be read."""
    write_classes(tmp_path, a=1, b=1)
    tree(tmp_path, "c/")
    for name in ("a/1.heic", "b/3.heif", "c/1.heic"):
        (tmp_path / name).write_bytes(HEIC)
    samples = ImageFolders(Wanted(options(tmp_path))).read("all")
    jpegs = ["a/000.jpg", "b/000.jpg"]
    photos = ["a/1.heic", "b/3.heif", "c/1.heic"]
    assert sorted(names_of(samples)) == sorted(jpegs + photos if heif else jpegs)
    if heif:
        assert samples.open(1, 3).pixels[:, 0, 0].tolist() == [9, 8, 7]
        assert not samples.notes
    else:
        (finding,), (warning,) = samples.findings, told(samples.notes, kind="warning")
        assert "3 HEIC" in warning
        assert str(tmp_path / "c") in finding
        assert all("pip install pillow-heif" in text for text in (warning, finding))
    for name, content in {"c/2.heic": b"", "c/4.jpg": HEIC, "c/5.txt": HEIC}.items():
        (tmp_path / name).write_bytes(content)
    samples = unlabelled(str(tmp_path / "c"), Data())
    found = [getattr(image, "reason", None) for image in samples.open_all(range(len(samples)), 3)]
    assert "empty" in found[1]
    assert [bool(found[0]), bool(found[2])] == [not heif] * 2
    assert len(found) == 3


def test_paths_are_decoded_only_for_a_table_beside_them(tmp_path, monkeypatch):
    """Of millions of images this takes longer than the list of them."""
    tree(tmp_path, "train/{a,b}/{0,1,2}.jpg", "val/{a,b}/0.jpg")
    decoded = []
    strings = PackedStrings.__iter__
    monkeypatch.setattr(PackedStrings, "__iter__", lambda self: decoded.append(len(self)) or strings(self))
    read(tmp_path)
    assert decoded == []
    (tmp_path / "labels.csv").write_text("image,label\n0.jpg,x\n")
    read(tmp_path)
    assert decoded == [6]


@mark.parametrize("name, is_named", [("train_labels.csv", False), ("test_labels.csv", True), ("labels.csv", False)])
def test_the_own_list_of_the_images_in_a_folder_of_a_split_is_no_news(name, is_named, tmp_path):
    """RAF-DB: train_labels.csv beside train/."""
    tree(tmp_path, "val/{a/a,b/b}4.jpg")
    write_rows(tmp_path, "train/{a/a,b/b}{1,2,3}.jpg", name, "id,label", "{stem},{parent}")
    assert bool(told(read(tmp_path)[0].notes, "lists of splits", "warning")) == is_named


def test_files_that_are_not_read_are_counted_by_ending_with_an_example(tmp_path):
    """Beside the class folders, and in them: without files of systems, and those of the name of an image."""
    tree(tmp_path, "{a,b}/{0,1,2}.jpg", "{x,y,z}.png", "a/{7,8}.jp2!", "b/3.FITS!", "b/raw.dng!", "a/.hidden.jp2!")
    tree(tmp_path, "a/0.{txt,xml,nef,jpg.bak}!", "a/1.jpg.json!", "b/{Thumbs.db,desktop.ini}!", "a/x/labels.csv!")
    warnings = sorted(told(read_class_folders(tmp_path).notes, kind="warning"))
    expected = ("1 .dng ", "b/raw.dng"), ("1 .fits ", "b/3.FITS"), ("2 .jp2 ", "a/7.jp2"), ("3 image", "x.png")
    for text, (number, example) in zip(warnings, expected, strict=True):
        assert text.startswith(number)
        assert all(part in text for part in (f"in {tmp_path}", f"{example}'"))


def test_few_other_files_are_a_line_of_the_log(tmp_path):
    tree(tmp_path, "{a,b}/{0..99}.jpg", "a/{notes.txt,y.czi}!")
    assert len(told(read_class_folders(tmp_path).notes, "not read", kind="log")) == 2
    tree(tmp_path, "b/{x,y}.czi!", "b/{0,1}.npy!")
    assert told(read_class_folders(tmp_path).notes, "3 .czi", kind="warning")
    assert not told(read_class_folders(tmp_path).notes, "npy")


FORMATS = r"""
files | text
{a,b}/{0,1}.jp2! | 4 \.jp2 .*a/0\.jp2'; convert images
{a,b}/{0,1}.{dng,npy}! | 4 \.dng .*a/0\.dng'; convert images.*; 4 \.npy .*#images-in-arrays
{state.json,data-00000-of-00001.arrow}! | 1 \.arrow .*write parquet
{index.json,shard.00000.mds}! | 1 \.mds .*mosaicml
train-000000.tar! | 1 \.tar .*-dataset=tar
train-000000.tar.{gz,xz}! | 1 \.tar\.gz .*gunzip.*-dataset=tar; 1 \.tar\.xz .*unxz.*-dataset=tar
{index.json,chunk-0-0.bin}! | 1 \.bin .*litdata
x.{zip,7z,tar.gz,TGZ}! | 1 \.7z .*unpack it.*; 1 \.tgz .*unpack it.*; 1 \.tar\.gz .*unpack it.*; 1 \.zip .*unpack it
x.{csv.gz,gz,txt.bz2}! | 1 \.csv\.gz .*gunzip; 1 \.gz .*gunzip; 1 \.txt\.bz2 .*bunzip2
x.{h5,npz,pkl,pt}! | 1 \.h5 .*#images-in-arrays.*; 1 \.npz .*; 1 \.pkl .*; 1 \.pt .*#images-in-arrays
{train,val}.tfrecord-0000{0,1}-of-00002! | 4 TFRecord .*#other-formats
x.lmdb/{data,lock}.mdb! | 2 LMDB .*#other-formats
x.lance/{_transactions/0.txn,_versions/1.manifest,data/0.lance}! | 3 Lance .*#other-formats
d/{_deeplake_log/next_base,dataset_meta.json,x/unknown}! | 2 Deep Lake .*#other-formats
x.zarr/{zarr.json,images/{zarr.json,0.0}}! | 3 Zarr .*#images-in-arrays
{a,b}/x.mp4! | 2 \.mp4 .*ffmpeg
{a,b}/x.doc! | 2 \.doc .*; docs/data.md
"""


@each_row(FORMATS)
def test_a_folder_of_a_format_that_is_not_read_says_so(tmp_path, files, text):
    tree(tmp_path, files)
    with refused(text) as error:
        read(tmp_path)
    assert ("convert images" in str(error.value)) == ("convert images" in text)
    with refused(text):
        unlabelled(str(tmp_path), Data())


def test_archives_of_one_class_each_are_unpacked_by_the_loop_of_the_error(tmp_path):
    """ImageNet after its outer archive: as class folders and as shards; no index stays of images without labels."""
    root = tmp_path / "a b"
    root.mkdir()
    for wnid in ("n01440764", "n01443537"):
        files = {f"{wnid}_{number}.JPEG": tar_files.jpeg(number) for number in range(5)}
        (root / f"{wnid}.tar").write_bytes(tar_files.tar_of(files))
    errors = [line_of(read, root), line_of(read, root, dataset="tar")]
    loops = [re.search(r"for f in .*; done", error)[0] for error in errors]
    assert loops[0] == loops[1]
    assert sorted(path.suffix for path in root.iterdir()) == [".tar"] * 2
    subprocess.run(loops[0], shell=True, check=True)
    train, val = read(root)
    assert (train.class_names, len(train), len(val)) == (["n01440764", "n01443537"], 8, 2)
    assert not told([*train.notes, *val.notes], "not read")


def test_compressed_shards_and_archives_are_read_as_their_lines_say(tmp_path):
    tar_files.write_shard(tmp_path / "0.tar", range(9))
    subprocess.run(["gzip", tmp_path / "0.tar"], check=True)
    for dataset, path in product(("folder", "tar"), (tmp_path, tmp_path / "0.tar.gz")):
        with refused("gunzip, and read tar shards with -dataset=tar"):
            read(path, dataset=dataset)
    subprocess.run(["gunzip", tmp_path / "0.tar.gz"], check=True)
    train, _ = read(tmp_path, dataset="tar")
    assert len(train) == 7
    tree(tmp_path / "set", "{a,b}")
    subprocess.run(["tar", "-czf", "set.tgz", "set"], cwd=tmp_path, check=True)
    assert "is an archive; unpack it, and give the folder" in line_of(read, tmp_path / "set.tgz")


def test_first_frames_are_counted(tmp_path):
    """Pages of TIFF and animations."""
    frames = [Image.new("L", (20, 20), value) for value in (0, 90, 180)]
    tree(tmp_path, "{a,b}/")
    for file in ("a/0.tif", "a/1.gif", "a/3.png", "b/0.webp", "b/1.TIFF"):
        frames[0].save(tmp_path / file, save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "b/3.jpg", "WEBP", save_all=True, append_images=frames[1:])
    for file in ("a/2.gif", "b/2.tif"):
        frames[1].save(tmp_path / file)
    (note,) = told(read_checked(tmp_path, "all", dataset="folder")[0].notes, "further frames")
    assert note.startswith("6 of 8 images")
    assert "a/0.tif" in note


@mark.parametrize("extra, number", [(2, 0), (0, 1)], ids=["alpha", "near infrared"])
def test_bands_after_the_colors_are_counted_unless_they_are_alpha(extra, number, tmp_path):
    tree(tmp_path, "{a,b}")
    (tmp_path / "a/4.tif").write_bytes(tiff16(np.ones((4, 5, 4)), extra=extra))
    (samples,) = read_checked(tmp_path, "all", dataset="folder", on_bad_image="skip")
    notes = told(samples.notes, "1 of 9 images have further bands")
    assert len(notes) == number
    assert all("a/4.tif" in note for note in notes)


def test_links_are_followed_but_never_up(tmp_path):
    tree(tmp_path, "data/a/{000,001}.jpg", "data/b/000.jpg", "elsewhere/y.jpg", "data/a/gone>missing")
    tree(tmp_path, "data/a/more>elsewhere", "data/a/{self,../b/across}>data/a", "data/a/up>data", "data/b/far_up>.")
    tree(tmp_path, "data/a/across>data/b")
    listing = read_class_folders(tmp_path / "data")
    assert list(listing.paths) == [
        *("a/000.jpg", "a/001.jpg", "a/across/000.jpg", "a/more/y.jpg"),
        *("b/000.jpg", "b/across/000.jpg", "b/across/001.jpg", "b/across/more/y.jpg"),
    ]
    assert told(listing.notes, "a/gone", "warning")
    assert len(unlabelled(str(tmp_path / "data"), Data())) == 4  # without classes, each folder once


def test_a_link_in_place_of_an_image_or_of_a_folder(tmp_path):
    tree(tmp_path, "far/{train,val}/{a,b}", "linked>far", "lost>missing")
    assert [*map(len, read(tmp_path / "linked", dataset="folder"))] == [8, 8]
    with refused(f"{tmp_path}/lost.*No such file"):
        read(tmp_path / "lost", dataset="folder")


def test_images_without_labels(tmp_path):
    for name in ("b/2.jpg", "b/deep/1.PNG", "a/3.jpg", ".hidden.jpg", ".git/4.jpg", "a/.5.jpg"):
        write_image(tmp_path / name)
    samples = unlabelled(str(tmp_path), Data())
    assert names_of(samples) == ["a/3.jpg", "b/2.jpg", "b/deep/1.PNG"]
    assert samples.targets.tolist() == [0, 0, 0]
    assert not samples.has_class_names
    assert samples.open(1, 3).pixels.shape == (3, 9, 12)
    text = "\ufeffa.jpg 3\r\nb c.jpg\t12\n\n  d e.jpg\n/abs/f.jpg\n../g.jpg 0\na.jpg\n"
    (tmp_path / "list.TXT").write_text(text, encoding="utf-8")
    listed = unlabelled(str(tmp_path / "list.TXT"), Data())
    expected = [f"{tmp_path}/a.jpg", f"{tmp_path}/b c.jpg", f"{tmp_path}/d e.jpg", "/abs/f.jpg", f"{tmp_path}/../g.jpg"]
    assert [listed.name(index) for index in range(len(listed))] == [*expected, f"{tmp_path}/a.jpg"]
    assert listed.listed_name(1) == "b c.jpg"
    assert listed.listed_name(5) == "a.jpg"


def test_comments_of_a_list_are_no_images(tmp_path):
    (tmp_path / "list.txt").write_text("# mine\n#\n#a comment\n# a.jpg 3\n#1.jpg\n#2.jpg 4\nb #3.jpg")
    listed = unlabelled(str(tmp_path / "list.txt"), Data())
    assert [listed.listed_name(index) for index in range(len(listed))] == ["#1.jpg", "#2.jpg", "b #3.jpg"]


def test_an_unreadable_folder_is_refused(tmp_path, monkeypatch):
    tree(tmp_path, "{cat,dog}")
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (open if str(folder).endswith("dog") else scandir)(folder))
    with refused(f"{tmp_path}/dog: "):
        read(tmp_path, dataset="folder")


# The files, the row of an image if they have a table, DATA.COLUMNS, the images of train and val
STARTS = """
kind | files | row | columns | sizes
folders | {train,val}/{a,b}/{0..3}.jpg | | | 8 8
levels | {train,val}/{a,b}/{0..3}.jpg | | {label: 1} | 8 8
a question, as MURA | {train,valid}/XR_{HAND,WRIST}/patient0{1,2,3}/study1{1_positive,1_negative}/0.jpg | | |
table | p{0..39}/s/{0,1}.png | {path},{label} | | 72 8
table of ids | p{0..39}/s/{0,1}.png | {folder}/s/{stem},{label} | | 72 8
"""


@each_row(STARTS)
def test_a_start_lists_each_folder_once(kind, files, row, columns, sizes, tmp_path, monkeypatch):
    given = tree(tmp_path, files)
    if row:
        given = write_rows(tmp_path, files, "labels.csv", "image_path,target", row, label="ab")
    listed = Counter()
    for name in ("scandir", "listdir"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, call=call: listed.update([str(path)]) or call(path))
    data = options(given, columns=parse_value(columns or "null"))
    if sizes:
        assert [len(samples) for samples in read(data)] == [*map(int, sizes.split())]
    else:
        assert "DATA.LABELS" in line_of(read, data)
    inside = {folder: number for folder, number in listed.items() if folder.startswith(str(tmp_path))}
    assert {*inside.values()} == {1}
    if kind == "folders":
        assert {*inside} == {f"{tmp_path}{folder}" for folder in expand("{,/{train,val}{,/a,/b}}")}
        tree(tmp_path, "train/a/new.jpg")
        os.utime(tmp_path / "train/a", (0, 0))
        assert [len(samples) for samples in read(data)] == [9, 8]


def test_a_data_set_that_is_refused_is_listed_again(tmp_path):
    """On a disk with coarse times a folder that has changed has the time of before."""
    tree(tmp_path, "{a,b}")
    changed = os.stat(tmp_path).st_mtime_ns
    with refused("DATA.MULTI_LABEL"):
        recognize_dataset(options(tmp_path, multi_label=True), CPU)
    (tmp_path / "c").mkdir()
    os.utime(tmp_path, ns=(changed, changed))
    assert list_directory(tmp_path)[0] == ["a", "b", "c"]
    forget_listings()


def test_few_folders_of_a_table_are_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.sources.tables.columns._MAX_SEEN", 1)
    table = "labels.csv", "image_path,target", "{path},{label}"
    file = write_rows(tmp_path, "train/p{0..7}/0.png & val/p{0..3}/0.png", *table, label="ab")
    assert [len(samples) for samples in read(file)] == [8, 4]


CALTECH = """
dataset | folder | left_out
caltech101 | 101_ObjectCategories | BACKGROUND_Google
caltech256 | 256_ObjectCategories | 257.clutter
"""


@each_row(CALTECH)
def test_caltech(tmp_path, dataset, folder, left_out):
    write_classes(tmp_path / folder, **{"001.ak47": 20, "Faces": 10, left_out: 5})
    train, val = read(tmp_path if dataset == "caltech101" else tmp_path / folder, dataset=dataset)
    assert train.class_names == val.class_names == ["001.ak47", "Faces"]
    assert np.bincount(train.targets).tolist() == [18, 9]
    assert np.bincount(val.targets).tolist() == [2, 1]


def test_hints_are_sought_for_the_folders_that_are_shown_only(tmp_path, monkeypatch):
    tree(tmp_path, "unknown{0..49}/")
    seek = Mock(wraps=did_you_mean)
    monkeypatch.setattr(class_folders, "did_you_mean", seek)
    findings = read_class_folders(tmp_path, known={"unknown", "b"}).findings
    assert (len(findings), seek.call_count) == (50, 20)
    assert "did you mean unknown?" in findings[19]
