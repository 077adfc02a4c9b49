"""`report.py A B -mistakes`: the images that each of two models gets wrong, and McNemar's test."""

import numpy as np
import pytest
from run_folders import add_evaluation, make_run, update_json, write_facts, write_table
from scipy.stats import binomtest

from engine.report.tables import mcnemar
from engine.run.facts import TrainingData
from scripts.report import main
from utils.errors import UserError
from utils.tables import read_rows

NAMES = ("cat", "=dog", "fox")
COLUMNS = ("index", "path", "checksum", "label", "predicted")


def make_evaluated(folder, predicted, labels, digest="d", options=()):
    """A run with these predictions; a label of -1 is of an unreadable image."""
    make_run(folder, options=options)
    write_facts(folder, [TrainingData(1437, len(labels), 0, 3, 3, digest)])
    add_evaluation(folder, NAMES)
    images = [
        dict(zip(COLUMNS, (index, f"{index}.png", 7 * index, label, one), strict=True))
        for index, (label, one) in enumerate(zip(labels, predicted, strict=True))
    ]
    write_table(folder / "evaluation/per_image.csv", COLUMNS, images)
    return folder


@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (2, 9), (9, 30), (480, 520), (0, 900), (250_000, 252_000)])
def test_p_is_that_of_scipy(pair):
    expected = binomtest(pair[0], sum(pair)).pvalue if any(pair) else 1
    assert mcnemar(*pair) == pytest.approx(expected, rel=1e-7)


def test_the_tables_count_each_image_once(tmp_path, capsys):
    """12 cats that only B gets right, 6 dogs that only A gets right, a fox per kind; each could not read one image."""
    labels = np.array([0] * 12 + [1] * 6 + [2] * 6)
    of_a = np.array([1] * 12 + [1] * 6 + [2, 2, 0, 0, 2, 2])
    of_b = np.array([0] * 12 + [2] * 6 + [2, 1, 2, 1, 2, 2])
    labels_a, labels_b = labels.copy(), labels.copy()
    labels_a[22] = labels_b[23] = -1
    folders = make_evaluated(tmp_path / "z", of_a, labels_a), make_evaluated(tmp_path / "b", of_b, labels_b)
    assert main([*map(str, folders), "-mistakes"]) == 0
    total, *classes = read_rows(tmp_path / "compare-mistakes-by-class.csv")
    assert [*total.values()][:7] == ["all", "22", "1", "13", "7", "1", f"{binomtest(13, 20).pvalue:.3g}"]
    p = 2 * 0.5**12, 2 * 0.5**6
    corrected = 3 * p[0], 2 * p[1], 1  # Holm: times 3, 2, 1
    expected = ["cat 12 0 12 0 0", "'=dog 6 0 0 6 0", "fox 4 1 1 1 1"]
    assert [" ".join([*row.values()][:6]) for row in classes] == expected
    figures = [[float(row[key]) for row in classes] for key in ("p", "p (Holm)")]
    assert figures[0] == pytest.approx([*p, 1], rel=1e-2) and figures[1] == pytest.approx(corrected, rel=1e-2)
    assert f"only A ({folders[0]}) wrong" in total
    images = read_rows(tmp_path / "compare-mistakes.csv")
    assert [*images[0]][3:5] == [f"predicted by A ({folders[0]})", f"predicted by B ({folders[1]})"]
    assert [row["wrong"] for row in images] == ["A"] * 12 + ["B"] * 6 + ["B", "A", "both"]
    assert [int(row["index"]) for row in images] == [*range(18), 19, 20, 21]
    assert [*images[12].values()] == ["12", "12.png", "'=dog", "'=dog", "fox", "B"]
    printed = capsys.readouterr().out
    assert "Mistakes of A, " + str(folders[0]) in printed and "cat    12      0           12" in printed


def test_what_cannot_be_compared_is_one_line(tmp_path):
    labels = [0, 1, 2]
    one = make_evaluated(tmp_path / "one", labels, labels)

    def problem(*folders, more=()) -> str:
        with pytest.raises(UserError) as error:
            main([*map(str, folders), "-mistakes", *more])
        assert not (tmp_path / "compare-mistakes.csv").exists() and len(str(error.value).splitlines()) == 1
        return str(error.value)

    assert "two runs" in problem(one) and "two runs" in problem(one, one, one)
    assert "one folder" in problem(one, one / ".." / "one")
    assert "-csv" in problem(one, one, more=["-csv"])
    assert "other images" in problem(one, make_evaluated(tmp_path / "digest", labels, labels, "other"))
    assert "MULTI_LABEL" in problem(
        make_evaluated(tmp_path / "m", labels, labels, options=["DATA.DATASET=csv", "DATA.MULTI_LABEL=true"]), one
    )
    for name, old, new, text in (
        ("order", "2,2.png,14", "2,2.png,15", "image 2 is another"),
        ("short", "2,2.png,14,2,2\r\n", "", "has 2 of 3 images"),
        ("inside", "2,2.png,14,2,2\r\n", "2,2.p", "has 2 of 3 images"),
        ("header", "index,path,checksum,label,predicted\r\n", "", "column or class 'checksum'"),
        ("label", "14,2,2", "14,2,9", "per_image.csv: is damaged"),
        ("text", "14,2,2", "14,x,2", "per_image.csv: is damaged"),
        ("column", "checksum", "crc", "per_image.csv: is damaged"),
        ("bytes", "2.png", "\udcff.png", "per_image.csv: is damaged"),
    ):
        other = make_evaluated(tmp_path / name, labels, labels)
        file = other / "evaluation/per_image.csv"
        content = file.read_bytes().decode()
        assert old in content
        file.write_bytes(content.replace(old, new).encode(errors="surrogateescape"))
        assert text in problem(one, other)
    file.write_bytes(b"")
    assert "has 0 of 3 images" in problem(one, other) and "has 0 of 3 images" in problem(other, one)
    file.unlink()
    assert "per_image.csv: is missing" in problem(one, other)
    update_json(other / "run.json", facts={})
    assert "run.json: lacks" in problem(one, other) and "run.json: lacks" in problem(other, one)
