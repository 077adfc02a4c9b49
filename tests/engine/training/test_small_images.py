"""The pixel baseline, which never changes, delays or ends a run."""

import numpy as np
from conftest import CPU, assert_same_run, cli, noise_folder, read_result, train
from numpy.random import default_rng
from pytest import approx, importorskip, mark

from configs.command_line import parse_command_line
from datasets.small_images import draw_evenly, ridge_top1
from engine.plan.training import plan_training
from engine.progress import Observer
from engine.run.baseline import BaselineThread, measure_baseline
from engine.run.facts import PixelBaseline, read_fact
from engine.run.log import RunLogger
from engine.run.record import read_run
from engine.training.batch_size import find_batch_size
from tests.datasets.sources.source_helpers import write_image

MEASURE = "engine.run.baseline.measure_baseline"


def splits_for(*flags: str):
    plan = plan_training(parse_command_line(["-batch_size=2", *flags]), CPU, RunLogger(CPU), find_batch_size)
    return plan.config.data, plan.train, plan.val


def test_ridge_regression_is_scikit_learns():
    linear_model = importorskip("sklearn.linear_model")
    rng = default_rng(0)
    labels = rng.integers(0, 5, 500)
    noisy = rng.uniform(0, 255, (5, 40))[labels] + rng.normal(0, 300, (500, 40))
    pixels, val_pixels = np.split(noisy.astype(np.float32), [300])
    labels, val_labels = np.split(labels, [300])
    ridge = linear_model.Ridge(500 * pixels.var(0).mean()).fit(pixels, np.eye(5)[labels])
    expected = 100 * np.mean(ridge.predict(val_pixels).argmax(1) == val_labels)
    assert 30 < expected < 90
    assert ridge_top1(pixels, labels, val_pixels, val_labels) == approx(expected)


def test_images_are_drawn_evenly_from_the_classes():
    labels = default_rng(1).permutation(np.repeat([0, 1, 2], [10, 1000, 3]))
    drawn = draw_evenly(labels, 40)
    assert np.bincount(labels[drawn]).tolist() == [10, 27, 3]
    assert len(set(drawn.tolist())) == 40
    assert np.array_equal(drawn, draw_evenly(labels, 40))
    assert sorted(draw_evenly(labels, 9999)) == list(range(1013))
    assert np.bincount(labels[draw_evenly(labels, 9)]).tolist() == [3, 3, 3]


@mark.parametrize("resize, top1", [("crop", 50.0), ("squash", 100.0)])
def test_it_sees_the_part_of_an_image_that_evaluations_show(tmp_path, resize, top1):
    """Only the left edge shows the class. 58 / 224 * 224 is more than 58."""
    for split in ("train", "val"):
        for number in range(20):
            pixels = np.full((58, 174, 3), 7, np.uint8)
            pixels[:, :43] += 200 * np.uint8(number % 2)
            write_image(tmp_path / split / str(number % 2) / f"{number}.png", pixels)
    flags = cli(f"-dataset=folder -data_path={tmp_path} -opts DATA.RESIZE={resize} DATA.CROP_PCT=1.0")
    data, *splits = splits_for(*flags)
    assert measure_baseline(data, *splits) == PixelBaseline(top1, 50.0, 20, 20)


def test_unreadable_images_are_left_out_and_other_failures_are_a_line(tmp_path, monkeypatch):
    noise_folder(tmp_path, 12, 6, (40, 40, 3))
    data, train_samples, val = splits_for("-dataset=folder", f"-data_path={tmp_path}")
    (tmp_path / "train/class0/0.png").write_bytes(b"no image")
    (tmp_path / "train/class0/2.png").unlink()
    (tmp_path / "val/class0/0.png").write_bytes(b"no image")
    measured = measure_baseline(data, train_samples, val)
    assert (measured.training, measured.validation) == (10, 5)
    assert measured.majority_class == 40
    monkeypatch.setattr(type(val), "read_bytes", lambda samples, index: 1 / 0)
    assert "division by zero" in measure_baseline(data, train_samples, val).text


def test_a_run_records_it_once_and_is_bit_equal_without_it(digits_argv, tmp_path, monkeypatch):
    record = BaselineThread.record
    monkeypatch.setattr(BaselineThread, "record", lambda thread, is_end=False: record(thread, True))
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=6"])
    fact = read_fact(read_run(folder), PixelBaseline)
    result = read_result(folder)
    assert result["pixel_baseline"] == fact.pixel_baseline > 85
    assert (fact.training, fact.majority_class) == (179, result["majority_class"])
    monkeypatch.setattr(MEASURE, lambda *arguments: 1 / 0)
    train([f"-resume={folder}", *digits_argv])
    assert read_result(folder)["pixel_baseline"] == fact.pixel_baseline
    assert "No pixel" not in str(read_run(folder))
    none = Observer()
    none.record = lambda is_end: None
    none.result = None
    monkeypatch.setattr("engine.training.trainer.BaselineThread", lambda *inputs: none)
    other = train([f"-output={tmp_path / 'without'}", *digits_argv])
    assert_same_run(folder, other)
    assert read_result(other)["pixel_baseline"] is None
