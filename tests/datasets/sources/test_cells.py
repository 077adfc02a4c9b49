"""Cells in columns of labels: 0, 1, or named by DATA.COLUMNS; every advice is typed."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import each_row, line_of, told
from pytest import fixture, mark, raises
from source_helpers import IMAGE, labels_of, options, read, typed, write_rows

from configs.yaml_io import parse_value
from datasets.sources.checks import digest_of
from datasets.sources.samples import UNKNOWN

NAMES = ["ant", "bee", "cat"]
PLAIN = ["1,0,0", "0,1,0", "0,0,1", "1,0,0"] * 3
LISTED = "{label: [ant, bee, cat]%s}"


@fixture
def table(tmp_path):
    """Writes a table of three labels, whose last rows have these cells, and its images."""

    def write(*last):
        cells = [*PLAIN, *last]
        images = [f"{number}.png" for number in range(len(cells))]
        return write_rows(tmp_path, images, "all.csv", "image,ant,bee,cat", "{path},{cells}", cells=cells)

    return write


def read_labels(path, columns=None, multi_label=True, **values):
    columns = parse_value(columns) if isinstance(columns, str) else columns
    return read(path, columns=columns, multi_label=multi_label, **values)


# Cells of a row, more of DATA.COLUMNS, the target
MEANT = """
cells | more | target
TRUE,False,1.0 | | 1 0 1
yes,No,0 | | 1 0 0
0.97,1e-05,0.5 | , threshold: 0.5 | 1 0 1
9,0.99,1 | , threshold: 1 | 1 0 1
-1,,NaN | , cells: {'-1': 1, '': 0, nan: 1} | 1 0 1
-1.0,.3,2 | , cells: {-1: 1}, threshold: 1 | 1 0 1
1,0,x | , cells: {0: 1, 1: 0, X: 1} | 0 1 1
-1.0,,nan | , cells: {-1: null, '': 0, nan: null} | -2 0 -2
u,0.2,.7 | , cells: {U: null}, threshold: 0.5 | -2 0 1
"0,97","1,0","0,5" | , cells: {'0,5': null}, threshold: 0.6 | 1 1 -2
true,10%,positive | , cells: {10%: 0, Positive: 1} | 1 0 1
-1,0.2,0.7 | , threshold: 0.5, cells: {-1: 0} | 0 0 1
"""


@each_row(MEANT)
def test_a_cell_is_0_or_1_or_it_is_named(cells, more, target, table):
    splits = read_labels(table(cells), LISTED % more)
    assert labels_of(*splits)["12.png"] == [*map(int, target.split())]
    assert splits[0].class_names == NAMES
    assert len(told(splits[0].notes, "yes is 1")) == ("yes" in cells)


# The last rows, parts of the message, commands in it, whether the columns are advised if they are not given
UNREAD = """
last | parts | ways | is_advised
0.97,1e-05,1e-05 | all.csv:14: 3 of 39 cells; '1e-05' (2) | 2 | true
9,10,8 & 9,10,8 & 9,10,8 & 9,10,8 & 9,10,8 | 15 of 51 cells; '10' (5); "threshold": 5.0 | 2 | false
-1,,2 & ,,0 | 5 of 42 cells; '' (3); '-1' (1) | 2 | true
nan,t,0 | 2 of 39 cells; 't' (1) | 1 | false
yes,no,maybe | 1 of 39 cells | 1 | false
0.5,high,low | 3 of 39 cells; "threshold": 0.5; "high" | 2 | false
0.1,0.2,0.3 & 0.4,0.6,0.7 & 0.8,0.9,0.95 | 9 of 45 cells; "threshold": 0.5 | 1 | true
"""


@mark.parametrize("multi_label", [True, False])
@each_row(UNREAD)
def test_other_cells_are_counted_and_each_way_on_works(last, parts, ways, is_advised, multi_label, table):
    rows = last.split(" & ")
    file = table(*rows)
    columns = parse_value(LISTED % "")
    line = line_of(read_labels, file, columns, multi_label)
    assert len(line) < 800
    assert all(part in line for part in parts.split("; "))
    given = typed(line, options(file, multi_label=multi_label, columns=columns))
    assert len(given) == int(ways)
    for way in given:
        assert way.multi_label == (multi_label or "cells" in way.columns)
        splits = read_labels(file, way.columns)
        assert splits[0].class_names == NAMES
        assert sum(map(len, splits)) == len(PLAIN) + len(rows)
    for way in typed(line_of(read_labels, file, None, False), options(file)) if is_advised == "true" else ():
        assert read_labels(file, way.columns)[0].class_names == NAMES


def test_parquet_and_json_lines(tmp_path):
    """Their cells are of other types: truth values, numbers, null."""
    cells = {"ant": [True, False] * 10, "bee": [1.0, 0.25] * 10, "cat": [None, 1] * 10}
    words = {"ant": ["true", "false"], "bee": [1.0, 0.25], "cat": ["null", 1]}
    row = '{{"image": "{path}", "ant": {ant}, "bee": {bee}, "cat": {cat}}}'
    write_rows(tmp_path, "{0..19}.png", "all.jsonl", "", row, **words)
    (tmp_path / "hub").mkdir()
    pq.write_table(pa.table({"image": [IMAGE] * 20} | cells), tmp_path / "hub/all.parquet")
    for file, first in ((tmp_path / "all.jsonl", "0.png"), (tmp_path / "hub/all.parquet", "all.parquet:0")):
        line = line_of(read_labels, file, LISTED % "")
        assert "20 of 60 cells" in line
        columns = LISTED % ", threshold: 0.5, cells: {'': 0}"
        splits = read_labels(file, columns)
        assert splits[0].class_names == NAMES
        assert labels_of(*splits)[first] == [1, 1, 0]


def test_unknown_cells_are_logged_and_stay_unknown(table):
    """Merged classes: one label is enough; else one unknown cell; the digest of the data is another one."""
    file = table("?,1,0", "?,0,0", "?,?,1", "0,0,1")
    columns = LISTED % ", cells: {'?': null}"
    splits = read_labels(file, columns)
    shown = "\n".join(told(splits[0].notes, "that are unknown"))
    assert sum(map(int, re.findall(r"'ant' (\d+)", shown))) == 3
    assert sum(map(int, re.findall(r"'bee' (\d+)", shown))) == 1
    assert sum(samples.class_counts(3) for samples in splits).tolist() == [6, 4, 5]
    merged = read_labels(file, columns, rename={"ant": "insect", "bee": "insect"})
    found = [labels_of(*merged)[f"{number}.png"] for number in (12, 13, 14, 15)]
    assert found == [[1, 0], [UNKNOWN, 0], [UNKNOWN, 1], [0, 1]]
    as_zero = read_labels(file, columns.replace("null", "0"))
    assert digest_of(as_zero[0]) != digest_of(splits[0])


WRONG = ["{cells: {x: 1}}", "{label: ant, threshold: 1}", LISTED % ", cells: {x: 2}", LISTED % ", cells: 3"]


@mark.parametrize("columns", [*WRONG, LISTED % ", threshold: high"])
def test_wrong_options(columns, table):
    with raises(ValueError, match=r"COLUMNS: (cells|threshold)"):
        read_labels(table(), columns)


def test_a_threshold_does_not_decide_about_minus_one(table):
    """-1 is unknown in many tables."""
    assert "'-1' (1)" in line_of(read_labels, table("-1,0.2,0.7"), LISTED % ", threshold: 0.5")
