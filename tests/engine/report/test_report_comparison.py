"""The page that compares runs, and the script that writes pages."""

import re
import shutil

import pytest
from run_folders import add_split, make_evaluation_run, make_run, write_json, write_table
from test_report_page import Reader

from engine.report.page import write_comparison
from engine.run.tables import EPOCH_COLUMNS
from scripts.report import main
from utils.errors import UserError


def compare(*folders) -> tuple[Reader, list[str]]:
    path = folders[0].parent / "compare.html"
    problems = write_comparison(folders, path)
    return Reader(path.read_text(encoding="utf-8")), problems


def test_runs_are_compared_by_result_options_and_curves(tmp_path):
    one = make_run(tmp_path / "one", 3, ["TRAIN.BASE_LR=0.01"])
    two = make_run(tmp_path / "two & more", 5, ["TRAIN.BASE_LR=0.02", "SEED=3"])
    write_json(two / "result.json", {"top1": 51.0, "test": {"top1": 49.5}, "train_seconds": 3600.0})
    (two / "report.html").touch()
    page, problems = compare(one, two)
    assert problems == []
    assert (
        "two & more 51.00% top-1 5 of 300 49.50% top-1 1h00m 1,005 2.00 GB finished one 30.00% top-1 3 of 300 – 3m00s"
        in (page.text)
    )
    assert "SEED 3 0 TRAIN.BASE_LR 0.02 0.01" in page.text and "DATA.IMAGE_SIZE" not in page.text
    assert [tag["href"] for tag in page.all("a") if "report" in tag["href"]] == ["two%20%26%20more/report.html"]
    curves = re.findall(r'<polyline class="curve c(\d)" points="[^"]*" data-name="([^"]*)"', page.html)
    assert set(curves) == {("0", "two &amp; more"), ("1", "one")} and len(curves) % 2 == 0
    (validation,) = re.findall(r"<svg[^>]*><title[^>]*>Validation top-1<.*?</svg>", page.html, re.S)
    assert re.findall(r'data-y="([^"]*)"/>', validation) == ["10 20 30 40 50", "10 20 30"]


def test_an_evaluation_and_a_failed_run_are_compared_too(tmp_path):
    evaluation = make_evaluation_run(tmp_path / "evaluation")
    failed = make_run(tmp_path / "failed", 0, state="failed", message="out of memory " + "x" * 500)
    page, problems = compare(failed, evaluation, tmp_path / "missing")
    assert "evaluation 87.50%" in page.text and "failed: out of memory" in page.text
    assert len(problems) == 1 and "missing" in problems[0] and problems[0] in page.text
    assert "run images without a split images/s state" in page.text  # without columns that have no value
    assert page.text.index("run state failed failed:") < page.text.index("evaluation 87.50%")


def test_a_figure_of_the_test_images_is_not_ranked_among_those_of_the_validation(tmp_path):
    folders = [make_run(tmp_path / "trained")]
    for split in ("test", "val"):
        folders.append(make_evaluation_run(tmp_path / f"{split}-images"))
        add_split(folders[-1], split)
    page, _ = compare(*folders)
    assert "Training runs by validation top-1, the best first run best validation epoch" in page.text
    assert "Evaluations by top-1: of each split, the best first run validation test images/s state" in page.text
    assert "test-images – 87.50% top-1 5,000 finished val-images 87.50% top-1 – 5,000" in page.text


def test_runs_with_mean_ap_and_with_top1_have_a_table_each(tmp_path):
    several, one = make_run(tmp_path / "several"), make_run(tmp_path / "one", 5)
    rows = [{"epoch": epoch, "val_mean_ap": 40 + epoch, "val_loss": 1, "train_top1": 9 * epoch} for epoch in (1, 2)]
    write_table(several / "metrics.csv", EPOCH_COLUMNS, rows)
    write_json(several / "result.json", {"mean_ap": 42.0, "test": {"mean_ap": 41.0}})
    page, _ = compare(several, one)
    tables = page.text.index("by validation top-1"), page.text.index("by validation mean AP")
    assert tables[0] < tables[1] < page.text.index("several 42.00% mean AP 2 of 300 41.00% mean AP")
    assert "Validation mean AP" in page.text and "Training hit@1" in page.text
    assert "top-1 from mean AP" in page.text


def test_the_folder_of_a_prediction_is_left_out_with_a_line(tmp_path):
    prediction = make_evaluation_run(tmp_path / "predict-digits")
    shutil.rmtree(prediction / "evaluation")
    (prediction / "result.json").unlink()
    _, problems = compare(make_run(tmp_path / "run"), prediction)
    assert problems == [
        f"left out: {prediction}: is the folder of a prediction; its result is the table predictions.csv"
    ]
    with pytest.raises(UserError, match="is the folder of a prediction"):
        main([str(prediction)])


def test_without_a_run_the_error_says_what_to_give(tmp_path):
    with pytest.raises(UserError, match="no run found; give the folders of runs"):
        write_comparison([tmp_path], tmp_path / "compare.html")
    assert not list(tmp_path.iterdir())


def test_the_script_writes_the_page_of_one_run_or_a_comparison(tmp_path, capsys):
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    assert main([str(runs[0])]) == 0 and (runs[0] / "report.html").exists()
    (tmp_path / "compare.png").touch()
    assert main([str(path) for path in sorted(tmp_path.iterdir())]) == 0 and (tmp_path / "compare.html").exists()
    assert main([str(runs[0]), "-output", str(tmp_path / "other.html")]) == 0 and (tmp_path / "other.html").exists()
    assert capsys.readouterr().out.splitlines()[1] == f"Page: {tmp_path / 'compare.html'}"
    with pytest.raises(UserError, match=r"cannot be written .*; give another file with -output"):
        main([str(runs[0]), "-output", str(tmp_path / "no" / "page.html")])
    with pytest.raises(UserError, match="is a file"):
        main([str(tmp_path / "compare.png")])
