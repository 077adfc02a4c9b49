"""DATA.CORRECTIONS: labels that were checked by hand are applied after the split, so that no image changes sides."""

import os
import shutil

import pytest
from conftest import CPU, config_for, refused
from source_helpers import classes_of, names_of, options, read_splits, write_classes

from configs.schema import Data
from datasets.registry import read_samples
from utils.tables import safe_cell


@pytest.fixture
def data(tmp_path):
    write_classes(tmp_path / "data", cat=20, dog=20, **{"=fox": 20})
    return options(tmp_path / "data", dataset="folder", groups=r"^(.*)\d\.")


def corrected(data: Data, rows: str):
    file = data.data_path + "/../checked.txt"
    with open(file, "w", encoding="utf-8-sig") as opened:
        opened.write(rows)
    return read_splits(data.model_copy(update={"corrections": file}))


def test_checked_labels_are_changed_and_images_left_out_on_their_side_of_the_split(data, monkeypatch, tmp_path):
    train, val = read_splits(data)
    held_out, moved, kept = names_of(val)[0], names_of(train)[0], names_of(train)[5]
    dropped = [names_of(train)[9], names_of(val)[-1]]
    monkeypatch.chdir(tmp_path)
    rows = [
        f"data/{held_out};dog",
        f"{tmp_path}/data/{moved};'=fox",
        f"{kept};keep",
        *(f"{one};drop" for one in dropped),
    ]
    rows = [f"{safe_cell(row) if row.startswith('=') else row};note" for row in [*rows, f"{names_of(train)[3]};"]]
    after = corrected(data, "\n".join(["path;correction;other", *rows, ""]))
    for before, of_split in zip((train, val), after, strict=True):
        assert names_of(of_split) == [name for name in names_of(before) if name not in dropped]
        assert len(of_split.groups) == len(of_split)
    expected = classes_of(train, val) | {held_out: "dog", moved: "=fox"}
    assert classes_of(*after) == {name: label for name, label in expected.items() if name not in dropped}
    texts = [note.text for note in after[0].notes if "CORRECTIONS" in note.text]
    assert texts == ["DATA.CORRECTIONS, train: 1 drop, 1 keep, 1 other class"]


def test_rows_of_other_images_and_wrong_words_are_named(data):
    head = "path,correction\n"
    train, _ = corrected(data, head + "cat/000.jpg,keep\ncat/gone.jpg,drop\n")
    assert any("1 of 2 rows name no image of the data, such as 'cat/gone.jpg'" in note.text for note in train.notes)
    for rows, problem in (
        (head + "cat/gone.jpg,drop\n", "1 of 1 rows name no image"),
        (head + "cat/000.jpg,dgo\n", "'dgo' is no class of the data; did you mean dog"),
        (head + "cat/000.jpg,zebra\n", "write keep, drop, or one of"),
        ("path,label\ncat/000.jpg,dog\n", "has no column correction"),
    ):
        with refused(problem):
            corrected(data, rows)
    with pytest.raises(ValueError, match="CORRECTIONS needs image files of one label"):
        Data.model_validate({"DATASET": "digits", "CORRECTIONS": "a.csv"})


def test_rows_of_a_renamed_folder_follow_it(data, tmp_path):
    """A folder that is still there, merged by name alone, keeps its rows."""
    hound = data.model_copy(update={"rename": {"dog": "hound"}})
    rows = f"path,correction\ndog/003.jpg,cat\n{tmp_path}/data/dog/004.jpg,drop\ncat/005.jpg,dog\ndog/gone.jpg,drop\n"
    os.rename(tmp_path / "data/dog", tmp_path / "data/hound")
    splits = corrected(hound, rows)
    found = classes_of(*splits)
    assert (found["hound/003.jpg"], found["cat/005.jpg"]) == ("cat", "hound")
    assert "hound/004.jpg" not in found
    assert sum("1 of 4 rows name no image" in note.text for one in splits for note in one.notes) == 1
    merged = data.model_copy(update={"rename": {"hound": "cat"}})
    found = classes_of(*corrected(merged, "path,correction\nhound/003.jpg,drop\n"))
    assert "hound/003.jpg" not in found
    assert "cat/003.jpg" in found


def test_an_evaluation_counts_the_rows_without_a_file_not_those_of_other_splits(data, tmp_path):
    splits = read_splits(data)
    rows = [f"{name},keep" for split in splits for name in names_of(split)] + ["cat/gone.jpg,drop"]
    (tmp_path / "checked.csv").write_text("\n".join(["path,correction", *rows, ""]))
    data = data.model_copy(update={"corrections": str(tmp_path / "checked.csv")})
    (val,) = read_samples(data, None, CPU, "val")
    texts = [note.text for note in val.notes if "CORRECTIONS" in note.text]
    assert texts[0] == f"DATA.CORRECTIONS, val: {len(splits[1])} keep"
    assert f" 1 of {len(rows)} rows name no image of the data, such as 'cat/gone.jpg'" in texts[1]


