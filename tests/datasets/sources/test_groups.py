"""DATA.GROUPS: no group is on two sides of a split, and an image more moves few of them."""

import json
from collections import Counter

import numpy as np
import pytest
from source_helpers import options, write_image

from datasets.registry import read_samples
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.split import Splitter
from engine.checkpoint.weights_record import exported_entry, read_split
from scripts import make_shards
from tests.datasets.shards.tar_files import jpeg, tar_of
from utils.distributed import single_process
from utils.errors import UserError

CPU = single_process("cpu")


def part(images, split, known=None, **values):
    """The positions of a part, messages, and the split. images: (path, class, group)."""
    paths, classes, groups = zip(*images, strict=True)
    splitter = Splitter(options("DIR", groups="(x)", **values), known)
    packed = (StringPacker(texts).strings() for texts in (paths, groups))
    found = splitter.part(next(packed), np.array(classes), split, next(packed))
    return found.indices.tolist(), [*found.findings, *map(str, found.notes)], splitter.result


def random_images(rng):
    number, groups = int(rng.integers(20, 60)), int(rng.integers(6, 15))
    group_of = rng.integers(groups, size=number)
    return [(f"{index}.jpg", int(rng.integers(3)), f"g{group}") for index, group in enumerate(group_of)]


def groups_of(images, indices):
    return {images[index][2] for index in indices}


def test_no_group_is_on_two_sides():
    """1,000 random data sets: splits and folds part the groups; every group is held out in one fold."""
    for number in range(1000):
        rng = np.random.default_rng(number)
        images, values = random_images(rng), {"split_seed": number % 3}
        if number % 2:
            values |= {"folds": int(rng.integers(2, 5))}
        held_out = Counter()
        for fold in range(values.get("folds", 1)):
            choice = values | ({"fold": fold} if "folds" in values else {})
            train, val = (groups_of(images, part(images, split, **choice)[0]) for split in ("train", "val"))
            assert not train & val and train | val == {group for *_, group in images}
            held_out.update(val)
        assert "folds" not in values or set(held_out.values()) == {1}


IMAGES = [(f"{group % 2}/p{group}_{shot}.jpg", group % 2, f"p{group}") for group in range(8) for shot in range(3)]


def test_a_new_image_of_a_held_out_group_is_validation():
    run = part(IMAGES, "train", val_fraction=0.3)[2]
    assert len(run.held_out_groups) == 2 and len(run.held_out) == 6
    assert read_split(exported_entry(run), {"GROUPS": "(x)", "VAL_FRACTION": 0.3}) == run
    assert not part(IMAGES, "val", run, val_fraction=0.3)[1]
    group = run.held_out_groups[0]
    now = [("9/new.jpg", 0, group), *(image for image in IMAGES if image[2] != group), ("9/other.jpg", 0, "p99")]
    val, resumed = part(now, "val", run, val_fraction=0.3)[0], part(now, "train", run, val_fraction=0.3)[2]
    assert groups_of(now, val) == set(run.held_out_groups) and 0 in val and len(now) - 1 not in val
    assert set(resumed.held_out) == {*run.held_out, "9/new.jpg"} and resumed.held_out_groups == run.held_out_groups
    splitter = Splitter(options("DIR", val_fraction=0.3), run)  # without GROUPS it is another split
    packed = StringPacker(path for path, *_ in IMAGES).strings()
    notes = splitter.part(packed, np.array([label for _, label, _ in IMAGES]), "val").notes
    assert any("have the paths of images that the checkpoint was trained on" in note.text for note in notes)


@pytest.fixture
def folder(tmp_path):
    for path, *_ in IMAGES:
        write_image(tmp_path / "data" / path)
    return tmp_path / "data"


def read(root, groups, *splits, **values):
    return read_samples(options(root, groups=groups, batch_size=1, **values), None, CPU, *(splits or ("train", "val")))


def test_folders_by_expression_and_by_table(folder, tmp_path):
    train, val = read(folder, r"/(p\d+)_", dataset="folder")
    assert {*Counter(train.groups).values()} == {*Counter(val.groups).values()} == {3}
    assert train.notes == val.notes and "2 of 8 are held out, 6 of 24 images" in train.notes[-1].text
    table = tmp_path / "groups.csv"
    table.write_text("path,group\n" + "".join(f"{path},{group}\n" for path, _, group in IMAGES))
    assert list(read(folder, str(table), dataset="folder")[0].groups) == list(train.groups)


