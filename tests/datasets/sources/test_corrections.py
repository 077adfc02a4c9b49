"""DATA.CORRECTIONS: labels that were checked by hand are applied after the split, so that no image changes sides."""

import shutil
from pathlib import Path

import pytest
from conftest import CPU, config_for, read_samples, refused, told
from source_helpers import classes_of, names_of, options, read_splits, write_classes, write_table

from configs.schema import Data
from utils.tables import safe_cell


@pytest.fixture
def data(tmp_path):
    write_classes(tmp_path / "data", cat=20, dog=20, **{"=fox": 20})
    return options(tmp_path / "data", dataset="folder", groups=r"^(.*)\d\.")


def corrected(data: Data, *rows: str, header: str = "path,correction"):
    file = data.data_path + "/../checked.txt"
    Path(file).write_text("\n".join([header, *rows, ""]), encoding="utf-8-sig")
    return read_splits(data.model_copy(update={"corrections": file}))


def test_checked_labels_are_changed_and_images_left_out_on_their_side_of_the_split(data, monkeypatch, tmp_path):
    train, val = read_splits(data)
    held_out, moved, kept = names_of(val)[0], names_of(train)[0], names_of(train)[5]
    dropped = [names_of(train)[9], names_of(val)[-1]]
    monkeypatch.chdir(tmp_path)
    rows = [f"data/{held_out};dog", f"{tmp_path}/data/{moved};'=fox", f"{kept};keep", f"{names_of(train)[3]};"]
    rows += [f"{one};drop" for one in dropped]
    rows = [f"{safe_cell(row) if row.startswith('=') else row};note" for row in rows]
    after = corrected(data, *rows, header="path;correction;other")
    for before, of_split in zip((train, val), after, strict=True):
        assert names_of(of_split) == [name for name in names_of(before) if name not in dropped]
        assert len(of_split.groups) == len(of_split)
    expected = classes_of(train, val) | {held_out: "dog", moved: "=fox"}
    assert classes_of(*after) == {name: label for name, label in expected.items() if name not in dropped}
    texts = [note.text for note in after[0].notes if "CORRECTIONS" in note.text]
    assert texts[0] == "DATA.CORRECTIONS, train: 1 dropped, 1 of another class, of 3 checked"
    assert len(texts) == 2


def test_rows_of_other_images_and_wrong_words_are_named(data):
    train, _ = corrected(data, "cat/000.jpg,keep", "cat/gone.jpg,drop")
    assert told(train.notes, "1 of 2 rows name no image of the data, such as 'cat/gone.jpg'", "warning")
    with refused("no row names an image of train, val"):
        corrected(data, "cat/gone.jpg,drop")
    with refused("write keep, drop, or one of"):
        corrected(data, "cat/000.jpg,zebra")
    with refused("has no column correction"):
        corrected(data, "cat/000.jpg,dog", header="path,label")
    with pytest.raises(ValueError, match="CORRECTIONS needs image files of one label"):
        Data.model_validate({"DATASET": "digits", "CORRECTIONS": "a.csv"})


def test_an_evaluation_counts_the_rows_without_a_file_not_those_of_other_splits(data, tmp_path):
    splits = read_splits(data)
    images = [f"{data.data_path}/{name},keep" for split in splits for name in names_of(split)]
    write_table(tmp_path / "checked.csv", [*images, "cat/gone.jpg,drop"], "path,correction")
    data = data.model_copy(update={"corrections": str(tmp_path / "checked.csv")})
    (val,) = read_samples(data, None, CPU, "val")
    assert told(val.notes, f"{len(splits[1])} checked", "screen")
    assert told(val.notes, f"1 of {len(images) + 1} rows name no image of the data, such as 'cat/gone.jpg'", "warning")


@pytest.mark.parametrize("is_moved", [False, True])
def test_rows_of_data_that_were_moved_or_copied_follow_them(data, tmp_path, is_moved):
    """For the next training on another disk: suspects.csv has absolute paths. Other images of these names are named."""
    train, val = read_splits(data)
    other, dropped = names_of(train)[0], names_of(val)[0]
    rows = [f"{data.data_path}/{other},'=fox", f"{data.data_path}/{dropped},drop", f"{data.data_path}/gone.jpg,keep"]
    write_table(tmp_path / "checked.csv", rows, "path,correction")
    (shutil.move if is_moved else shutil.copytree)(data.data_path, tmp_path / "new/copy")
    copy = data.model_copy(
        update={"corrections": str(tmp_path / "checked.csv"), "data_path": str(tmp_path / "new/copy")}
    )
    after = read_splits(copy)
    expected = classes_of(train, val) | {other: "=fox"}
    del expected[dropped]
    assert classes_of(*after) == expected
    assert told(after[0].notes, "1 of 3 rows name no image", "warning")
    if not is_moved:
        for file in (tmp_path / "new/copy").rglob("*.jpg"):
            file.write_bytes(file.read_bytes() + b"0")
        with refused("no row names an image"):
            read_splits(copy)


def test_a_split_must_keep_an_image(data):
    _, val = read_splits(data)
    with refused("drops all val images; keep some"):
        corrected(data, *(f"{name},drop" for name in names_of(val)))


@pytest.mark.parametrize("part", [{"fraction": 0.2, "groups": None}, {"only_classes": ["cat", "dog"]}])
def test_rows_of_images_outside_of_a_part_are_not_called_wrong(data, part):
    names = [name for split in read_splits(data) for name in names_of(split)]
    train, _ = corrected(data.model_copy(update=part), *(f"{name},keep" for name in names))
    assert not told(train.notes, "row", "warning")


@pytest.mark.parametrize("renames", [None, {"dog": "hound"}])
def test_an_image_is_moved_into_and_out_of_the_classes_that_stay(data, renames):
    train, _ = read_splits(data)
    fox, dog = (next(name for name in names_of(train) if name.startswith(kind)) for kind in ("=fox", "dog"))
    new = (renames or {}).get("dog", "dog")
    part = data.model_copy(update={"only_classes": ["cat", "dog"], "rename": renames})
    before, _ = read_splits(part)
    after, _ = corrected(part, f"{fox},{new}", f"{dog},'=fox")
    assert after.class_names == ["cat", new]
    assert {*names_of(after)} == {*names_of(before), fox} - {dog}
    assert classes_of(after)[fox] == new


def test_a_number_is_the_only_class_that_yaml_reads_as_it(tmp_path):
    write_classes(tmp_path / "data", **{"007": 4, "8": 4, "true": 4, "08": 4})
    for given, names in (("[007, 8]", ["007", "8"]), ("[true, 08]", ["08", "true"])):
        part = config_for("-opts", f"DATA.ONLY_CLASSES={given}").data.only_classes
        data = options(tmp_path / "data", dataset="folder", only_classes=part)
        assert read_splits(data)[0].class_names == names
    train, val = corrected(data, "8/000.jpg,True")
    assert classes_of(train, val)["8/000.jpg"] == "true"


def test_a_class_with_the_name_of_a_correction_is_refused(tmp_path):
    write_classes(tmp_path / "data", keep=20, dog=20)
    with refused("also the name of a class"):
        corrected(options(tmp_path / "data", dataset="folder"), "dog/000.jpg,keep")
