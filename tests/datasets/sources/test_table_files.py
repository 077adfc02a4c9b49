"""Tables by their content: first lines, ids, tables that are joined, and unrelated tables near the images."""

import pytest
from conftest import config_for, line_of, refused, told
from source_helpers import classes_of, groups_apart, labels_of, options, read_splits, tree, typed, write_table

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


CAMERAS = [f"site{n // 20}/100RECNX/IMG_{n:04}.JPG" for n in range(40)]
SPECIES = ["Vulpes vulpes", "Capreolus capreolus"]


def write_camtrap(root, observations):
    """Media and observations of two cameras as Camtrap DP has them."""
    tree(root, *(name.replace("JPG", "jpg") for name in CAMERAS))
    for name in CAMERAS:
        (root / name.replace("JPG", "jpg")).rename(root / name)
    media = [f"m{n},d{n // 20},{name},{name.rpartition('/')[2]}" for n, name in enumerate(CAMERAS)]
    write_table(root / "media.csv", media, "mediaID,deploymentID,filePath,fileName")
    header = "observationID,deploymentID,mediaID,eventID,observationLevel,scientificName,count"
    write_table(root / "observations.csv", observations, header)
    return options(root, dataset="folder")


def test_a_table_that_is_joined_has_the_labels(tmp_path):
    """The question types the join: rows of events have no image; two animals of a species are one label."""
    rows = [f"o{n},d{n // 20},m{n},e{n // 4},media,{SPECIES[n // 4 % 2]},1" for n in range(40)]
    rows += ["o98,d1,,e9,event,Sus scrofa,2", f"o99,d0,m3,e0,media,{SPECIES[0]},1"]
    given = write_camtrap(tmp_path, rows)
    of_table, of_folders = typed(line_of(read_splits, given), given)
    expected = {name: SPECIES[n // 4 % 2] for n, name in enumerate(CAMERAS)}
    assert classes_of(*read_splits(of_table)) == expected
    assert len(read_splits(of_folders)[0].class_names) == 2
    train, val = read_splits(of_table.model_copy(update={"groups": "eventID"}))
    assert groups_apart(train, val) == (8, 2)
    assert classes_of(train, val) == expected


def test_rows_without_a_joined_row_are_counted_and_several_species_are_labels(tmp_path):
    rows = [f"o{n},d{n // 20},m{n},e{n},media,{SPECIES[n % 2]},1" for n in range(38)]
    write_camtrap(tmp_path, [*rows, f"o98,d0,m0,e0,media,{SPECIES[1]},1"])
    columns = {"path": "filePath", "label": "scientificName", "join": {"file": "observations.csv", "on": "mediaID"}}
    given = options(tmp_path / "media.csv", dataset="csv", columns=columns)
    assert "DATA.MULTI_LABEL=true" in line_of(read_splits, given)
    train, val = read_splits(given.model_copy(update={"multi_label": True}))
    (note,) = told(train.notes, "left out", "warning")
    assert note.startswith("2 rows")
    counts = sum(samples.targets.sum(axis=0) for samples in (train, val))
    assert dict(zip(train.class_names, counts.tolist(), strict=True)) == {SPECIES[0]: 19, SPECIES[1]: 20}
    wrong = {**columns, "join": {"file": "observations.csv", "on": "id"}}
    with refused("has no column 'id'"):
        read_splits(options(tmp_path / "media.csv", dataset="csv", columns=wrong))
    with refused("give {file: TABLE, on: COLUMN}"):
        config_for("-opts", "DATA.COLUMNS={join: {file: observations.csv}}")


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