@pytest.mark.parametrize(
    ("column", "values", "given", "is_named"),
    [
        ("patient_id", 6, None, True),
        ("patient_id", 24, None, False),  # each image has its own
        ("patient", 3, None, False),  # yes, no and unknown
        ("animal", 6, None, False),  # a species
        ("patient_id", 6, "site", False),
    ],
)
def test_a_column_that_may_be_groups_is_named(folder, column, values, given, is_named):
    rows = enumerate(IMAGES)
    lines = "".join(f"{path},{label},{number % values},{group}\n" for number, (path, label, group) in rows)
    (folder / "train.csv").write_text(f"image_path,target,{column},site\n{lines}")
    train, val = read(folder, given, dataset="csv")
    notes = [note.text for note in train.notes if f"DATA.GROUPS={column}" in note.text]
    assert len(notes) == is_named and all(f"{values} values in 24 rows" in note for note in notes)
    assert given is None or (len({*val.groups}) == 2 and not {*train.groups} & {*val.groups})


def test_evaluated_splits_have_groups_where_their_paths_have_them(tmp_path):
    """A test split, and a validation split that is read alone; images without a group are no error there."""
    for split, names in (("train", "12"), ("val", "23"), ("test", "556")):
        for number, name in enumerate(names):
            for label in "xy":
                write_image(tmp_path / split / label / f"p{name}_{number}.jpg")
    data = options(tmp_path, groups=r"/(p\d+)_", dataset="folder", batch_size=1)
    train, _, test = read_samples(data, None, CPU, "train", "val", "test")
    assert any(note.kind == "warning" and "'p2'" in note.text for note in train.notes)  # is on both sides
    (val,) = read_samples(data, None, CPU, "val")
    assert (Counter(test.groups), Counter(val.groups)) == ({"p5": 4, "p6": 2}, {"p2": 2, "p3": 2})
    write_image(tmp_path / "test" / "x" / "other.jpg")
    *_, test = read_samples(data, None, CPU, "train", "val", "test")
    assert test.groups is None and len(test) == 7


@pytest.mark.parametrize(
    ("groups", "dataset", "error"),
    [
        (r"(q\d+)_", "folder", "24 of 24 images"),
        (r"/(.*)\.jpg", "folder", "DATA.GROUPS"),  # each image is a group
        ("(_)", "folder", "DATA.GROUPS"),  # there is one group
        ("absent.csv", "folder", "absent.csv: "),
        ("patient", "csv", "train.csv:11"),  # is empty there
        ("site", "csv", "train.csv:1: "),  # is no column
    ],
)
def test_wrong_groups_end_the_run(groups, dataset, error, folder):
    lines = (f"{path},{label},{group.replace('p3', '')}\n" for path, label, group in IMAGES)
    (folder / "train.csv").write_text(f"image_path,target,patient\n{''.join(lines)}")
    with pytest.raises(UserError) as raised:
        read(folder, groups, dataset=dataset)
    assert error in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(UserError, match=r"fold 0"):
        read(folder, r"/(p\d+)_", dataset="folder", folds=20, fold=0)


def write_shards(folder, without=()):
    files = {}
    for path, label, group in IMAGES:
        name, content = path.replace("/", "-").removesuffix(".jpg"), {} if group in without else {"patient": group}
        texts = {"jpg": jpeg(label), "cls": b"%d" % label, "json": json.dumps(content).encode()}
        files |= {f"{name}.{ending}": text for ending, text in texts.items()}
    folder.mkdir()
    (folder / "data.tar").write_bytes(tar_of(files))
    return folder


def test_shards_by_field_and_an_index_without_groups(tmp_path):
    """An index without the groups is built again only when GROUPS asks for it; with them it serves both."""
    folder = write_shards(tmp_path / "shards")
    index = folder / "index.npz"
    assert read(folder, None, "train", dataset="tar")[0].groups is None
    first = index.read_bytes()
    train, val = read(folder, "patient", dataset="tar")
    assert not set(train.groups) & set(val.groups)
    assert {*Counter(train.groups).values()} == {*Counter(val.groups).values()} == {3}
    second = index.read_bytes()
    read(folder, None, "train", dataset="tar")
    assert index.read_bytes() == second != first
    assert list(read(folder, "patient", dataset="tar")[0].groups) == list(train.groups)
    broken = write_shards(tmp_path / "broken", without={"p3"})
    with pytest.raises(UserError, match=r"GROUPS 'patient': 3 of 24 .*data\.tar/1-p3_0"):
        read(broken, "patient", dataset="tar")


def test_make_shards_writes_the_groups(folder, tmp_path, capsys):
    """The shards keep the split; training shards can be split again by the field `group`."""
    flags = ["-dataset=folder", f"-data_path={folder}", f"-output={tmp_path / 'out'}", "-opts", r"DATA.GROUPS=/(p\d+)_"]
    assert make_shards.main(flags) == 0
    train, val = read(tmp_path / "out", "group", dataset="tar")
    assert not set(train.groups) & set(val.groups)
    assert Counter(train.groups) + Counter(val.groups) == Counter(group for *_, group in IMAGES)
    assert not any("in both train and val" in note.text for note in train.notes)
    with pytest.raises(UserError, match=r"GROUPS 'patient': .*train-000000\.tar/"):
        read(tmp_path / "out", "patient", dataset="tar")
