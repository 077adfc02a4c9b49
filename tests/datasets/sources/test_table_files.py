"""Tables by their content: first lines, ids, tables that are joined, and unrelated tables near the images."""

import pytest
from conftest import line_of, refused
from source_helpers import classes_of, labels_of, options, read_splits, tree, typed, write_table

IMAGES = [f"i{number:02}.jpg" for number in range(12)]
ROWS = [f"i{number:02},{'ab'[number % 2]},{'cd'[number // 6]}" for number in range(12)]


@pytest.mark.parametrize(
    "name, lines, problem",
    [
        ("all.txt", ["file\tlabel", *(row[:5].replace(",", "\t") for row in ROWS)], ""),
        ("all.txt", ["image,species,family", *ROWS], ""),
        ("all.txt", [f"{row[:3]}.jpg {number % 2}" for number, row in enumerate(ROWS)], ""),
        ("all.csv", ["sep=;", "file;label;x", *(row.replace(",", ";") for row in ROWS)], ""),
        ("all.csv", ['"sep=|"', "file|label", *(row[:5].replace(",", "|") for row in ROWS)], ""),
        ("all.csv", ["file,label,label", *ROWS], "the labels are 'label' or 'label.1'"),
        ("all.csv", ROWS, "has no header, but the row ['i00', 'a', 'c']"),
    ],
)
def test_first_lines(name, lines, problem, tmp_path):
    """Names of columns in a .txt, Excel's separator, two columns of a name, ids without names of columns."""
    tree(tmp_path, *IMAGES)
    (tmp_path / name).write_text("\n".join(lines))
    given = options(tmp_path / name, dataset="csv")
    if problem:
        message = line_of(read_splits, given)
        assert problem in message
        if "-opts" not in message:
            return
        (given,) = typed(message, given)
    names = ["0", "1"] if " 0" in lines[0] else ["a", "b"]
    assert classes_of(*read_splits(given)) == {image: names[number % 2] for number, image in enumerate(IMAGES)}


def test_an_id_of_two_images_is_refused_unless_it_is_a_path_or_a_broken_link(tmp_path):
    tree(tmp_path, *IMAGES, "i00.png")
    for first, problem in (("i00", "all.csv:2: 'i00' is .jpg and .png; write the ending"), ("i00.png", "")):
        write_table(tmp_path / "all.csv", [f"{first},a", *(row[:5] for row in ROWS[1:])], "id,label")
        given = options(tmp_path / "all.csv", dataset="csv")
        if problem:
            assert problem in line_of(read_splits, given)
        else:
            assert sorted(labels_of(*read_splits(given))) == ["i00.png", *IMAGES[1:]]
    (tmp_path / "i00.png").unlink()
    (tmp_path / "i00.png").symlink_to("gone")
    write_table(tmp_path / "all.csv", [row[:5] for row in ROWS], "id,label")
    assert sorted(labels_of(*read_splits(given))) == IMAGES


def test_labels_in_a_table_that_shares_a_column_are_a_question(tmp_path):
    """One that is unrelated to the images and has no column of labels is none, and is not read; nor are the labels of
    other images, and one of a sample submission for all.
    """
    tree(tmp_path, *(f"site{n // 20}/{n}.jpg" for n in range(40)))
    write_table(tmp_path / "media.csv", [f"m{n},site{n // 20}/{n}.jpg" for n in range(40)], "mediaID,filePath")
    write_table(tmp_path / "trips.csv", [f"m{n},{n}" for n in range(40)], "mediaID,fare")
    write_table(tmp_path / "sample.csv", [f"m{n},a" for n in range(40)], "mediaID,species")
    write_table(tmp_path / "train.tsv", [f"x{n}\t{'ab'[n % 2]}" for n in range(40)], "mediaID\tspecies")
    given = options(tmp_path, dataset="folder")
    assert read_splits(given)[0].class_names == ["site0", "site1"]
    write_table(tmp_path / "seen.csv", [f"m{n},{'ab'[n % 2]}" for n in range(40)], "mediaID,species")
    message = line_of(read_splits, given)
    assert "media.csv and seen.csv, which share the column 'mediaID'" in message
    assert "docs/data.md#joined-tables" in message
    (of_folders,) = typed(message, given)
    assert read_splits(of_folders)[0].class_names == ["site0", "site1"]


@pytest.mark.parametrize("path", ["a\\x{}.jpg", "b/x{}.jpg"])
def test_wrong_paths_are_counted_with_their_fix(path, tmp_path):
    tree(tmp_path, *(f"a/{n}.jpg" for n in range(20)))
    write_table(tmp_path / "all.csv", [f"{path.format(n)},{n % 2}" for n in range(20)], "image,label")
    message = str(refused_by(tmp_path / "all.csv"))
    assert "(18 of 18 are none)" in message
    assert "(2 of 2 are none)" in message
    assert "DATA.IMAGE_ROOT" in message


def refused_by(file):
    with refused("is not a file") as error:
        read_splits(options(file, dataset="csv"))
    return error.value
