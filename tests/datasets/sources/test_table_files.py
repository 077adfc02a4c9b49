"""Tables by their content: first lines, ids, tables that are joined, and unrelated tables near the images."""

from conftest import line_of, refused
from pytest import mark
from source_helpers import expand, labels_of, options, read, rows_of, tree, typed, write_table

IMAGES = expand("i{00..11}.jpg")
WORDS = {"label": "ab", "number": "01", "kind": ["c"] * 6 + ["d"] * 6}
ROWS = rows_of("{stem},{label},{kind}", IMAGES, **WORDS)


def test_an_id_of_two_images_is_refused_unless_it_is_a_path_or_a_broken_link(tmp_path):
    tree(tmp_path, *IMAGES, "i00.png")
    for first, problem in (("i00", "all.csv:2: 'i00' is .jpg and .png; write the ending"), ("i00.png", "")):
        write_table(tmp_path / "all.csv", [f"{first},a", *(row[:5] for row in ROWS[1:])], "id,label")
        given = options(tmp_path / "all.csv", dataset="csv")
        if problem:
            assert problem in line_of(read, given)
        else:
            assert sorted(labels_of(*read(given))) == ["i00.png", *IMAGES[1:]]
    (tmp_path / "i00.png").unlink()
    (tmp_path / "i00.png").symlink_to("gone")
    write_table(tmp_path / "all.csv", [row[:5] for row in ROWS], "id,label")
    assert sorted(labels_of(*read(given))) == IMAGES


def test_labels_in_a_table_that_shares_a_column_are_a_question(tmp_path):
    """One that is unrelated to the images and has no column of labels is none, and is not read; nor are the labels of
    other images, and one of a sample submission for all.
    """
    paths = expand("site0/{0..19}.jpg & site1/{20..39}.jpg")
    tree(tmp_path, *paths)
    write_table(tmp_path / "media.csv", rows_of("m{n},{path}", paths), "mediaID,filePath")
    write_table(tmp_path / "trips.csv", rows_of("m{n},{n}", paths), "mediaID,fare")
    write_table(tmp_path / "sample.csv", [f"m{n},a" for n in range(40)], "mediaID,species")
    write_table(tmp_path / "train.tsv", [f"x{n}\t{'ab'[n % 2]}" for n in range(40)], "mediaID\tspecies")
    given = options(tmp_path, dataset="folder")
    assert read(given)[0].class_names == ["site0", "site1"]
    write_table(tmp_path / "seen.csv", rows_of("m{n},{label}", paths, label="ab"), "mediaID,species")
    message = line_of(read, given)
    assert "media.csv and seen.csv, which share the column 'mediaID'" in message
    assert "docs/data.md#joined-tables" in message
    (of_folders,) = typed(message, given)
    assert read(of_folders)[0].class_names == ["site0", "site1"]


@mark.parametrize("path", ["a\\x{}.jpg", "b/x{}.jpg"])
def test_wrong_paths_are_counted_with_their_fix(path, tmp_path):
    tree(tmp_path, "a/{0..19}.jpg")
    write_table(tmp_path / "all.csv", [f"{path.format(n)},{n % 2}" for n in range(20)], "image,label")
    with refused("is not a file") as error:
        read(tmp_path / "all.csv", dataset="csv")
    for part in ("(18 of 18 are none)", "(2 of 2 are none)", "DATA.IMAGE_ROOT"):
        assert part in str(error.value)
