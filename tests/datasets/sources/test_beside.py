"""What is read of large tables near the images; test_known_sets.py and facts.txt have the tables beside folders."""

from pathlib import Path

from conftest import line_of
from pytest import mark
from source_helpers import expand, options, read, rows_of, tree, write_table

from datasets.sources.tables.columns import likely_columns
from datasets.sources.tables.files import open_table


def test_few_files_are_looked_for_in_the_folders_beside_a_table(tmp_path, monkeypatch):
    """A server's disk answers a thousand times a second."""
    tree(tmp_path, "c{0..39}/a.jpg")
    rows = rows_of("{path},u,v,w,s{place}", expand("{0..399}.jpg"), place="01")
    write_table(tmp_path / "x.csv", rows, "file,a,b,c,species")
    asked = []
    monkeypatch.setattr("os.path.isfile", asked.append)
    likely_columns(open_table(tmp_path / "x.csv", "auto"))
    assert len(asked) <= 2500


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


@mark.skipif(not Path("/proc/self/io").exists(), reason="counts the bytes read as Linux does")
@mark.parametrize("is_last", [None, False, True], ids=["unrelated", "first rows", "last rows"])
def test_a_large_table_near_the_images_is_read_if_a_part_of_it_names_them(is_last, tmp_path):
    names = expand("{a,b}/DSC{0..199}.jpg")
    given = options(tree(tmp_path / "photos", *names), dataset="folder")
    rows = [f"2026-01-{n % 28:02},{n}.5,taxi,{n * 7}" for n in range(60_000)]
    if is_last is not None:
        labels = rows_of("2026-01-01,photos/{path},{label},1", names, label=["benign", "malignant"])
        rows = rows[:8000] + labels if is_last else labels + rows[:8000]
    file = tmp_path / "trips.csv"
    write_table(file, rows, "day,image,label,fare")
    if is_last is None:
        read(given)  # imports modules
        before = bytes_read()
        assert len(read(given)[0].class_names) == 2
        assert bytes_read() - before < file.stat().st_size / 4
    else:
        assert "trips.csv" in line_of(read, given)
