"""compare_runs.py: the table, CSV and picture of finished, unfinished and failed runs."""

import csv
import io
import json
import os
import socket

import pytest
from conftest import train

from configs.reading.command_line import parse_command_line, to_yaml
from engine.run.tables import EPOCH_COLUMNS
from scripts.compare_runs import main, options_by_run, read_runs, sort_runs
from utils.errors import UserError


def make_run(folder, scores, options=(), result=None, column="val_top1", **status):
    """A folder as a run writes it. scores: of the column, per epoch; None without an evaluation."""
    folder.mkdir()
    argv = ["-dataset=digits", *(["-opts", *options] if options else [])]
    (folder / "config.yaml").write_text(to_yaml(parse_command_line(argv).config))
    (folder / "status.json").write_text(json.dumps(status))
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, EPOCH_COLUMNS, restval="")
        writer.writeheader()
        for epoch, score in enumerate(scores, 1):
            row = {
                "epoch": epoch,
                column: score,
                "val_loss": 1.0,
                "train_seconds": 60 * epoch,
                "images_per_second": 1234.5,
            }
            writer.writerow(row | {"peak_memory_bytes": 2e9})
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def table_of(capsys, *argv) -> tuple[list[str], str]:
    """The lines on standard output, and standard error."""
    assert main(list(map(str, argv))) == 0
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


def test_runs_are_sorted_by_top1_with_the_options_that_differ(tmp_path, capsys):
    one = make_run(tmp_path / "one", [50.0, None, 49.0], ["TRAIN.BASE_LR=1e-3"], state="finished")
    two = make_run(
        tmp_path / "two", [50.0, 70.5, 70.5], ["SEED=3"], {"train_seconds": 200.0, "images_per_second": 99.94},
        state="finished",
    )  # fmt: skip
    lines, errors = table_of(capsys, one, two)
    assert [line.split() for line in lines[1:]] == [
        ["two", "70.50%", "top-1", "2/300", "3m20s", "99.9", "2G", "finished", "SEED=3,", "TRAIN.BASE_LR=0.003"],
        ["one", "50.00%", "top-1", "1/300", "3m00s", "1234.5", "2G", "finished", "SEED=0,", "TRAIN.BASE_LR=0.001"],
    ]
    assert lines[0].split()[:3] == ["run", "best", "epoch"] and errors.strip() == f"Picture: {tmp_path / 'compare.png'}"
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_unfinished_and_failed_runs_are_shown_last(tmp_path, capsys):
    here = {"host": socket.gethostname()}
    good = make_run(tmp_path / "good", [50.0], state="stopped")
    failed = make_run(tmp_path / "failed", [], state="failed", message="out of memory " + "x" * 500)
    running = make_run(tmp_path / "running", [], (), {"train_seconds": 5.0}, state="running", pid=os.getpid(), **here)
    killed = make_run(tmp_path / "killed", [30.0], state="running", pid=2**22 + 1, **here)
    (failed / "metrics.csv").unlink()
    lines, _ = table_of(capsys, failed, good, running, killed)
    assert [line.split()[0] for line in lines[1:]] == ["good", "killed", "failed", "running"]
    assert " stopped" in lines[1] and " killed" in lines[2] and " running" in lines[4]
    assert "failed: out of memory" in lines[3] and len(lines[3]) < 150
    assert lines[4].split()[1:6] == ["-"] * 5  # result.json is from before the run was resumed


def test_folders_that_are_no_run_are_skipped_with_a_line(tmp_path, capsys):
    run = make_run(tmp_path / "run", [50.0], state="finished")
    damaged = make_run(tmp_path / "damaged", [50.0], state="finished")
    (damaged / "metrics.csv").write_text("epoch,val_top1\none,2\n")
    (tmp_path / "compare.png").touch()
    (tmp_path / "notes").mkdir()
    lines, errors = table_of(capsys, *sorted(tmp_path.iterdir()), tmp_path / "missing")
    assert len(lines) == 2 and lines[1].startswith("run ")
    skipped = [line for line in errors.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 3 and "notes: is not the folder of a run (no config.yaml)" in errors
    assert "damaged/metrics.csv: cannot be read" in errors and run.is_dir()


def test_csv_has_all_digits(tmp_path, capsys):
    run = make_run(tmp_path / "run", [100 / 3], state="finished")
    lines, _ = table_of(capsys, run, "-csv", "-picture", tmp_path / "other.png")
    (row,) = csv.DictReader(io.StringIO("\n".join(lines)))
    assert row["name"] == "run" and float(row["top1"]) == 100 / 3 and row["epoch"] == "1" and row["epochs"] == "300"
    assert float(row["train_seconds"]) == 60 and float(row["peak_memory_bytes"]) == 2e9 and row["options"] == ""
    assert (tmp_path / "other.png").exists() and not (tmp_path / "compare.png").exists()


def test_the_table_shows_six_options(tmp_path, capsys):
    changed = [
        f"TRAIN.{key}=0.1" for key in ("BASE_LR", "END_LR", "SMOOTHING", "MIXUP_ALPHA", "MIXUP_PROB", "GRAD_CLIP")
    ]
    runs = make_run(tmp_path / "one", [50.0], [*changed, "SEED=7"]), make_run(tmp_path / "two", [40.0])
    lines, _ = table_of(capsys, *runs)
    assert lines[1].count("=") == 6 and lines[1].endswith(", 1 more in the CSV")
    lines, _ = table_of(capsys, *runs, "-csv")
    assert lines[1].count("=") == 7


def test_without_a_run_the_error_says_what_to_give(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run found; give the folders of training runs"):
        main([str(tmp_path / "empty")])
    run = make_run(tmp_path / "run", [50.0], state="finished")
    with pytest.raises(UserError, match=r"cannot be written .*; give another file with -picture"):
        main([str(run), "-picture", str(tmp_path / "no" / "folder.png")])


def test_a_run_of_this_version_is_read(digits_argv, cpu):
    folders = [train([*digits_argv, f"SEED={seed}", "TRAIN.NUM_EPOCHS=1"], cpu) for seed in (0, 1)]
    runs = sort_runs(read_runs(folders))
    assert sorted(options_by_run(runs)) == [["SEED=0"], ["SEED=1"]]
    assert all(run.state == "finished" and run.best and run.train_seconds and run.images_per_second for run in runs)


def test_a_prediction_is_no_evaluation(tmp_path, capsys):
    run = make_run(tmp_path / "run", [50.0], state="finished")
    prediction = tmp_path / "predict-run"
    prediction.mkdir()
    (prediction / "config.yaml").write_text(to_yaml(parse_command_line(["-eval", "-pretrained=best.pth"]).config))
    lines, errors = table_of(capsys, run, prediction)
    assert len(lines) == 2 and f"skipped: {prediction}: is the folder of a prediction" in errors


def test_top1_and_mean_ap_are_not_ranked_against_each_other(tmp_path, capsys):
    several = [make_run(tmp_path / f"several{score}", [score], column="val_mean_ap") for score in (80.0, 90.0)]
    one = make_run(tmp_path / "one", [50.0])
    lines, _ = table_of(capsys, *several, one)
    assert [line.split()[:3] for line in lines[1:]] == [
        ["one", "50.00%", "top-1"], ["several90.0", "90.00%", "mAP"], ["several80.0", "80.00%", "mAP"],
    ]  # fmt: skip
