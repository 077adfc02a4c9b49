"""The held-out test images: evaluated once, at the end of a finished run, with the best weights."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from conftest import (
    CPU,
    TINY_VIT,
    cells_of,
    cli,
    config_for,
    each_value,
    evaluate,
    log_of,
    read_result,
    refused,
    train,
    values_of,
)
from numpy.random import default_rng
from pytest import fixture

from engine.training import end
from engine.training.optimizer import Schedule
from tests.datasets.sources.source_helpers import write_image
from utils.errors import UserError
from utils.files import read_json
from utils.tables import read_csv_rows

TINY = [*TINY_VIT, *cli("MODEL.NUM_CLASSES=null MODEL.DEPTH=1 TRAIN.WARMUP_EPOCHS=0 TRAIN.NUM_EPOCHS=3")]


@fixture
def argv(tmp_path) -> list[str]:
    """Red and blue images in the folders train, val and test."""
    generator = default_rng(0)
    for split, count in values_of("train | 48\nval | 12\ntest | 17"):
        for label, name in enumerate(("blue", "red")):
            for number in range(count):
                pixels = generator.integers(0, 150, (8, 8, 3)).astype(np.uint8)
                pixels[..., 2 - 2 * label] += 70
                write_image(tmp_path / "data" / split / name / f"{number}.png", pixels)
    flags = cli(f"-dataset=folder -data_path={tmp_path / 'data'} -batch_size=8 -num_workers=0")
    return [*flags, f"-output={tmp_path / 'out'}", "-opts", *TINY]


def evaluated(weights: Path, split: str, output: Path, *data: str) -> tuple[float, bool]:
    """The loss, and whether the log says that these images chose the weights."""
    folder = evaluate(output, f"-pretrained={weights}", f"-split={split}", *data)
    return read_result(folder)["loss"], "best of 3 epochs chosen on these images: too good" in log_of(folder)


def test_the_best_weights_are_tested_when_the_last_are_worse(argv, tmp_path, monkeypatch):
    """A negative learning rate in the last epoch raises the loss. An evaluation says whether its images chose."""
    monkeypatch.setattr(Schedule, "lr_at", lambda self, step: 3e-3 if step < 24 else -3e-2)
    folder = train(argv)
    result = read_result(folder)
    assert result["epoch"] == 2
    assert result["top1"] > 90
    test = result["test"]
    assert test["mean_ap"] is test["error"] is None
    assert test["top1"] > 80
    cases = cells_of("best | test\nlast | test\nbest | val\nlast | val")
    found = [evaluated(folder / f"{name}.pth", split, tmp_path / name / split, *argv[:4]) for name, split in cases]
    assert test["loss"] == found[0][0] < found[1][0]
    assert [is_told for _, is_told in found] == [False, False, True, False]
    other = shutil.copytree(tmp_path / "data", tmp_path / "other")
    words = "-dataset=folder", f"-data_path={other}"
    assert not evaluated(folder / "best.pth", "val", tmp_path / "of-other", *words)[1]
    assert log_of(folder).count("Test Loss") == 1
    summary = read_json(folder / "evaluation-test" / "summary.json")
    assert (summary["epoch"], summary["samples"]) == (2, 34)
    assert [test[name] for name in ("top1", "recall", "f1")] == [summary[name] for name in ("top1", "recall", "f1")]
    classes = read_csv_rows(folder / "evaluation-test" / "per_class.csv")
    assert [(row["class"], row["count"]) for row in classes] == [("blue", "17"), ("red", "17")]
    assert read_json(folder / "evaluation" / "summary.json")["samples"] == 24


class Images(list[str]):
    def name(self, index: int) -> str:
        return self[index]


ERRORS = """
ranks | is_shared | ends
1 | false | false
2 | true | false
2 | false | true
"""


@each_value(ERRORS)
def test_an_error_of_one_rank_ends_the_run_and_one_of_all_is_a_warning(ranks, is_shared, ends, monkeypatch):
    """The other ranks would wait for the one that goes on."""
    error = UserError("a reason")
    error.is_shared = is_shared

    def fail(*_):
        raise error

    warnings = []
    monkeypatch.setattr(end, "build_eval_loader", fail)
    session = SimpleNamespace(bad_images=None)
    logger = SimpleNamespace(warn=warnings.append)
    context = replace(CPU, world_size=ranks)
    trainer = SimpleNamespace(config=config_for(), context=context, session=session, logger=logger)
    if ends:
        with refused("a reason"):
            end._evaluate_test(trainer, None, Images("abc"), 1)
    else:
        result = end._evaluate_test(trainer, None, Images("abc"), 1)
        assert (result["error"], result["unreadable_images"]) == ("a reason", ["a", "b", "c"])
    assert len(warnings) == (not ends)


def test_a_stopped_run_does_not_touch_them_and_its_end_does(argv, tmp_path):
    """A run writes through no link; the figures are more important than the files."""
    folder = train([*argv, "TRAIN.MAX_STEPS=30"])
    assert read_result(folder)["test"] is None
    files = folder / "evaluation-test"
    assert not files.exists()
    files.symlink_to(tmp_path)
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=null"))
    assert read_result(folder)["test"]["samples"] == 34
    assert not (files / "mistakes.csv").exists()
    assert f"{files} cannot be written" in log_of(folder)
