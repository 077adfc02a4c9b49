"""All tables of runs, evaluations, predictions and comparisons: pandas reads each column of figures as numbers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from conftest import ROOT, TINY_VIT, cells_of, cli, each_value, evaluate, run_here, train
from pytest import fixture, importorskip, mark
from test_evaluation_files import files_for, read_table
from test_operating_point import drawn, point_of
from torch import nn

from engine.evaluation.suspects import COLUMNS as SUSPECT_COLUMNS
from scripts import report
from tests.datasets.sources.source_helpers import write_patients

pytestmark = mark.usefixtures("few_penalties")
# The columns of texts, by file; all others are of figures
TEXTS = dict(
    cells_of(r"""
confusion.csv | true \ predicted
confused_pairs.csv | true, predicted
mistakes.csv | path, true, predicted
per_image.csv | path, class, predicted_class
counts.csv | group, label
predictions.csv | path, class_1, class_2, decision, label, target, error
suspects.csv | correction, split, path, label, predicted
groups.csv | group, decision, metric
runs.csv | name, status, options, split, best_metric, images_digest
metrics.csv |
coverage.csv |
""")
)


@fixture
def tables(tmp_path, capsys) -> list[Path]:
    """Of two folds of a probe with groups and an operating point."""
    write_patients(tmp_path / "data", (["ill"] * 4 + ["well"] * 4) * 12)
    keys = [*TINY_VIT, "MODEL.NUM_CLASSES=2", "MODEL.TUNE=probe", "EVAL.SUSPECTS=true", r"DATA.GROUPS=(P\d+)_"]
    keys += ["EVAL.OPERATING_POINT={class: ill, sensitivity: 0.8}", "DATA.FOLDS=2"]
    flags = cli(f"-dataset=folder -data_path={tmp_path / 'data'} -batch_size=8 -num_workers=0")
    output = tmp_path / "out"
    folds = [
        train([*flags, f"-output={output}", f"-name=fold{fold}", "-opts", *keys, f"DATA.FOLD={fold}"])
        for fold in range(2)
    ]
    evaluate(tmp_path / "eval", f"-resume={folds[0]}")
    for name, more in (("ranked", ["-threshold=0.6"]), ("wide", ["-format=wide"])):
        run_here("-predict", f"-resume={folds[0]}", f"-output={tmp_path / name}", *more)
    capsys.readouterr()
    report.main([*map(str, folds), "-csv"])
    (tmp_path / "runs.csv").write_text(capsys.readouterr().out)
    return [*tmp_path.rglob("*.csv")]


@mark.slow
def test_each_column_of_figures_of_a_run_is_read_as_numbers(tables):
    assert {*TEXTS, "per_class.csv", "calibration.csv", "curves.csv"} == {file.name for file in tables}
    assert_numbers(tables)


NUMBERS = """
classes | multi_label | number
2 | false | 14
3 | false | 14
3 | true | 8
"""


@each_value(NUMBERS)
def test_each_column_of_an_evaluation_is_documented_and_its_figures_are_numbers(
    classes, multi_label, number, tmp_path, cpu
):
    """A column stands in the row of its file, and each key of the summary on the page."""
    docs = (ROOT / "docs/evaluation.md").read_text()
    described = dict(re.findall(r"^\| `(\w+\.csv)` \|(.*)", docs, re.MULTILINE))
    results = drawn(0, classes, multi_label)
    point = point_of(specificity=0.5).model_copy(update={"label": classes - 1})
    results = replace(results, groups=np.arange(120).astype(str), point=point)
    files = files_for(tmp_path, ["well", "ill", "-1"][:classes], [f"{one}.png" for one in range(120)], cpu)
    summary = files.write(results.metrics(), results, nn.Flatten(), epoch=1, split="val", checkpoint="best.pth")
    names = {*summary, *summary["operating_point"], *summary["class_auroc"]}
    assert [name for name in names if f"`{name}`" not in docs] == []
    assert summary["class_auroc"]["class"] == ["ill", "-1"][classes - 2]  # of the point
    assert {label for label, *_ in read_table(tmp_path / "curves.csv")[1:]} == {str(classes - 1)}
    tables = [*tmp_path.rglob("*.csv")]
    assert_numbers(tables)
    headers = {file.name: read_table(file)[0] for file in tables if file.name != "confusion.csv"}
    assert len(tables) - len([*tmp_path.rglob("confusion.csv")]) == number
    for file, header in headers.items():
        assert [name for name in header if f"`{name}`" not in described[file]] == []
    suspects = (ROOT / "docs/transfer.md").read_text()
    assert [name for name in SUSPECT_COLUMNS if f"`{name}`" not in suspects] == []


def assert_numbers(tables: list[Path]):
    pandas = importorskip("pandas")
    for file in tables:
        read = pandas.read_csv(file)
        texts = {name for name in read if not pandas.api.types.is_numeric_dtype(read[name])}
        assert len(read)
        assert texts <= {*TEXTS.get(file.name, "class").split(", ")}, file
