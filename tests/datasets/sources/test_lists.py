"""Text lists and CSV tables of images."""

import os
import shutil

from conftest import config_for, each_row, refused
from source_helpers import assert_refused, names_of, options, read, tree, write_classes, write_image, write_table

from datasets.reading import unlabelled
from datasets.sources.listed.lists import Lists, Tables
from datasets.sources.source import Wanted, source_class


def test_imagenet_lists(tmp_path):
    """Their paths have any bytes."""
    name = os.fsdecode(b"train/a b/b\xe9\xff \xc3\xa9.JPEG")
    write_image(tmp_path / name)
    (tmp_path / "train_list.txt").write_bytes(os.fsencode(f"{name} 3\n\n  \ntrain/missing.JPEG\t 0\r\n"))
    samples = Lists(Wanted(options(tmp_path))).read("train")
    assert names_of(samples) == [name, "train/missing.JPEG"]
    assert samples.targets.tolist() == [3, 0]
    assert samples.class_names == ["0", "1", "2", "3"]
    assert samples.open(0, 1).pixels.shape == (1, 9, 12)


def test_paths_through_another_folder_may_end_in_the_data_folder(tmp_path):
    """../input/256_ObjectCategories/... in input/data.csv: relative to a sibling of the data folder."""
    tree(tmp_path, "input/images/a.jpg", "src/")
    table = tmp_path / "input/data.csv"
    text = "image_path,target\n{},0\n{}/images/b.jpg,1\n"
    for first, root in (("../input/images/a.jpg", None), ("../input/images/a.jpg", "src"), ("a.jpg", "input/images")):
        table.write_text(text.format(first, tmp_path / "input"))
        given = options(table, image_root=root and str(tmp_path / root), val_fraction=0.5)
        samples = Tables(Wanted(given)).read("all")
        assert os.path.isfile(samples.name(0))
        assert not [note for note in samples.notes if note.kind == "warning"]
    table.write_text(text.format("images/a.jpg", "../other"))
    assert_refused(lambda: Tables(Wanted(options(table))).read("all"), "data.csv:3", "DATA.IMAGE_ROOT")


def test_paths_with_commas_and_ids_without_ending(tmp_path):
    """As in a table of Kaggle; 'c.1' is a file without ending, and has precedence over c.1.png."""
    for name in ("a, b/a.JPG", "b.2.png", "c.1.png"):
        write_image(tmp_path / name)
    shutil.copy(tmp_path / "c.1.png", tmp_path / "c.1")
    table = tmp_path / "train.csv"
    table.write_text('id,size,breed,age\n"a, b/a",1,pug,3\n\nb.2,1, boxer,3\nc.1,1,pug,3\ngone,1,pug,3\n')
    argv = ["-dataset=csv", f"-data_path={table}", "-opts", "DATA.COLUMNS={path: id, label: breed}"]
    given = config_for(*argv).data
    samples = Tables(Wanted(given)).read("all")
    assert names_of(samples) == ["a, b/a.JPG", "b.2.png", "c.1", "gone"]
    assert [samples.class_names[label] for label in samples.targets] == ["pug", "boxer", "pug", "pug"]
    assert names_of(unlabelled(str(table), given)) == names_of(samples)


# Test images


UNLABELLED = """
dataset | file | lines
folder | test/x.jpg | x
csv | test.csv | image_path x.jpg
imagenet2012 | test_list.txt | x
"""


@each_row(UNLABELLED)
def test_test_images_without_labels_are_not_evaluated(dataset, file, lines, tmp_path):
    tree(tmp_path, "train/{cat,dog}")
    write_table(tmp_path / "train.csv", ["a.jpg,0"])
    write_table(tmp_path / "train_list.txt", ["a.jpg 0"], "")
    write_table(tmp_path / file, lines.split(), "")
    has_test, note = source_class(dataset)(Wanted(options(tmp_path))).find_test()
    assert not has_test
    assert str(tmp_path / file.split("/")[0]) in note


def test_a_test_split_that_is_asked_for_must_have_images_with_labels(tmp_path):
    write_classes(tmp_path, cow=2, pig=2)
    for dataset in ("csv", "folder", "imagenet2012", "digits"):
        with refused(f"-split test: {tmp_path}"):
            read(tmp_path, "test", dataset=dataset, predicts=True)
    write_classes(tmp_path, test=3)
    for split in ("train", "all", "test"):
        with refused(rf"{tmp_path}.*'test \(3\)', 'cow \(2\)'"):
            read(tmp_path, split, dataset="folder")
