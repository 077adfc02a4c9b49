"""The temperature of weights against scipy, and on its way from a training to evaluations, predictions and exports."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from conftest import ROOT, cli, each_value, evaluate, export_as, predict, seeded, values_of
from numpy.random import default_rng
from pytest import approx, mark
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax
from test_results import results_for, results_of, stored_decision
from torch import Tensor
from torch.testing import assert_close

from configs.schema.operating_point import OperatingPoint
from datasets.batch import PADDING
from datasets.sources.samples import UNKNOWN
from engine.checkpoint.weights_record import OPERATING_POINT, decision_to_entries, read_record
from engine.evaluation.calibration import choose_temperature, temper
from engine.evaluation.ranking import log_odds
from engine.evaluation.results import SampleResults, results_of_scores
from utils.files import read_json
from utils.metric_table import METRICS

HALF_STEP = 2 ** (0.51 / 32)  # of the candidates


def drawn(number: int, classes: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, `scale` times those whose softmax draws the targets."""
    generator = seeded(seed)
    logits = 2 * torch.randn(number, classes, generator=generator)
    return scale * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def chosen_for(results: SampleResults) -> float:
    return choose_temperature(results.scores[results.readable], results.targets[results.readable])


def scipys(loss_at: Callable[[float], float]) -> float:
    """The minimum of log loss and prior in float64, of log(T)."""
    found = minimize_scalar(
        lambda log: loss_at(np.exp(log)) + log**2 / (2 * 0.5**2), bounds=np.log([0.25, 4]), method="bounded"
    )
    return float(np.exp(found.x))


SIZES = """
number | classes
20 | 2
300 | 2
20 | 5
300 | 5
400 | 200
"""


@mark.parametrize("scale", [0.1, 0.5, 1, 2.5, 9])
@each_value(SIZES)
def test_the_temperature_is_the_one_of_scipy(scale, number, classes):
    """Of float64 logits; unreadable images do not count."""
    logits, targets = drawn(number, classes, scale)
    results = results_of(logits, targets, (3, 7))
    rows = results.readable
    exact = logits.double().numpy()
    own = np.arange(number), targets.numpy()
    expected = scipys(lambda temperature: -log_softmax(exact / temperature, 1)[own][rows].sum())
    assert max(chosen_for(results) / expected, expected / chosen_for(results)) < HALF_STEP


@mark.parametrize("scale", [0.1, 0.5, 2.5])
def test_the_temperature_of_several_labels_is_the_one_of_scipy(scale):
    """Of all known cells."""
    logits = torch.randn(200, 6, generator=seeded(1)) * 2
    targets = torch.bernoulli(logits.sigmoid(), generator=seeded(2)).to(torch.int8)
    targets[::3, 2] = UNKNOWN
    results = results_for(targets, scale * logits)
    known = (targets != UNKNOWN).numpy()
    signed = np.where(targets > 0, 1, -1) * results.scores.astype(np.float64)
    expected = scipys(lambda temperature: -log_expit(signed / temperature)[known].sum())
    assert max(chosen_for(results) / expected, expected / chosen_for(results)) < HALF_STEP


def test_the_temperature_gives_a_constant_margin_the_probability_of_its_accuracy():
    """A closed form, without the prior, which many samples outweigh; of more scores than are read, too."""
    number = 200_000
    margin = 3.0
    accuracy = 0.7
    is_right = default_rng(0).permutation(np.arange(number) < accuracy * number)
    scores = np.float32([-margin, margin]) * np.ones((number, 1), np.float32)
    found = results_of_scores(is_right.astype(np.int64), scores).best_temperature
    assert expit(margin / found) == approx(accuracy, abs=0.01)


