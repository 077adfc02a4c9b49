"""A training run: which epoch is the best, when the run ends, its files while it trains and at its end."""

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from conftest import (
    TINY_VIT,
    assert_same_state,
    cli,
    config_for,
    log_of,
    noise_folder,
    read_result,
    refused,
    rows,
    run_here,
    slow,
    states,
    tensor_bytes_in_memory,
    train,
)
from pytest import approx, fixture, mark

from engine.checkpoint.files import load_checkpoint
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import NOT_DRAWN, EvaluationFiles
from engine.evaluation.results import SampleResults
from engine.evaluation.session import build_eval_model
from engine.report.contents import read_contents
from engine.run.record import read_run
from engine.training import end
from utils.files import read_json, tensor_bytes
from utils.metric_table import METRICS, Metric
from utils.notes import STATUS

# EVAL.BEST_METRIC

# The weights never change, so the first evaluation is the best.
CONSTANT = cli("TRAIN.BASE_LR=0 TRAIN.WARMUP_START_LR=0 TRAIN.NUM_EPOCHS=4 TRAIN.WARMUP_EPOCHS=0")
VALUES = [float("nan"), 50.0, 70.0, 70.0, 60.0]  # of the epochs: no value, best, best, a tie, worse
LOSSES = [0.1, 2.0, 3.0, 3.0, 0.1]


def test_the_metric_decides_and_the_first_of_equal_epochs_stays(digits_argv, monkeypatch, capsys):
    left = {"min_recall": iter(VALUES), "loss": iter(LOSSES)}
    value = SampleResults.value

    def scripted(results: SampleResults, metric: Metric) -> float:
        return next(left[metric.name], 60.0) if metric.name in left else value(results, metric)

    monkeypatch.setattr(SampleResults, "value", scripted)
    options = cli("EVAL.BEST_METRIC=min_recall TRAIN.PATIENCE=2 TRAIN.NUM_EPOCHS=9")
    folder = train([*digits_argv, *options])
    monkeypatch.undo()
    result = read_result(folder)
    capsys.readouterr()
    assert states(folder)["epoch"] == 5
    assert result["stopped_early"]  # two epochs after the best one
    best = load_checkpoint(folder / "best.pth")
    assert (best["epoch"], best["best"]["min_recall"]) == (3, 70.0) == (result["epoch"], result["min_recall"])
    assert result["top1"] == float(rows(folder)[2]["val_top1"])  # of the same epoch


def test_a_run_without_a_finite_value_has_no_best_epoch_and_finishes(digits_argv, monkeypatch):
    nan = lambda _: (np.array([np.nan]), np.ones(1))  # noqa: E731
    monkeypatch.setitem(METRICS, "loss", replace(METRICS["loss"], of=nan))
    folder = train([*digits_argv, "EVAL.BEST_METRIC=loss", "TRAIN.NUM_EPOCHS=1"])
    assert read_result(folder)["finished"]
    assert read_result(folder)["epoch"] is None
    assert not (folder / "best.pth").exists()
    assert read_contents(folder).best is None


def test_one_class_is_a_warning_of_training_and_of_validation_and_an_area_has_a_best_epoch(tmp_path):
    """An accuracy of 100% says nothing there."""
    root = noise_folder(tmp_path, 12, 4, (8, 8, 3))
    words = [*cli(f"-data_path={root} -batch_size=4 -num_workers=0 -output={tmp_path / 'out'} -opts"), *TINY_VIT]
    for path in (root / "val/class1").iterdir():
        path.rename(root / "val/class0" / path.name)
    more = cli("DATA.DATASET=imagenet2012 MODEL.NUM_CLASSES=2 TRAIN.NUM_EPOCHS=3 EVAL.BEST_METRIC=auroc")
    folder = train([*words, *more])
    assert [count for text, count in read_run(folder)["warnings"].items() if "EVAL.BEST_METRIC" in text] == [1]
    assert "DATA.CACHE" in log_of(folder)
    assert read_result(folder)["epoch"]


@mark.parametrize("option, evaluations", [("TRAIN.MODEL_EMA=true", 3), ("MODEL.TUNE=lora", 2)])
def test_the_best_epoch_is_evaluated_once_and_its_model_is_built_after_the_trained_one_is_freed(
    option, evaluations, digits_argv, monkeypatch
):
    """The weights never change: the first epoch is the best. Raw weights beside an average are evaluated at the end."""
    left = []
    evaluated = []
    evaluate = Evaluator.evaluate

    def build(*arguments):
        for _ in range(50):  # the thread that has written the checkpoint may drop its content a moment later
            left.append(tensor_bytes_in_memory() - before)
            if left[-1] < 400_000:  # a quarter of the model
                break
            time.sleep(0.01)
        return build_eval_model(*arguments)

    monkeypatch.setattr("engine.training.end.build_eval_model", build)
    monkeypatch.setattr(Evaluator, "evaluate", lambda *given: evaluated.append(1) or evaluate(*given))
    before = tensor_bytes_in_memory()
    folder = train([*digits_argv, "MODEL.EMBED_DIM=128", "DATA.FRACTION=0.1", *CONSTANT, "TRAIN.NUM_EPOCHS=2", option])
    assert left[-1] < 400_000 < tensor_bytes(states(folder)["model"]) / 4
    assert (read_result(folder)["epoch"], len(evaluated)) == (1, evaluations)
    assert read_json(folder / "evaluation/summary.json")["top1"] == read_result(folder)["top1"]


