"""Thresholds, operating points and temperatures decide for the logits that chose them, and for no other ones."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from conftest import CPU, cells_of, cli, each_value, evaluate, predict, refused, told, train
from pytest import approx, mark
from scipy.special import expit
from sklearn.metrics import roc_curve

from configs.command_line import parse_command_line
from configs.schema.operating_point import Decision, OperatingPoint
from configs.weights import WeightsRecord
from engine.checkpoint.weights_record import read_record
from engine.plan.decision import MEAN, decide
from engine.plan.evaluation import plan_evaluation
from engine.run.log import RunLogger
from utils.files import read_json

GOAL = "EVAL.OPERATING_POINT={class: 3, specificity: 0.9}"
LEARNS = ("DATA.FRACTION=0.5", "DATA.BATCH_SIZE=16", "TRAIN.BASE_LR=1e-2", GOAL)
AVERAGED = (*LEARNS, "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")

# The weights, options of an evaluation of their run, and the point: the one of the weights, to be chosen, or none
POINTS = """
average | SEED=0 | kept
average | MODEL.WEIGHTS_ENTRY=average | kept
average | MODEL.WEIGHTS_ENTRY=state_dict_ema | kept
average | MODEL.WEIGHTS_ENTRY=raw | to choose
average | MODEL.WEIGHTS_ENTRY=model | to choose
average | EVAL.TTA=flip | to choose
average | 'DATA.RENAME={4: four}' | kept
average | 'DATA.RENAME={3: three}' | kept  # the run has the option with the old name
average | 'DATA.RENAME={3: 4}' | none
average | EVAL.OPERATING_POINT=null | none
average | 'EVAL.OPERATING_POINT={class: 4, specificity: 0.9}' | refused
average | 'EVAL.OPERATING_POINT={class: 3, specificity: 0.5}' | refused
average | 'EVAL.OPERATING_POINT={class: 3, specificity: 0.9, groups: any}' | refused
raw | MODEL.WEIGHTS_ENTRY=raw | kept
raw | MODEL.WEIGHTS_ENTRY=raw EVAL.TTA=flip | to choose
"""


def evaluated(weights: Path, options: str) -> list[str]:
    """The words of an evaluation of the validation images."""
    return [f"-pretrained={weights}", "-split=val", "-dataset=digits", "-opts", *shlex.split(options)]


def decided_by(weights: Path, output: Path, options: str = "SEED=0") -> tuple:
    """The summary of an evaluation, the rows of a prediction of its images, their scores of a 3, whether it is one."""
    argv = evaluated(weights, options)
    folder = evaluate(output / "eval", *argv)
    rows = predict(output / "predict", *argv)
    with np.load(folder / "evaluation/scores.npz") as saved:
        return read_json(folder / "evaluation/summary.json"), rows, saved["scores"][:, 3], saved["labels"] == 3


def point_by(*words: str, **changes: Any) -> tuple[OperatingPoint | None, list[str]]:
    """What an evaluation or a prediction by these words decides by, and the line about it. changes: of its plan."""
    command = parse_command_line([*words])
    decision, notes = decide(command, replace(plan_evaluation(command, CPU, RunLogger(CPU)), **changes))
    return decision.point, told(notes, "Operating point")


@mark.parametrize("kind, options, expected", cells_of(POINTS))
def test_the_point_is_the_one_of_the_weights_for_their_own_logits(kind, options, expected, trained_digits):
    """Other logits, or merged ones, have none, and another goal is refused. A prediction chooses none."""
    run = trained_digits(*(AVERAGED if kind == "average" else LEARNS))
    stored = read_record(str(run / "best.pth")).decision.point
    points = []
    for word in ("-eval", "-predict"):
        words = [word, f"-resume={run}", "-opts", *shlex.split(options)]
        if expected == "refused":
            with refused(r"EVAL\.OPERATING_POINT: the weights have 90% specificity of 3"):
                point_by(*words)
        else:
            points.append(point_by(*words))
    name = "three" if "three" in options else "3"
    point = stored.model_copy(update={"name": name})
    start = f"90% specificity, from p {expit(point.threshold):.4g} on"
    kept = (point, [f"Operating point of {name}, from the weights: {start}"])
    goal = (Decision(point=point).goal, [])
    none = (None, [])
    assert points == {"kept": [kept, kept], "to choose": [goal, none], "none": [none, none], "refused": []}[expected]


def test_masked_logits_have_no_point_and_another_goal_of_a_recipe_is_refused(trained_digits, tmp_path):
    run = trained_digits(*LEARNS)
    assert point_by("-eval", f"-resume={run}", class_mask=np.arange(10) < 9) == (None, [])
    (tmp_path / "x.yaml").write_text((run / "config.yaml").read_text().replace("specificity: 0.9", "specificity: 0.5"))
    with refused("the weights have 90% specificity of 3"):
        point_by("-eval", f"-cfg={tmp_path / 'x.yaml'}", f"-pretrained={run / 'best.pth'}")


@mark.parametrize("options, is_kept", [("SEED=0", True), ("MODEL.WEIGHTS_ENTRY=raw", False)])
def test_the_decision_of_a_training_is_of_its_logits(options, is_kept, trained_digits, tmp_path, capsys):
    """Of others, the images of an evaluation choose the threshold, without a temperature; a prediction has none."""
    run = trained_digits(*AVERAGED)
    stored = read_record(str(run / "best.pth")).decision
    assert stored.temperature != 1
    summary, rows, scores, labels = decided_by(run / "best.pth", tmp_path, options)
    point = summary["operating_point"]
    assert ("Left out, as other logits" in capsys.readouterr().out) != is_kept
    if is_kept:
        assert (point["threshold"], summary["chooses_point"]) == (stored.point.threshold, False)
        assert summary["calibrated"]["temperature"] == stored.temperature
        assert float(rows[0]["decision_threshold"]) == approx(expit(point["threshold"]), abs=1e-6)
        return
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert summary["chooses_point"]
    assert "calibrated" not in summary
    assert point["sensitivity"] == approx(100 * true[false <= 0.1].max())
    assert (100 * (scores[~labels] < point["threshold"])).mean() == approx(point["specificity"])
    assert "decision" not in rows[0]


def test_weights_that_were_trained_on_after_an_evaluation_have_no_decision(trained_digits, tmp_path):
    """best.pth has the one of its own epoch. An evaluation chooses for the goal; a longer training decides again."""
    run = shutil.copytree(trained_digits(*LEARNS), tmp_path / "out/run")
    steps = read_json(run / "run.json")["step"]
    best = read_record(str(run / "best.pth")).decision
    longer = cli(f"-resume={run} -epochs=3 -opts TRAIN.MAX_STEPS={steps + 1}")
    train(longer)
    later = read_record(str(run / "last.pth")).decision
    assert (later.temperature, later.point.is_chosen, later.point.threshold) == (1, False, None)
    assert read_record(str(run / "best.pth")).decision == best
    summary, rows, *_ = decided_by(run / "last.pth", tmp_path)
    assert summary["chooses_point"]
    assert "decision" not in rows[0]
    train([*longer[:-2], "-opts", "TRAIN.MAX_STEPS=null"])
    assert read_record(str(run / "last.pth")).decision.point.is_chosen


def test_the_decision_of_a_mean_is_of_its_models(trained_digits, tmp_path):
    """Other weights of one, or other entries of all, are another mean; a command that chooses nothing keeps it."""
    for seed, options in enumerate((AVERAGED, (*AVERAGED, "SEED=1"))):
        shutil.copytree(trained_digits(*options), tmp_path / f"sweep/SEED={seed}-20260102-12-00")
    sweep = tmp_path / "sweep"
    (sweep / "sweep.json").write_text("{}")
    runs = [f"-resume={sweep}", "-dataset=digits"]
    measured = evaluate(tmp_path / "measured", *runs)
    stored = (sweep / MEAN).read_bytes()
    threshold = read_json(measured / "evaluation/summary.json")["operating_point"]["threshold"]

    def threshold_of(option: str = "SEED=0") -> float | None:
        """Of a prediction."""
        point, _ = point_by("-predict", *runs, "-split=val", "-opts", option)
        return point and point.threshold

    assert threshold_of() == threshold_of("DATA.RENAME={4: four}") == threshold
    assert threshold_of("MODEL.WEIGHTS_ENTRY=raw") is threshold_of("EVAL.TTA=flip") is None
    evaluate(tmp_path / "without", *runs, "-opts", "EVAL.OPERATING_POINT=null")
    assert (sweep / MEAN).read_bytes() == stored
    record = sweep / "SEED=1-20260102-12-00/run.json"
    content = read_json(record)
    content["result"]["epoch"] += 1
    record.write_text(json.dumps(content))
    assert threshold_of() is None


# Of a mean or of one model, in a prediction or not, with EVAL.TTA; the thresholds of a model, and of the mean if they
# have been measured; those that decide, and a part of the line about it
SEVERAL_LABELS = """
is_mean | predicts | tta | single | measured | thresholds | line
false | false | none | [1.0, 2.0] | | [1.0, 2.0] |
false | false | flip | [1.0, 2.0] | | [0.0, 0.0] | Left out
false | false | flip | | | [0.0, 0.0] |
true | false | none | [1.0, 2.0] | | |  # its images choose them
true | true | none | [1.0, 2.0] | | [0.0, 0.0] | of single models
true | true | none | | | [0.0, 0.0] |
true | false | none | [1.0, 2.0] | [3.0, 4.0] | [3.0, 4.0] |
true | true | none | [1.0, 2.0] | [3.0, 4.0] | [3.0, 4.0] |
"""


@each_value(SEVERAL_LABELS)
def test_thresholds_of_several_labels(is_mean, predicts, tta, single, measured, thresholds, line, monkeypatch):
    of_model, of_mean = (Decision(given and tuple(given)) for given in (single, measured))
    monkeypatch.setattr("engine.plan.decision.read_measured", lambda runs: of_mean)
    options = ["DATA.MULTI_LABEL=true", "LOSS.NAME=bce", "MODEL.NUM_CLASSES=2", f"EVAL.TTA={tta}"]
    command = replace(
        parse_command_line(["-opts", *options]), runs=[Path("sweep/run")] * is_mean, prediction=predicts or None
    )
    record = WeightsRecord("", {}, {"DATASET": "csv", "MULTI_LABEL": True}, ["a", "b"], decision=of_model)
    samples = SimpleNamespace(class_names=["a", "b"], has_class_names=True)
    decision, notes = decide(command, SimpleNamespace(config=command.config, record=record, samples=samples))
    assert decision.thresholds == (thresholds and tuple(thresholds))
    assert [line in note.text for note in notes if note.kind == "screen"] == ([True] if line else [])
    sources = ["from the weights" in text for text in told(notes, "Thresholds of the classes")]
    assert sources == ([thresholds in (single, measured)] if thresholds else [])