def test_without_a_wrong_label_without_scores_without_samples_and_with_nan_it_is_1():
    logits, targets = drawn(50, 4, 3)
    assert results_of(logits, targets).best_temperature > 1
    right = results_of(logits, logits.argmax(1))
    several = results_for((logits > 0).to(torch.int8), logits)
    for one in (right, several):
        assert one.best_temperature == 1
        assert replace(one, targets=np.full_like(one.targets, PADDING)).best_temperature == 1
    assert replace(right, scores=None).best_temperature == 1
    logits[5] = torch.nan
    assert results_of(logits, targets).best_temperature == 1


def test_rare_labels_whose_calibration_error_would_rise_keep_their_probabilities():
    """One frequent label with much too high logits; the others are right. With frequent ones alone, T is chosen."""
    generator = seeded(0)
    exact = torch.randn(400, 12, generator=generator) + torch.tensor([0.0] + [-3.5] * 11)
    targets = torch.bernoulli(exact.sigmoid(), generator=generator).to(torch.int8)
    logits = exact * torch.tensor([30.0] + [1.0] * 11)
    results = results_for(targets, logits)
    chosen = chosen_for(results)
    tempered = results_for(targets, logits / chosen)
    assert chosen > 2
    assert tempered.value(METRICS["loss"]) < results.value(METRICS["loss"])
    assert tempered.calibration_error > 2 * results.calibration_error
    assert results.best_temperature == 1
    frequent = results_for(targets[:, :1], logits[:, :1])
    assert frequent.best_temperature == chosen_for(frequent) > 2


@mark.parametrize("temperature", [0.25, 0.6, 4])
def test_scores_are_tempered_as_logits_are(temperature):
    """Also where p is 1 in float32, and of a masked class."""
    for classes, scale in values_of("2 | 1\n2 | 30\n3 | 1\n200 | 5\n3 | 30"):
        logits, _ = drawn(40, classes, scale)
        if classes > 2:
            logits[:, 1] = -torch.inf
        found = temper(log_odds(logits).numpy(), temperature, multi_label=False)
        assert_close(torch.from_numpy(found), log_odds(logits / temperature), rtol=1e-5, atol=1e-5)
        assert softmax(logits.double().numpy() / temperature, 1) == approx(expit(found), abs=1e-6)
        assert temper(logits.numpy(), temperature, multi_label=True) == approx(logits.numpy() / temperature)


def test_an_older_version_finds_no_point_of_tempered_scores():
    """Its threshold on scores that are not divided would be another one."""
    logits, targets = drawn(300, 4, 3)
    results = replace(results_of(logits, targets), point=OperatingPoint(name="b", label=1, specificity=0.9))
    assert {*decision_to_entries(results.metrics().decision)} == {OPERATING_POINT}
    tempered = replace(results, temperature=3.0)
    decision = tempered.metrics().decision
    assert OPERATING_POINT not in decision_to_entries(decision)
    assert stored_decision(tempered) == decision
    assert decision.point == tempered.calibrated.used_point


GOAL = "EVAL.OPERATING_POINT={class: 3, specificity: 0.9}"
SMOOTHED = ("DATA.BATCH_SIZE=16", GOAL, "DATA.FRACTION=0.25", "TRAIN.BASE_LR=1e-2", "TRAIN.SMOOTHING=0.4")


def probabilities_of(output: Path, classes: Sequence[str], *argv: str) -> np.ndarray:
    """In the predictions of these words."""
    return pd.DataFrame(predict(output, "-format=wide", *argv))[[*classes]].to_numpy(float)


