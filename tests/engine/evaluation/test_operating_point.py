"""Operating points against scikit-learn's ROC curve, and on their way from a training to a prediction."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from conftest import (
    CPU,
    TINY_VIT,
    cells_of,
    cli,
    config_for,
    each_row,
    each_value,
    evaluate,
    export_as,
    predict,
    refused,
    run_here,
    seeded,
    train,
)
from numpy.random import default_rng
from pytest import approx, mark
from scipy.special import expit
from scipy.stats import beta
from sklearn.metrics import confusion_matrix, roc_auc_score, roc_curve
from test_evaluation_files import PHOTOS, Noise, read_table
from test_results import results_for, results_of, stored_decision

from configs.schema.operating_point import Decision, OperatingPoint
from datasets.sources.shared_arrays import StringPacker, to_arrays
from engine.checkpoint.weights_record import check_description, decision_to_entries, read_decision, read_record
from engine.evaluation.calibration import temper
from engine.evaluation.intervals import figures_at
from engine.evaluation.limits import wilson
from engine.evaluation.predictions import Predictions
from engine.evaluation.results import MIXED_LABELS, SampleResults, choose_threshold, mean_by_group, results_of_scores
from engine.plan.decision import note_on_goal, operating_goal
from tests.datasets.sources.source_helpers import write_patients
from utils.files import read_json
from utils.tables import read_csv_rows


def point_of(label: int = 1, **goal: float | str) -> OperatingPoint:
    return OperatingPoint(name="ill", label=label, **goal)


def drawn(seed: int, classes: int, multi_label: bool = False) -> SampleResults:
    """Of 120 samples with many equal scores."""
    generator = seeded(seed)
    targets = torch.randint(0, classes, (120,), generator=generator)
    one_hot = torch.eye(classes)[targets]
    logits = (torch.randn(120, classes, generator=generator) + 1.5 * one_hot).round(decimals=seed % 2)
    return results_for(one_hot.to(torch.int8), logits) if multi_label else results_of(logits, targets)


KINDS = """
classes | multi_label
2 | false
4 | false
3 | true
"""
GOALS = """
name | least
specificity | 0.95
specificity | 0.5
sensitivity | 0.9
sensitivity | 0.999999999
specificity | 0.999
"""


@mark.parametrize("seed", range(2))
@each_value(KINDS)
@each_value(GOALS)
def test_the_point_is_the_best_one_of_scikit_learns_curve(seed, classes, multi_label, name, least):
    """Also when it is applied as a file has it."""
    results = drawn(seed, classes, multi_label)
    scores, is_own = results.of_class(1)
    false, true, thresholds = (values[1:] for values in roc_curve(is_own, scores, drop_intermediate=False))
    figures = {"specificity": 1 - false, "sensitivity": true}
    (other,) = figures.keys() - {name}
    possible = (figures[name] >= least) & (true > 0) & (false < 1)
    found = figures_at(results, stored_decision(replace(results, point=point_of(**{name: least}))).point)
    if not possible.any():
        assert found["threshold"] is found["sensitivity"] is None
        return
    best = np.lexsort((figures[name], figures[other], possible))[-1]
    lower = scores[scores < thresholds[best]]
    assert found["threshold"] == approx(np.mean([thresholds[best], max(lower, default=thresholds[best])]))
    (rest, wrong), (missed, hits) = found["confusion"]
    for figure, right, number in (("sensitivity", hits, hits + missed), ("specificity", rest, rest + wrong)):
        share = right / number
        assert found[figure] == approx(100 * share) == approx(100 * figures[figure][best])
        assert found[f"{figure}_interval"] == approx([100 * limit for limit in wilson(share, number)])


FEW_IMAGES = """
goal | ill | well | is_told
{specificity: 0.99} | 500 | 90 | true
{specificity: 0.99} | 5 | 100 | false
{sensitivity: 0.9} | 9 | 500 | true
{sensitivity: 0.9} | 10 | 5 | false
{sensitivity: 0.5} | 0 | 5 | true
"""


@each_value(FEW_IMAGES)
@mark.parametrize("is_multi_hot", [False, True])
def test_a_goal_that_the_images_cannot_resolve_is_told(goal, ill, well, is_told, is_multi_hot):
    targets = np.repeat([0, 1], [well, ill])
    if is_multi_hot:
        targets = np.eye(2, dtype=np.int8)[targets]
    notes = note_on_goal(point_of(**goal), SimpleNamespace(targets=targets, groups=None))
    assert [note.kind for note in notes] == ["screen"] * is_told


FEW_GROUPS = """
images | goal | told
[0, 0, 0, 1, 1, -2] | {specificity: 0.5} | ['1']
[0, 0, 0, 1, 1, -2] | {specificity: 0.75, groups: any} | ['3', '1']
[0, 0, 0, 1, 1, -2] | {sensitivity: 0.5} | ['1']
[0, 0, 0, 1, 1, -2] | {sensitivity: 0.5, groups: any} | []
[0, 1, 0, 1] | {sensitivity: 0.9} | ['2', any]
[0, 1, 0, 1] | {sensitivity: 0.9, groups: any} | ['2', '2']
"""


@each_value(FEW_GROUPS)
def test_a_goal_that_the_groups_cannot_resolve_is_told(images, goal, told):
    """Of three images and one group without the class, one of them in a mixed group; of one and two groups with it;
    with the option that counts groups which all have several labels.
    """
    samples = SimpleNamespace(targets=np.array([images], np.int8).T, groups="aabbcd"[: len(images)])
    notes = note_on_goal(point_of(0, **goal), samples)
    assert [re.search(r"(?<=more than )\d|(?<=groups: )any", note.text)[0] for note in notes] == told


def test_why_there_is_no_threshold_or_no_interval():
    """Images of one kind; weights without a threshold; a goal that none reaches; one group."""
    results = drawn(0, 2)
    chosen = point_of(specificity=0.5, is_chosen=True)
    reversed_order = replace(results, scores=2.0 * (results.targets[:, None] == [[1, 0]]).astype(np.float32))
    well, ill = (results.take(np.flatnonzero(results.targets == label)) for label in (0, 1))
    whys = [figures_at(one, chosen)["sensitivity_interval_missing"] for one in (well, ill, results, reversed_order)]
    assert whys == [
        f"no threshold: {why}"
        for why in (
            "no images with ill",
            "no images without ill",
            "the weights have none",
            "50% specificity is reached only with none called ill",
        )
    ]
    at_zero = chosen.model_copy(update={"threshold": 0.0})
    assert figures_at(replace(well, unit="groups"), at_zero)["sensitivity_interval_missing"] == "no groups with ill"
    found = figures_at(
        replace(results, groups=np.where(results.targets == 1, "a", np.arange(120).astype(str))), at_zero
    )
    assert found["specificity_interval"]
    assert "with ill" in found["sensitivity_interval_missing"]


# The labels of images by descending score, the goal, the sensitivity at the point
WORSE_THAN_NONE = """
1 0 0 0 1 | specificity 0.9 | 50
0 1 1 1 1 | specificity 0.9 |  # reached only where no image is predicted, the first point of scikit-learn's curve
0 0 0 0 1 | specificity 0.3 |  # at two false alarms without a hit: worse than no point
0 1 0 0 0 | specificity 0.7 | 100
0 1 1 1 1 | sensitivity 0.9 |  # reached only where all images are predicted
0 1 1 0 1 | sensitivity 0.5 | 66.67
1 1 1 1 1 | specificity 0.9 |
"""


@mark.parametrize("labels, goal, expected", cells_of(WORSE_THAN_NONE))
def test_a_point_without_a_hit_and_one_that_predicts_all_are_none(labels, goal, expected):
    targets = torch.tensor([*map(int, labels.split())])
    scores = torch.stack([torch.zeros(5), torch.arange(5, 0, -1.0)], 1)
    name, least = goal.split()
    results = replace(results_of(scores, targets), point=point_of(**{name: float(least)}))
    assert results.used_point.is_chosen
    found = figures_at(results, results.used_point)
    assert (found["threshold"] is None) == (expected == "")
    assert found["sensitivity"] == (approx(float(expected), abs=0.01) if expected else None)


def test_files_name_the_goal_apart_from_measured_figures_and_files_of_before_are_read():
    point = point_of(specificity=0.95, is_chosen=True, threshold=1.5)
    entries = decision_to_entries(Decision(point=point))
    stored = entries["operating_point"]
    assert stored["goal_specificity"] == 0.95
    assert not {"sensitivity", "specificity"} & {*stored}
    before = {"operating_point": {name.removeprefix("goal_"): value for name, value in stored.items()}}
    for content in (entries, before):
        check_description(content)
        assert read_decision(content).point == point


def test_a_threshold_between_two_neighbours_of_float32_parts_them(tmp_path):
    """In figures, and in the decisions of a prediction: float32 would round it to one of them."""
    low = np.float32(1.5)
    scores = np.array([low, np.nextafter(low, np.float32(2))] * 2)
    targets = np.array([0, 1, 0, 1])
    results = results_of_scores(targets, np.stack([-scores, scores], 1))
    for point in (point_of(specificity=0.9), point_of(sensitivity=0.9)):
        used = stored_decision(replace(results, point=point)).point
        assert float(low) < used.threshold < float(scores[1])
        assert figures_at(results, used)["confusion"] == confusion_matrix(targets, scores > low).tolist()
        made = Predictions(tmp_path, Noise(list("abcd")), ["well", "ill"], PHOTOS, None, used)
        made.write([results], CPU)
        assert [row["decision"] for row in read_csv_rows(tmp_path / "predictions.csv")] == ["well", "ill"] * 2


@mark.parametrize("rule", [None, "any"])
def test_a_point_of_groups_is_the_one_of_their_means(rule):
    """A group with different labels counts only with `any`, then as ill."""
    results = drawn(1, 3)
    patients = default_rng(0).integers(0, 25, 120)
    targets = np.where(patients % 9 == 0, results.targets, patients % 3)
    point = point_of(specificity=0.5, groups=rule)
    results = replace(results, targets=targets, groups=patients.astype(str), point=point)
    frame = pd.DataFrame({"p": torch.from_numpy(results.scores[:, 1]).double().sigmoid(), "ill": targets == 1})
    groups = frame.groupby(results.groups).agg(p=("p", "mean"), ill=("ill", "any"))
    mixed = pd.Series(targets).groupby(results.groups).nunique() > 1
    kept = groups[~mixed | ((rule == "any") & groups.ill)]
    false, true, _ = roc_curve(kept.ill, kept.p, drop_intermediate=False)
    grouped = mean_by_group(replace(results, point=results.used_point))
    assert list(grouped.errors.values()) == [MIXED_LABELS] * (len(groups) - len(kept))
    assert len(grouped.readable) == len(kept)
    assert grouped.unit == "groups"
    assert figures_at(grouped, grouped.point)["sensitivity"] == approx(100 * true[1 - false >= 0.5].max())


GOAL = "EVAL.OPERATING_POINT={class: 3, specificity: 0.9}"
# A run that recognizes some images of the class
GOOD = (GOAL, "DATA.FRACTION=0.25", "DATA.BATCH_SIZE=64", "TRAIN.BASE_LR=1e-2")


def test_the_point_of_a_training_decides_in_predictions_and_travels_with_exports(trained_digits, tmp_path):
    folder = trained_digits(*GOOD)
    summary = read_json(folder / "evaluation/summary.json")
    found = summary["operating_point"]
    assert (found["class"], found["is_chosen"]) == ("3", True)
    with np.load(folder / "evaluation/scores.npz") as saved:
        scores = temper(saved["scores"], summary["calibrated"]["temperature"], multi_label=False)
        expected = scores[:, 3] >= found["threshold"]
        assert found["sensitivity"] == approx(100 * expected[saved["labels"] == 3].mean())
    exported = tmp_path / "a.safetensors"
    export_as("safetensors", folder, exported, "-no_check")
    for weights in (folder / "best.pth", exported):
        rows = predict(tmp_path / weights.name[:4], f"-pretrained={weights}", "-split=val", "-dataset=digits")
        assert [row["decision"] for row in rows] == np.where(expected, "3", "not 3").tolist()
    renamed = tmp_path / "renamed.safetensors"
    export_as("safetensors", folder, renamed, "-opts", "DATA.RENAME={3: three}")
    record = read_record(str(renamed))
    assert record.class_names == [*"012", "three", *"456789"]
    assert record.decision.point.name == "three"
    with refused("DATA.RENAME: an export cannot merge classes"):
        export_as("hf", folder, tmp_path / "hf", "-no_check", "-opts", "DATA.RENAME={3: 4}")


def test_an_evaluation_says_that_it_chooses_the_point_that_weights_lack(digits_run, tmp_path, capsys):
    folder = digits_run()
    chosen = evaluate(tmp_path / "eval", f"-resume={folder}", "-opts", GOAL.replace("0.9", "0.999"))
    assert capsys.readouterr().out.count("EVAL.OPERATING_POINT") == 2  # the goal needs more images
    assert read_json(chosen / "evaluation/summary.json")["operating_point"]["is_chosen"]
    with refused(r"EVAL\.OPERATING_POINT: the weights have none"):
        predict(tmp_path, f"-resume={folder}", "-opts", GOAL)


def test_a_training_keeps_its_point(digits_run):
    """Else best.pth would have the threshold of another goal, or be replaced by a worse epoch."""
    folder = digits_run(*GOOD)
    best = (folder / "best.pth").read_bytes()
    with refused(r"EVAL\.OPERATING_POINT: differs"):
        train([f"-resume={folder}", "-epochs=3", "-opts", GOAL.replace("0.9", "0.5")])
    assert (folder / "best.pth").read_bytes() == best


def test_an_unknown_class_is_named(digits_argv):
    with refused(r"EVAL\.OPERATING_POINT: no class is 'ill'"):
        run_here(*digits_argv, GOAL.replace("3", "ill"))


TYPED = """
typed | label
008 | 1
8 | 1
1.50 | 2
true | 3
'007' | 0
"""


@each_row(TYPED)
def test_a_class_is_found_by_the_value_that_yaml_reads(typed, label):
    config = config_for("-opts", f"EVAL.OPERATING_POINT={{class: {typed}, specificity: 0.9}}")
    names = ["007", "008", "1.50", "true", "7"]
    point = operating_goal(config, names)
    assert point.name == names[point.label] == names[int(label)]


def test_a_point_of_more_classes_than_have_scores_is_refused():
    config = config_for("-opts", "EVAL.OPERATING_POINT={class: 5, specificity: 0.9}")
    names = [*map(str, range(257))]
    assert operating_goal(config, names[:256]).label == 5
    with refused("257 classes"):
        operating_goal(config, names)


@mark.parametrize("thresholds, labels", [(None, ["a", "images"]), (np.zeros(2), ["a | images", "images"])])
def test_without_a_decision_the_predicted_classes_are_counted(thresholds, labels, tmp_path):
    samples = Noise(["1.jpg", "2.jpg", "3.jpg"])
    samples.arrays |= to_arrays(StringPacker(["g"] * 3).strings(), "groups")
    logits = np.array([[2, 1], [-1, 3], [-2, 3]], np.float32)
    targets = np.zeros(3, np.int64) if thresholds is None else np.zeros((3, 2), np.int8)
    made = Predictions(tmp_path, samples, ["a", "images"], PHOTOS, thresholds)
    made.write([results_of_scores(targets, logits)], CPU)
    assert read_table(tmp_path / "counts.csv")[1:] == [["g", labels[0], "1"], ["g", labels[1], "2"]]
    assert read_table(tmp_path / "groups.csv")[0] == ["group", "images (no class)", "a", "images"]


def assert_counted(folder: Path, images: pd.DataFrame, column: str):
    """The images by group and the column, and those that need a review."""
    rows = images.assign(needs_review=images.needs_review == "yes").groupby(["group", column])
    counts = pd.read_csv(folder / "counts.csv", index_col=["group", "label"])
    assert counts.to_dict() == {"images": rows.size().to_dict(), "needs_review": rows.needs_review.sum().to_dict()}


def test_figures_and_predictions_of_patients_are_those_of_pandas_and_scikit_learn(tmp_path, few_penalties):
    """Four images of each patient, one of whom has images of both classes."""
    data = tmp_path / "data"
    write_patients(data, ["ill" if (number // 4) % 3 == 0 or number == 4 else "well" for number in range(240)])
    point = "EVAL.OPERATING_POINT={class: ill, sensitivity: 0.8}"
    keys = [*TINY_VIT, "MODEL.NUM_CLASSES=2", "DATA.VAL_FRACTION=0.5", "MODEL.TUNE=probe", point]
    groups = r"DATA.GROUPS=(P\d+)_"
    flags = cli(f"-output={tmp_path / 'out'} -data_path={data} -dataset=folder -batch_size=8 -opts")
    folder = train([*flags, *keys, groups, "EVAL.BEST_METRIC=auroc"])
    of_images = read_json(folder / "evaluation/summary.json")
    with np.load(folder / "evaluation/scores.npz") as saved:
        p = expit(saved["scores"][:, 0] / of_images["calibrated"]["temperature"])
        patients = pd.DataFrame({"p": p, "ill": saved["labels"] == 0}).groupby(saved["groups"]).mean()
    assert read_json(folder / "run.json")["facts"]["TrainingData"]["groups"] == [60 - len(patients), len(patients)]
    one_label = patients[patients.ill.isin([0, 1])]
    summary = read_json(folder / "evaluation/groups/summary.json")
    assert summary["auroc"] == approx(100 * roc_auc_score(one_label.ill, one_label.p))
    assert (summary["samples"], summary["unreadable"]) == (len(one_label), len(patients) - len(one_label))
    used = summary["operating_point"]
    of_group = expit(used["threshold"])
    assert used["sensitivity"] >= 80
    assert used["confusion"] == confusion_matrix(one_label.ill, one_label.p >= of_group).tolist()
    assert summary["class_auroc"] is None  # the AUROC of two classes, which decides
    review = "EVAL.REVIEW=[0.3, 0.45]"
    predict(tmp_path / "p", str(data), f"-resume={folder}", "-opts", review)
    images = pd.read_csv(tmp_path / "p/predictions.csv")
    of_image = expit(of_images["operating_point"]["threshold"])
    assert images.decision_threshold.tolist() == approx([of_image] * 240, abs=1e-6)
    ill = np.where(images.class_1 == "ill", images.probability_1, images.probability_2)
    needs_review = (ill >= 0.3) & (ill < 0.45)
    assert 0 < needs_review.sum() < 240
    assert (images.needs_review == np.where(needs_review, "yes", "no")).all()
    images["group"] = images.path.str.extract(r"(P\d+)_")[0]
    assert_counted(tmp_path / "p", images, "decision")
    means = pd.Series(ill).groupby(images.group).mean()
    found = pd.read_csv(tmp_path / "p/groups.csv", index_col="group")
    assert found.index.tolist() == means.index.tolist()
    assert found.images.tolist() == [4] * 60
    assert found.ill.tolist() == approx(means.tolist(), abs=2e-6)
    assert (found.decision == np.where(found.ill >= of_group, "ill", "well")).all()
    images[["path", "group"]].to_csv(tmp_path / "new.csv", index=False)
    words = [str(tmp_path / "new.csv"), f"-resume={folder}", "-threshold=0.55"]
    predict(tmp_path / "q", *words, "-opts", "DATA.GROUPS=group", review)  # a column
    images["label"] = pd.read_csv(tmp_path / "q/predictions.csv").label
    assert "unknown" in images.label.tolist()
    assert_counted(tmp_path / "q", images, "label")
    assert (tmp_path / "q/groups.csv").read_text() == (tmp_path / "p/groups.csv").read_text()
    alone = [str(data), f"-resume={train([*flags, *keys, 'NAME=lone'])}"]
    assert "decision" in predict(tmp_path / "r", *alone, "-opts", groups)[0]
    assert "decision" not in read_csv_rows(tmp_path / "r/groups.csv")[0]  # as an evaluation has none
    predict(tmp_path / "r", *alone)
    assert not (tmp_path / "r/groups.csv").exists()  # of the images before


def test_the_limit_of_the_share_reaches_the_goal():
    """The fewest of 100 others whose Clopper-Pearson limit is 90%; the share alone needs 90 of them."""
    scores = np.append(np.arange(100), np.repeat([89.5, 96.5], 10)).astype(np.float32)
    results = results_of_scores(np.repeat([0, 1], [100, 20]), np.stack([-scores, scores], 1))
    shares = []
    for by_limit in (False, True):
        point = OperatingPoint(name="b", label=1, specificity=0.9, by_limit=by_limit)
        shares.append(sum(scores[:100] < choose_threshold(results, point)))
    hits = next(hits for hits in range(101) if beta.ppf(0.05, hits, 101 - hits) >= 0.9)
    assert (*shares, hits) == (90, 97, 96)
