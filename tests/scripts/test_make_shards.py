"""make_shards.py: WebDataset, timm and tar read the shards; after a failure none are left. index_shards.py."""

import json
import shutil
import sys
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import timm.data
import webdataset
from conftest import GREY, cells_of, cli, config_for, each_value, read_samples, refused, rotated, told
from numpy.random import default_rng
from PIL import Image, ImageOps
from pytest import fixture, mark, raises
from webdataset.tariterators import base_plus_ext

from configs.schema import Data
from configs.yaml_io import parse_value
from datasets.decoding.images import BadImage
from datasets.shards.index import INDEX_NAME, INFO_FILE, read_index
from scripts import index_shards, make_shards
from scripts.make_shards import read_records, unique_keys
from tests.datasets.shards.tar_files import write_shards
from utils.files import read_json

CLASSES = ("cat", "dog.v2", "ünï 中🙂")


@fixture
def folders(tmp_path) -> Path:
    """Noise in class folders: 8 images of 2 to 4 KB per class for training, 2 for validation."""
    rng = default_rng(0)
    for split, count in (("train", 8), ("val", 2)):
        for name in CLASSES:
            (tmp_path / "folders" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(256, size=(40 + 2 * number, 35, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "folders" / split / name / f"ä.{number}.jpg")
    return tmp_path / "folders"


@fixture
def bad(folders) -> Path:
    (folders / "train" / "cat" / "ä.5.jpg").write_bytes(b"no image")
    return folders / "train" / "cat" / "ä.5.jpg"


def write(root: Path, name: str = "shards", *options: str, **changes) -> Path:
    """Writes shards beside the folder of the data; returns their folder."""
    output = root.parent / name
    values = {"dataset": "folder", "shard_mb": 0.04} | changes
    flags = [f"-{flag}={value}" for flag, value in values.items()]
    words = [f"-data_path={root}", f"-output={output}", *flags, "-opts", "DATA.NUM_WORKERS=2", *options]
    assert make_shards.main(words) == 0
    return output


def data_of(root: Path, dataset: str, *options: str) -> Data:
    return config_for(f"-data_path={root}", f"-dataset={dataset}", "-opts", "DATA.BATCH_SIZE=1", *options).data


def shards_of(folder: Path, split: str = "") -> list[Path]:
    return sorted(folder.glob(f"{split}*.tar"))


def extensions_in(folder: Path) -> set[str]:
    return {name.rpartition(".")[2] for path in shards_of(folder) for name in tarfile.open(path).getnames()}


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def by_webdataset(shards: list[Path]) -> dict[str, tuple[bytes, int]]:
    samples = list(webdataset.WebDataset(list(map(str, shards)), shardshuffle=False))
    found = {sample["__key__"]: (sample["jpg"], int(sample["cls"])) for sample in samples}
    assert len(found) == len(samples)
    return found


def write_tables(root: Path, columns: str, **cells: str) -> Path:
    """A table of each split, whose cells have a space between them, and its images."""
    root.mkdir()
    for split, text in cells.items():
        rows = [f"image_path,{columns}"]
        for number, cell in enumerate(text.split(" ")):
            Image.new("RGB", (20, 20), (number, 0, 0)).save(root / f"{split}{number}.png")
            rows.append(f"{split}{number}.png,{cell}")
        (root / f"{split}.csv").write_text("\n".join(rows))
    return root


@mark.parametrize("split", ["train", "val"])
def test_webdataset_and_timm_read_all_samples(folders, cpu, split):
    output = write(folders)
    (samples,) = read_samples(data_of(folders, "folder"), 3, cpu, split)
    expected = {}
    for index in range(len(samples)):
        path = Path(samples.name(index)).relative_to(folders)
        key = str(path.with_name(path.stem.replace(".", "_")))
        expected[key] = samples.read_bytes(index), int(samples.targets[index])
    shards = shards_of(output, split)
    found = by_webdataset(shards)
    assert found == expected
    assert (list(found) == list(expected)) == (split == "val")  # training samples are shuffled
    images = timm.data.create_dataset("wds/any", root=str(output), split=split, is_training=False)
    assert sorted(target for _, target in images) == sorted(samples.targets.tolist())
    assert len(images) == len(samples)
    info = read_json(output / INFO_FILE)
    assert info["class_names"] == list(CLASSES)
    of_split = info["splits"][split]
    assert of_split["filenames"] == [path.name for path in shards]
    assert sum(of_split["shard_lengths"]) == of_split["num_samples"] == len(samples)


def test_several_kinds_of_images_are_named_and_a_size_makes_one(folders, capsys):
    Image.new("RGB", (20, 20)).save(folders / "train" / "cat" / "drawn.png")
    outputs = [write(folders, "kinds"), write(folders, "one", size=16)]
    assert [extensions_in(output) for output in outputs] == [{"cls", "jpg", "png"}, {"cls", "ppm"}]
    assert capsys.readouterr().out.count("images are .jpg, .png: ") == 1


def test_shards_of_another_size_are_made_from_shards(folders):
    shutil.copytree(folders / "val", folders / "test")
    small = write(folders)
    large = write(small, "large", dataset="tar", shard_mb=1)
    samples = by_webdataset(shards_of(large))
    assert by_webdataset(shards_of(small)) == samples
    assert len(samples) == 36
    assert [path.name for path in shards_of(large)] == [f"{name}-000000.tar" for name in ("test", "train", "val")]
    assert read_json(large / INFO_FILE)["class_names"] == list(CLASSES)


def test_a_shard_ends_with_the_image_that_fills_it_and_equal_data_give_equal_bytes(folders):
    output = write(folders)
    for path in shards_of(output):
        with tarfile.open(path) as archive:
            assert max(member.offset for member in archive if member.name.endswith(".jpg")) < 40_000
    *full, _ = shards_of(output, "train")
    assert full
    assert min(path.stat().st_size for path in full) > 40_000
    assert content_of(write(folders, "again")) == content_of(output)


CHANGES = """
change
{crc: 1}
{label: 7}
{group: x}
"""


@each_value(CHANGES)
def test_a_shard_that_is_read_back_as_another_one_is_refused(folders, monkeypatch, change):
    """Who writes to a network disk and deletes the images afterwards relies on the comparison."""

    def read_damaged(*arguments):
        records, others = read_records(*arguments)
        return [record._replace(**change) for record in records], others

    monkeypatch.setattr("scripts.make_shards.read_records", read_damaged)
    with refused(r"-000000\.tar: read back, it is not as it was written; check the disk"):
        write(folders)
    assert not (folders.parent / "shards").exists()


@mark.parametrize("channels, mode, extension, keys", [(1, "L", ".pgm", GREY), (3, "RGB", ".ppm", [])])
def test_stored_pixels_are_pillows_resize_of_the_upright_image(folders, cpu, channels, mode, extension, keys):
    rng = default_rng(2)
    cats = folders / "val" / "cat"
    Image.fromarray(rng.integers(256, size=(60, 90, 3), dtype=np.uint8)).save(cats / "turned.jpg", exif=rotated(6))
    deep = rng.integers(1000, 3000, size=(50, 45), dtype=np.uint16)
    Image.fromarray(deep).save(cats / "deep.png")
    options = ["DATA.GREY_RANGE=[1000,3000]", *keys]
    output = write(folders, "shards", *options, size=38)
    sizes = set()
    for samples in read_samples(data_of(output, "tar", *options), 3, cpu, "train", "val"):
        for index in range(len(samples)):
            member = samples.relative_name(index, "").removesuffix(extension)
            (path,) = folders.glob(member.replace("ä_", "ä.") + ".*")
            image = ImageOps.exif_transpose(Image.open(path))
            if path.stem == "deep":
                image = Image.fromarray(np.rint((np.float32(deep) - 1000) * (255 / 2000)).astype(np.uint8))
            image = image.convert(mode)
            short = min(image.size)
            if short > 38:
                image = image.resize([side * 38 // short for side in image.size], Image.Resampling.BICUBIC)
            pixels = samples.open(index, channels).pixels.permute(1, 2, 0).numpy().squeeze()
            difference = np.abs(pixels.astype(int) - np.array(image))
            assert difference.max() <= (short > 38), path
            sizes.add(image.size)
    assert {(35, 40), (38, 57), (38, 42)} < sizes


KEYS = """
train/cat/a.jpg | train/cat/a
v1.2/.hidden.png | v1.2/_hidden
/absolute//a.jpg | absolute/a
../../up/./a.jpg | _/_/up/a
a/__init__.jpg | a/_init__
 | _
"""


def test_keys_are_what_webdataset_finds():
    """Equal ones are numbered."""
    for path, key in [*cells_of(KEYS), ("line\nbreak\t.jpg", "line_break_"), ("\udcff.jpg", "\udcff")]:
        assert list(unique_keys([path])) == [key]
        assert base_plus_ext(f"{key}.jpg") == (key, "jpg")
    paths = cli("a.jpg a.png a_2.jpg a.gif a_2.png b.c.jpg b_c.jpg")
    assert list(unique_keys(paths)) == cli("a a_2 a_2_2 a_3 a_2_3 b_c b_c_2")


def test_a_bad_image_ends_the_writing_or_is_left_out(folders, bad):
    output = folders.parent / "shards"
    with raises(BadImage, match=rf"^{bad}: "):
        write(folders)
    assert not output.exists()
    write(folders, "shards", "DATA.ON_BAD_IMAGE=skip")
    assert (output / "bad_images_0.csv").read_text().count("ä.5.jpg") == 1


def test_several_labels_are_written_and_read_as_in_their_table(tmp_path, cpu):
    """As numbers in .json with the class names in _info.json; other shards may have names; none is a list, too."""
    root = write_tables(tmp_path / "tables", "target", train="dog|emu  cat emu|cat|dog", val="dog cat|dog")

    def read(dataset, folder, several="true"):
        data = data_of(folder, dataset, f"DATA.MULTI_LABEL={several}")
        found = {}
        for one in read_samples(data, None, cpu, "train", "val", is_new=True):
            for index, labels in enumerate(one.targets.tolist()):
                found[Path(one.name(index)).stem] = one.class_names, labels
        return found

    expected = read("csv", root)
    assert expected["train1"] == (["cat", "dog", "emu"], [0, 0, 0])
    tracemalloc.start()
    output = write(root, "shards", "DATA.MULTI_LABEL=true", dataset="csv")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24  # a column for each class, not for each number that a label can have
    assert read("tar", output) == expected
    with tarfile.open(output / "train-000000.tar") as tar:
        assert json.load(tar.extractfile("train3.json")) == {"labels": [0, 1, 2]}
    with refused(r"^\S*shards: has images with several labels; set DATA.MULTI_LABEL=true$"):
        read("tar", output, "false")
    (output / INDEX_NAME).unlink()
    info = read_json(output / INFO_FILE)
    (output / INFO_FILE).write_text(json.dumps({"splits": info["splits"]}))  # read without names: the numbers
    assert read("tar", output)["train0"] == (["0", "1", "2"], [0, 1, 1])


def test_unknown_labels_are_written_and_read(tmp_path, cpu):
    root = write_tables(tmp_path / "tables", "ant,bee", train="1,0 ?,1 0,? ?,?", val="1,? 0,1")
    meant = ["DATA.MULTI_LABEL=true", "DATA.COLUMNS={label: [ant, bee], cells: {'?': null}}"]
    output = write(root, "shards", *meant, dataset="csv")
    for rebuilt in (False, True):
        train, val = read_samples(data_of(output, "tar", meant[0]), None, cpu, "train", "val")
        found = {Path(train.name(index)).stem: train.targets[index].tolist() for index in range(4)}
        assert found == parse_value("{train0: [1, 0], train1: [-2, 1], train2: [0, -2], train3: [-2, -2]}")
        assert sorted(val.targets.tolist()) == [[0, 1], [1, -2]]
        assert train.class_names == ["ant", "bee"]
        assert told(train.notes, "labels of train that are unknown, of 4 images") == [
            "labels of train that are unknown, of 4 images, and count in no loss and figure: 'ant' 2, 'bee' 2"
        ]
        if not rebuilt:
            (output / INDEX_NAME).unlink()


def test_the_index_of_a_folder_needs_no_other_package(tmp_path, monkeypatch):
    folder = write_shards(tmp_path / "d", train=2)
    cache = ["-opts", f"DATA.CACHE_DIR={tmp_path / 'cache'}"]
    for name in ("obstore", "braceexpand"):
        monkeypatch.setitem(sys.modules, name, None)
    assert index_shards.main([f"-data_path={folder}", *cache]) == 0
    index = read_index((folder / INDEX_NAME).read_bytes(), "i")
    assert [shard.name for shard in index.shards] == ["train-0000.tar", "train-0001.tar", "val-0000.tar"]
    assert index_shards.main([f"-data_path={folder}", f"-output={tmp_path / 'copy'}", *cache]) == 0
    assert len(read_index((tmp_path / "copy").read_bytes(), "i")) == 32
    with refused("missing/i"):
        index_shards.main([f"-data_path={folder}", f"-output={tmp_path / 'missing' / 'i'}", *cache])