def test_rows_of_data_that_were_copied_are_of_the_copy(data, tmp_path):
    """Also while the first data are still there; other data of the same names are named."""
    _, val = read_splits(data)
    moved, dropped = names_of(val)[:2]
    table = tmp_path / "checked.csv"
    folder = data.data_path
    table.write_text(f"path,correction\n{folder}/{moved},'=fox\n{folder}/{dropped},drop\n{folder}/gone.jpg,keep\n")
    shutil.copytree(folder, tmp_path / "new/copy")
    copy = data.model_copy(update={"corrections": str(table), "data_path": str(tmp_path / "new/copy")})
    (after,) = read_samples(copy, None, CPU, "val")
    expected = classes_of(val) | {moved: "=fox"}
    del expected[dropped]
    assert classes_of(after) == expected
    assert any("1 of 3 rows name no image" in note.text for note in after.notes)
    for file in (tmp_path / "new/copy").rglob("*.jpg"):
        file.write_bytes(file.read_bytes() + b"0")
    (after,) = read_samples(copy, None, CPU, "val")
    assert classes_of(after) == classes_of(val)
    assert any("3 of 3 rows name no image" in note.text for note in after.notes)


def test_a_split_must_keep_an_image(data):
    _, val = read_splits(data)
    with refused("drops all val images; keep some"):
        corrected(data, "path,correction\n" + "".join(f"{name},drop\n" for name in names_of(val)))


@pytest.mark.parametrize("part", [{"fraction": 0.2, "groups": None}, {"only_classes": ["cat", "dog"]}])
def test_rows_of_images_outside_of_a_part_are_not_called_wrong(data, part):
    names = [name for split in read_splits(data) for name in names_of(split)]
    data = data.model_copy(update=part)
    rows = "".join(f"{name},keep\n" for name in names)
    train, _ = corrected(data.model_copy(update=part), f"path,correction\n{rows}")
    assert not any("name no image" in note.text for note in train.notes)


@pytest.mark.parametrize("renames", [None, {"dog": "hound"}])
def test_an_image_is_moved_into_and_out_of_the_classes_that_stay(data, renames):
    train, _ = read_splits(data)
    fox, dog = (next(name for name in names_of(train) if name.startswith(kind)) for kind in ("=fox", "dog"))
    new = (renames or {}).get("dog", "dog")
    part = data.model_copy(update={"only_classes": ["cat", "dog"], "rename": renames})
    before, _ = read_splits(part)
    after, _ = corrected(part, f"path,correction\n{fox},{new}\n{dog},'=fox\n")
    assert after.class_names == ["cat", new]
    assert {*names_of(after)} == {*names_of(before), fox} - {dog}
    assert classes_of(after)[fox] == new


@pytest.mark.parametrize("only", [["pet", "=fox"], ["dog", "=fox"]])
@pytest.mark.parametrize("name", ["pet", "cat", "dog"])
def test_an_image_is_moved_into_a_merged_class_that_stays(data, only, name):
    """Old names of classes mean their new ones."""
    train, _ = read_splits(data)
    moved = next(one for one in names_of(train) if one.startswith("=fox"))
    part = data.model_copy(update={"only_classes": only, "rename": {"cat": "pet", "dog": "pet"}})
    found = classes_of(*corrected(part, f"path,correction\n{moved},{name}\n"))
    assert len(found) == 60
    assert found[moved] == "pet"


def test_a_number_is_the_only_class_that_yaml_reads_as_it(tmp_path):
    write_classes(tmp_path / "data", **{"007": 4, "8": 4, "true": 4, "08": 4})
    for given, names in (("[007, 8]", ["007", "8"]), ("[true, 08]", ["8", "true"])):
        part = config_for("-opts", f"DATA.ONLY_CLASSES={given}").data.only_classes
        data = options(tmp_path / "data", dataset="folder", only_classes=part)
        assert read_splits(data)[0].class_names == names
    train, val = corrected(data, "path,correction\n8/000.jpg,True\n")
    assert classes_of(train, val)["8/000.jpg"] == "true"


def test_a_class_with_the_name_of_a_correction_is_refused(tmp_path):
    write_classes(tmp_path / "data", keep=20, dog=20)
    with refused("also the name of a class"):
        corrected(options(tmp_path / "data", dataset="folder"), "path,correction\ndog/000.jpg,keep\n")
