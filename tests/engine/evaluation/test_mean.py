"""The mean of the models of a sweep: its probabilities are those of docs/evaluation.md, its thresholds its own."""

import re
import shutil
from pathlib import Path

import numpy as np
import torch
from conftest import (
    ROOT,
    TINY_VIT,
    cli,
    evaluate,
    of_module,
    predict,
    read_result,
    refused,
    run_here,
    seeded,
    slow,
    train,
)
from pytest import approx, fixture, importorskip, mark
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from engine.evaluation.evaluate import Evaluator
from engine.evaluation.mean import MeanOfModels
from engine.plan.decision import MEAN
from tests.datasets.sources.source_helpers import write_image
from utils.files import atomic_save, read_json

POINT = "EVAL.OPERATING_POINT={class: 3, sensitivity: 0.9}"


@of_module
def images(tmp_path_factory) -> Path:
    """Digits in class folders."""
    root = tmp_path_factory.mktemp("digits")
    digits = load_digits()
    for number in range(0, 1797, 9):
        pixels = (digits.images[number] * 15).astype(np.uint8)
        write_image(root / f"{digits.target[number]}/{number}.png", pixels)
    return root


@fixture
def sweep(trained_digits, tmp_path) -> Path:
    """Three folds, each with an operating point of its own, and an earlier run of one of them."""
    for fold in range(3):
        run = trained_digits("DATA.FOLDS=3", f"DATA.FOLD={fold}", POINT, "DATA.FRACTION=0.25", "TRAIN.BASE_LR=1e-2")
        shutil.copytree(run, tmp_path / f"sweep/FOLD={fold}-20260102-12-00")
    shutil.copytree(run, tmp_path / "sweep/FOLD=0-20260101-12-00")
    (tmp_path / "sweep/sweep.json").write_text("{}")
    return tmp_path / "sweep"


def test_the_probabilities_are_those_of_the_docs_script(sweep, images, tmp_path, monkeypatch):
    importorskip("pandas")
    options = cli("-format=wide -opts EVAL.TTA=flip")
    for fold in range(3):
        weights = f"-pretrained={sweep}/FOLD={fold}-20260102-12-00/best.pth"
        predict(tmp_path / f"predictions/{fold}", str(images), weights, *options)
    monkeypatch.chdir(tmp_path)
    (script,) = re.findall(r"```python\n(from pathlib.*?)```", (ROOT / "docs/evaluation.md").read_text(), re.S)
    scope: dict = {}
    exec(script, scope)
    rows = predict(tmp_path / "mean", str(images), f"-resume={sweep}", *options)
    assert [row["path"] for row in rows] == scope["means"].index.tolist()
    found = np.array([[float(row[str(label)]) for label in range(10)] for row in rows])
    np.testing.assert_allclose(found, scope["means"][[*"0123456789"]], atol=2e-6)
    assert "decision" not in rows[0]  # the thresholds of the folds are of single models


