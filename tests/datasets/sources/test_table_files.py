"""Tables by their content: ids, tables that share a column, and wrong paths."""

from conftest import line_of, refused
from pytest import mark
from source_helpers import expand, labels_of, options, read, rows_of, tree, typed, write_rows, write_table

IMAGES = expand("i{00..11}.jpg")


def test_an_id_of_two_images_is_refused_unless_it_is_a_path_or_a_broken_link(tmp_path):
    table = tmp_path, IMAGES, "all.csv", "id,label", "{stem},{label}"
    file = write_rows(*table, label="ab")
    tree(tmp_path, "i00.png")
    assert "all.csv:2: 'i00' is .jpg and .png; write the ending" in line_of(read, file)
    write_table(file, ["i00.png,a", *rows_of("{stem},{label}", IMAGES[1:], label="ba")], "id,label")
    assert sorted(labels_of(*read(file))) == ["i00.png", *IMAGES[1:]]
    (tmp_path / "i00.png").unlink()
    (tmp_path / "i00.png").symlink_to("gone")
    write_rows(*table, label="ab")
    assert sorted(labels_of(*read(file))) == IMAGES


def test_labels_in_a_table_that_shares_a_column_are_a_question(tmp_path):
    """One that is unrelated to the images and has no column of labels is none, and is not read; nor are the labels of
    other images, and one of a sample submission for all.
    """
    images = tmp_path, "site0/{0..19}.jpg & site1/{20..39}.jpg"
    write_rows(*images, "media.csv", "mediaID,filePath", "m{n},{path}")
    write_rows(*images, "trips.csv", "mediaID,fare", "m{n},{n}")
    write_rows(*images, "sample.csv", "mediaID,species", "m{n},a")
    write_rows(*images, "train.tsv", "mediaID\tspecies", "x{n}\t{label}", label="ab")
    given = options(tmp_path, dataset="folder")
    assert read(given)[0].class_names == ["site0", "site1"]
    write_rows(*images, "seen.csv", "mediaID,species", "m{n},{label}", label="ab")
    message = line_of(read, given)
    assert "media.csv and seen.csv, which share the column 'mediaID'" in message
    assert "docs/data.md#joined-tables" in message
    (of_folders,) = typed(message, given)
    assert read(of_folders)[0].class_names == ["site0", "site1"]


@mark.parametrize("path", ["a\\x{name}", "b/x{name}"])
def test_wrong_paths_are_counted_with_their_fix(path, tmp_path):
    file = write_rows(tmp_path, "a/{0..19}.jpg", "all.csv", "image,label", f"{path},{{label}}", label="01")
    with refused(r"\(18 of 18 are none\)[^\n]*DATA.IMAGE_ROOT.*\n.*\(2 of 2 are none\)"):
        read(file)