def test_files_that_a_killed_start_has_left_of_the_best_epoch_are_written_again(digits_argv, monkeypatch):
    record = end._record_training

    def leave_files(trainer):
        record(trainer)
        folder = trainer.outputs.evaluation.folder
        folder.mkdir()
        (folder / "summary.json").write_text('{"epoch": 1, "top1": -1, "attention": null}')
        (folder / "tables.json").write_text("{}")

    monkeypatch.setattr(end, "_record_training", leave_files)
    folder = train([*digits_argv, *CONSTANT, "TRAIN.NUM_EPOCHS=2"], pictures=True)
    summary = read_json(folder / "evaluation/summary.json")
    assert summary["top1"] == read_result(folder)["top1"]
    assert summary["attention"] != NOT_DRAWN


def test_a_run_whose_folder_is_moved_before_its_evaluation_files_begins_no_other_one(
    digits_argv, tmp_path, monkeypatch
):
    write = EvaluationFiles.write

    def move(files, *given, **about):
        files.folder.parent.rename(tmp_path / "elsewhere")
        return write(files, *given, **about)

    monkeypatch.setattr(EvaluationFiles, "write", move)
    with refused("cannot be saved: .* or move it back and start again$|best.pth: no such file"):
        run_here(*digits_argv)  # the checkpoint may be on the disk a moment before
    assert not [*(tmp_path / "out").iterdir()]


# TRAIN.PATIENCE


@fixture
def argv(digits_argv) -> list[str]:
    """With 5 steps an epoch."""
    return [*digits_argv, *CONSTANT, "TRAIN.MODEL_EMA=true", "TRAIN.PATIENCE=2"]


def test_a_run_ends_after_its_patience_and_continues_with_a_larger_one(argv, capsys):
    folder = train(argv)
    assert [row["epoch"] for row in rows(folder)] == ["1", "2", "3"]
    assert [bool(row["raw_val_top1"]) for row in rows(folder)] == [False, False, True]
    state = states(folder)
    run = read_run(folder)
    result = run["result"]
    assert (state["epoch"], state["done_steps"], state["best"]["epoch"]) == (3, 0, 1)
    assert (result["finished"], result["stopped_early"], result["epoch"]) == (True, True, 1)
    assert (run["state"], run["stopped_early"], run["reason"]) == ("finished", True, result["reason"])
    assert f" -resume={folder} -opts TRAIN.PATIENCE=null\n" in capsys.readouterr().out
    train([f"-resume={folder}"])
    assert_same_state(states(folder), state)
    assert read_run(folder)["stopped_early"]
    train(cli(f"-resume={folder} -opts TRAIN.PATIENCE=null"))
    assert states(folder)["epoch"] == 4
    assert not read_result(folder)["stopped_early"]
    assert not read_run(folder)["stopped_early"]


@mark.parametrize("stop", [slow(7), 10])  # in an epoch, and after it
def test_a_resumed_run_counts_from_the_best_epoch(argv, stop):
    folder = train([*argv, f"TRAIN.MAX_STEPS={stop}"])
    assert not read_result(folder)["stopped_early"]
    assert read_json(folder / STATUS)["state"] == "stopped"
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=null"))
    assert states(folder)["epoch"] == 3
    assert read_result(folder)["stopped_early"]


# The evaluation files and the page


# The size of a checkpoint


@mark.parametrize(
    "options",
    [
        cli("TRAIN.MODEL_EMA=false TRAIN.OPTIMIZER.NAME=SGD MODEL.TUNE=head"),
        slow(cli("AMP.ENABLED=true AMP.LEVEL=O3 AMP.DTYPE=bfloat16")),
    ],
)
def test_the_size_of_a_checkpoint_is_known_before_training(digits_argv, options):
    folder = train([*digits_argv, *options, "MODEL.EMBED_DIM=192", "TRAIN.MAX_STEPS=1"])
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=2"))
    sizes = re.findall(r"----- Checkpoints: about ([\d.]+) MB", log_of(folder))
    real = (folder / "last.pth").stat().st_size / 1e6
    assert [float(size) for size in sizes] == [approx(real, rel=0.05)] * 2


def test_a_disk_without_room_for_a_checkpoint_ends_the_run_before_its_folder_is_made(digits_argv, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=10**4))
    with refused(r"0\.0 MB free .* not one fits; .* -output$"):
        train(digits_argv)
    assert not Path(config_for(*digits_argv).save).exists()


@mark.parametrize("kind", ["test_resnet", slow("levit_128s")])
def test_a_batch_norm_of_one_value_per_channel_is_refused_before_the_first_step(kind, tmp_path):
    size = 32 if kind == "test_resnet" else 224
    flags = [f"-data_path={noise_folder(tmp_path / 'data', 8, 2, (12, 12, 3))}", "-dataset=folder", "-num_workers=0"]
    flags += cli(f"-model={kind} -image_size={size} -output={tmp_path / 'out'} -epochs=1")
    one = [*flags, "-batch_size=1", "-opts", "TRAIN.MAX_STEPS=1"]
    for command in ([], ["-dry_run"]):
        with refused(r"^-batch_size=1: a batch norm of [^\n]* -batch_size=2[^\n]*$"):
            run_here(*command, *one)
    assert not (tmp_path / "out").exists()
    accepted = [[*flags, "-batch_size=2", "-opts", "TRAIN.MAX_STEPS=1"]]
    if kind == "test_resnet":  # LeViT's head has a batch norm
        accepted.append([*one, "MODEL.TUNE=head"])
    for argv in accepted:
        assert load_checkpoint(train(argv) / "last.pth")["done_steps"] == 1