def test_an_evaluation_measures_the_threshold_of_the_mean(sweep, images, tmp_path):
    words = [str(images), f"-resume={sweep}"]
    folder = evaluate(tmp_path / "eval", "-dataset=folder", f"-data_path={images}", words[1])
    probabilities = predict(tmp_path / "wide", *words, "-format=wide")
    found = np.array([[float(row[str(label)]) for label in range(10)] for row in probabilities])
    labels = np.array([int(Path(row["path"]).parent.name) for row in probabilities])
    assert read_result(folder)["top1"] == approx(100 * (found.argmax(1) == labels).mean())
    summary = read_json(folder / "evaluation/summary.json")
    assert (summary["chooses_point"], summary["checkpoint"]) == (True, str(sweep))
    stored = read_json(sweep / MEAN)["operating_point"]["threshold"]
    assert summary["operating_point"]["threshold"] == stored
    threshold = 1 / (1 + np.exp(-stored))
    own = np.sort(found[labels == 3, 3])
    assert (own >= threshold).mean() >= 0.9  # the highest one that reaches the goal
    assert (own >= own[len(own) // 9 + 1]).mean() < 0.9
    rows = predict(tmp_path / "decided", *words)
    assert {row["decision"] == "3" for row in rows if float(row["class_1"] == "3") and row["decision"]} == {True}
    assert float(rows[0]["decision_threshold"]) == approx(threshold, abs=1e-5)
    shutil.rmtree(sweep / "FOLD=2-20260102-12-00")  # another mean
    assert "decision" not in predict(tmp_path / "two", *words)[0]


def test_runs_that_hold_out_the_same_images_are_evaluated_on_them(trained_digits, tmp_path):
    for name, options in (("0.001", ()), ("0.01", ("TRAIN.BASE_LR=1e-2",))):
        run = trained_digits(*options)
        shutil.copytree(run, tmp_path / f"sweep/LR={name}-20260102-12-00")
    (tmp_path / "sweep/sweep.json").write_text("{}")
    folder = evaluate(tmp_path / "eval", f"-resume={tmp_path / 'sweep'}")
    summaries = [read_json(one / "evaluation/summary.json") for one in (folder, run)]
    assert summaries[0]["samples"] == summaries[1]["samples"]
    assert summaries[0]["top1"] != summaries[1]["top1"]
    assert not summaries[0]["chooses_point"]


def test_what_a_mean_cannot_do_is_refused(sweep, images, tmp_path):
    with refused("-data_path"):  # each image trained some of the models
        run_here("-eval", f"-resume={sweep}")
    with refused("-explain"):
        run_here(f"-predict={images}", f"-resume={sweep}", "-explain")
    state = torch.load(sweep / "FOLD=1-20260102-12-00/best.pth")
    names = state["class_names"]
    atomic_save(sweep / "FOLD=1-20260102-12-00/best.pth", state | {"class_names": names[::-1]})
    with refused("FOLD=1.*other classes"):
        run_here(f"-predict={images}", f"-resume={sweep}", f"-output={tmp_path / 'x'}")
    status = sweep / "FOLD=1-20260102-12-00/status.json"
    status.write_text(status.read_text().replace('"finished"', '"running"'))
    (status.parent / "best.pth").unlink()  # in its first epoch
    with refused("FOLD=1.*is running"):
        run_here(f"-predict={images}", f"-resume={sweep}")


@mark.parametrize("swept, splits", [("DATA.FOLD={} DATA.FOLDS=2", ("all", "val")), slow("SEED={}", ("all",))])
def test_a_copy_of_the_training_images_gives_no_figures_of_folds_and_no_threshold(
    swept, splits, images, tmp_path, capsys
):
    sweep = tmp_path / "sweep"
    copy = shutil.copytree(images, tmp_path / "copy")
    for number in range(2):
        options = [*TINY_VIT, "TRAIN.NUM_EPOCHS=1", POINT, *swept.format(number).split()]
        argv = cli(f"-dataset=folder -data_path={images} -batch_size=64 -output={tmp_path}/{number}")
        shutil.copytree(train([*argv, "-opts", *options]), sweep / f"RUN={number}-20260102-12-00")
    (sweep / "sweep.json").write_text("{}")
    for split in splits:
        argv = cli(f"-dataset=folder -data_path={copy} -split={split} -resume={sweep}")
        if "FOLD" not in swept:
            evaluate(tmp_path / "eval", *argv)
            continue
        with refused("out of fold"):
            evaluate(tmp_path / "eval", *argv)
        assert "-split val" not in "".join(capsys.readouterr())  # it would be refused, too
    assert not (sweep / MEAN).exists()


@mark.parametrize("multi_label", [False, True])
def test_the_mean_is_of_probabilities(multi_label, cpu):
    logits = torch.randn(3, 5, 4, generator=seeded(0)) * 9
    evaluator = Evaluator(nn.Identity(), None, None, cpu, multi_label=multi_label)
    models = [nn.Sequential() for _ in logits]
    for model, of_model in zip(models, logits, strict=True):
        model.forward = lambda images, fixed=of_model: fixed
    found = MeanOfModels([(evaluator, model) for model in models])(torch.zeros(5))
    if multi_label:
        assert_close(found.sigmoid(), logits.sigmoid().mean(0))
    else:
        assert_close(found.softmax(-1), logits.softmax(-1).mean(0))