def expected_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Of 15 bins, percent."""
    confidence = probabilities.max(1)
    frame = pd.DataFrame({"p": confidence, "hit": probabilities.argmax(1) == labels})
    bins = frame.groupby(np.minimum(confidence * 15, 14).astype(int))
    return 100 * float((bins.size() * (bins.p.mean() - bins.hit.mean()).abs()).sum() / len(frame))


def test_a_temperature_travels_from_a_training_to_evaluations_predictions_and_exports(trained_digits, tmp_path):
    """Metrics and scores are of the logits as they are; without the entry, all files are as before."""
    folder = trained_digits(*SMOOTHED)
    summary = read_json(folder / "evaluation/summary.json")
    temperature = summary["calibrated"]["temperature"]
    assert temperature < 0.9  # the probabilities of smoothed labels are too low
    exported = tmp_path / "a.safetensors"
    export_as("safetensors", folder, exported, "-no_check")
    for name in (folder / "best.pth", exported):
        assert read_record(str(name)).decision.temperature == temperature
    flags = cli(f"-pretrained={exported} -split=val -dataset=digits")
    again = evaluate(tmp_path / "eval", *flags)
    for file in ("calibration.csv", "coverage.csv", "scores.npz", "mistakes.csv", "curves.csv"):
        assert (again / "evaluation" / file).read_bytes() == (folder / "evaluation" / file).read_bytes(), file
    found = read_json(again / "evaluation/summary.json")
    for key in ("loss", "ece", "auroc", "calibrated", "operating_point"):
        assert found[key] == summary[key]
    with np.load(folder / "evaluation/scores.npz") as saved:
        scores = saved["scores"]
        labels = saved["labels"]
    (script,) = re.findall(r"```python\n([^`]*log\(p\).*?)```", (ROOT / "docs/evaluation.md").read_text(), re.S)
    typed = dict[str, Any]()
    exec(re.sub('folder = ".*"', f'folder = "{folder}/evaluation"', script), typed)
    assert typed["of_labels"] == approx(expit(temper(scores, temperature, True)), abs=1e-6)
    probabilities = probabilities_of(tmp_path / "p", "0123456789", *flags)
    assert probabilities == approx(typed["probabilities"], abs=2e-6)
    assert summary["ece"] == approx(expected_error(expit(scores), labels), abs=0.01)
    assert summary["calibrated"]["ece"] == approx(expected_error(probabilities, labels), abs=0.01)
    losses = -np.log(probabilities[np.arange(len(labels)), labels])
    assert summary["calibrated"]["loss"] == approx(losses.mean(), abs=1e-4)
    assert summary["calibrated"]["loss"] < summary["loss"]
    # Merged classes: the sum of their tempered probabilities
    merged = probabilities_of(tmp_path / "m", "012345679", *flags, "-opts", "DATA.RENAME={8: 3}")
    sums = probabilities.copy()
    sums[:, 3] += sums[:, 8]
    assert merged == approx(np.delete(sums, 8, 1), abs=3e-6)


@mark.parametrize("temperature", [3.0, 4.0, 0.25])
def test_the_screen_has_a_temperature_that_is_a_limit(temperature, digits_run, tmp_path, capsys):
    folder = digits_run(*SMOOTHED)
    state = torch.load(folder / "best.pth")
    torch.save(state | {"temperature": temperature}, tmp_path / "weights.pth")
    evaluate(tmp_path / "eval", f"-pretrained={tmp_path / 'weights.pth'}", f"-cfg={folder / 'config.yaml'}")
    assert ("Temperature" in capsys.readouterr().out) == (temperature != 3)


def test_weights_without_a_temperature_are_evaluated_as_before(digits_run, tmp_path):
    folder = digits_run(*SMOOTHED)
    state = torch.load(folder / "best.pth")
    assert state.pop("temperature") != 1
    state["operating_point"] = state.pop("tempered_operating_point")
    torch.save(state, folder / "best.pth")
    again = evaluate(tmp_path / "eval", f"-pretrained={folder / 'best.pth'}", "-save_logits")
    summary = read_json(again / "evaluation/summary.json")
    assert "calibrated" not in summary
    with np.load(again / "evaluation/logits.npz") as saved:
        shares = softmax(saved["logits"].astype(np.float64), 1)
    assert summary["operating_point"]["threshold"] == state["operating_point"]["threshold"]
    found = probabilities_of(tmp_path / "p", "0123456789", f"-pretrained={folder / 'best.pth'}", "-split=val")
    assert found == approx(shares, abs=2e-3)
