"""Labels follow the class names of a checkpoint; the number of classes follows the data."""

import pickle
from unicodedata import normalize

from conftest import CPU, each_row, read_samples, refused, told
from pytest import mark
from source_helpers import names_of, options, write_classes, write_image, write_table

from datasets.sources.class_names import number_of_classes

KNOWN = ["ant", "bee", "cat", "dog"]


def read(path, *splits, class_names=KNOWN, dataset="folder", num_classes=None):
    given = options(path, dataset=dataset)
    return read_samples(given, num_classes, CPU, *splits, class_names=class_names)


def test_images_get_the_labels_of_the_checkpoint(tmp_path):
    write_classes(tmp_path / "two", dog=2, bee=1)
    (samples,) = read(tmp_path / "two", "all")
    assert names_of(samples) == ["bee/000.jpg", "dog/000.jpg", "dog/001.jpg"]
    assert samples.targets.tolist() == [1, 3, 3]
    assert samples.class_names == KNOWN
    assert pickle.loads(pickle.dumps(samples)).targets.tolist() == [1, 3, 3]  # in a loading worker
    write_classes(tmp_path / "one", dog=2)
    assert read(tmp_path / "one", "all")[0].targets.tolist() == [3, 3]


AS_FILES = normalize("NFC", "Ähre"), normalize("NFD", "Ähre")
OTHERS = f"""
folders | splits | class_names | part
dog | all | | only one folder
dog eel fox | all | ant bee cat dog | 'eel', 'fox': .*'ant', 'bee', 'cat', 'dog'
dog bee | train val | ant bee cat dog | 'ant', 'cat':  # a training needs all classes
ant bee cat dog bat | train val | ant bee cat dog | 'bat': .* -pretrained=.*NUM_CLASSES=null$
{" ".join(AS_FILES)} | all | | .*'Ähre'
dog Dog | all | ant bee cat dog | 'Dog'
"""


@each_row(OTHERS)
def test_other_classes_are_refused(folders, splits, class_names, part, tmp_path):
    write_classes(tmp_path, **dict.fromkeys(folders.split(), 2))
    with refused(f"^{tmp_path}: {part}"):
        read(tmp_path, *splits.split(), class_names=class_names.split() or None)


def test_names_that_differ_only_in_case_are_named(tmp_path):
    write_classes(tmp_path, cat=2, Dog=2, dog=2)
    (samples,) = read(tmp_path, "all", class_names=None)
    assert told(samples.notes, kind="warning") == ["classes 'Dog', 'dog' differ only in case"]


@mark.parametrize("dataset", ["folder", "csv"])
@mark.parametrize("form, known", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_are_equal_in_every_unicode_form(tmp_path, dataset, form, known):
    """In NFD, as on macOS, the first class is 'A' and a diaeresis, and stands before 'Bee'. Files keep their names."""
    classes = ["Bee", "Ähre"]
    mine, theirs = ([normalize(f, name) for name in classes] for f in (form, known))
    write_classes(tmp_path / "val", **dict.fromkeys(mine, 2))
    rows = [f"val/{name}/00{number}.jpg,{name}" for number in range(2) for name in mine]
    rows.append(rows[1].replace(mine[1], theirs[1]))
    write_table(tmp_path / "val.csv", rows)
    if dataset == "csv":
        write_classes(tmp_path / "val", **{theirs[1]: 1})
    for names, label in (None, 1), (theirs, 1), (theirs[::-1], 0):
        (samples,) = read(tmp_path, "val", class_names=names, dataset=dataset)
        assert sorted(samples.class_names) == [normalize("NFC", name) for name in classes]
        assert samples.class_names[label] == classes[1]
        assert (samples.targets == label).any()
        for index in range(len(samples)):
            samples.open(index, 3)


def test_number_of_classes(tmp_path):
    write_classes(tmp_path / "folder", cat=2, dog=2)
    assert number_of_classes("folder", read(tmp_path / "folder", "train", class_names=None)) == 2
    write_image(tmp_path / "a.jpg")
    (tmp_path / "val_list.txt").write_text("a.jpg 2\n")
    (tmp_path / "train_list.txt").write_text("a.jpg 999\n")
    for split in ("train", "val"):
        listed = read(tmp_path, split, class_names=None, dataset="imagenet2012")
        assert number_of_classes("imagenet2012", listed) == 1000
    with (tmp_path / "val_list.txt").open("a") as file:
        file.write("a.jpg 1000\n")
    with refused(r"label 1000, .*MODEL\.NUM_CLASSES.* 1001"):
        read(tmp_path, "val", class_names=None, dataset="imagenet2012")
