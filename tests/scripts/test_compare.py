"""`scripts/compare.py`: the paired figures against scipy, the images that count, the exit status."""

import gzip
import json
import math
import re
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from conftest import TINY_VIT, cli, config_for, each_value, refused, run_here, train
from numpy.random import default_rng
from pytest import approx, fixture, mark
from scipy.stats import t, ttest_rel

from configs.schema.operating_point import OperatingPoint
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.split import RunSplit, hash_paths
from engine.evaluation.images import IMAGES
from engine.evaluation.limits import difference_of
from engine.evaluation.paired import limits_at_goal, paired_limits
from engine.evaluation.ranking import figure_at
from engine.evaluation.results import SampleResults, results_of_scores
from engine.evaluation.session import build_evaluation_session
from engine.plan.training import _split_as
from scripts import compare
from scripts.compare import judge
from tests.datasets.sources.source_helpers import write_image
from utils.metric_table import METRICS
from utils.tables import read_csv_rows

POINT = "-metric=operating_point"
CLASSES = ("class0", "class1")


def paired_hits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether two models are right, bool (400,), and the group of each image: of 50, each with errors in common."""
    generator = default_rng(7)
    groups = np.repeat(np.arange(50), 8)
    hard = np.repeat(generator.random(50) < 0.3, 8)
    old = generator.random(400) < np.where(hard, 0.5, 0.95)
    new = np.where(generator.random(400) < np.where(hard, 0.5, 0.08), generator.random(400) < 0.75, old)
    return new, old, np.array([f"g{group}" for group in groups])


def of_unequal_groups() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `paired_hits`, with fewer images in some groups."""
    keep = default_rng(0).random(400) < np.repeat(np.linspace(0.2, 1, 50), 8)
    return tuple(array[keep] for array in paired_hits())


def limits_of(new: SampleResults, old: SampleResults, name: str = "top1") -> tuple[float, float]:
    return paired_limits([new], [old], METRICS[name])(1)


def results_of_hits(hits: np.ndarray) -> SampleResults:
    """Of two classes, 60% of the images are of the first one."""
    targets = (np.arange(len(hits)) % 5 > 2).astype(np.int64)
    predicted = np.where(hits, targets, 1 - targets)
    return results_of_scores(targets, np.eye(2, dtype=np.float32)[predicted])


def test_the_interval_of_the_difference_is_the_one_of_scipy():
    """The paired t interval of top-1 and the loss, with denominators n in place of n - 1."""
    new, old, _ = paired_hits()
    pair = [results_of_hits(new), results_of_hits(old)]
    pair[0] = replace(pair[0], losses=default_rng(0).random(400).astype(np.float32))
    gains = {"top1": (100.0 * new, 100.0 * old), "loss": (pair[1].losses, pair[0].losses)}
    for name, values in gains.items():
        expected = ttest_rel(*values).confidence_interval()
        low, high = limits_of(*pair, name)
        assert math.sqrt(400 / 399) * (high - low) == approx(expected.high - expected.low, rel=1e-6)
        assert (low + high) / 2 == approx((expected.low + expected.high) / 2)
        assert (low + high) / 2 == approx(METRICS[name].gain(*pair))
    with refused("DATA.GROUPS"):
        limits_of(replace(pair[0], lacks_groups=True), pair[1])


def test_groups_of_a_paired_top1_are_left_out_one_by_one():
    """The jackknife by group, with the degrees of freedom of Pan and Wall, at most Kish's number of groups - 1."""
    new, old, groups = of_unequal_groups()
    gains = 100.0 * new - 100.0 * old
    without = np.array([gains[groups != one].mean() for one in np.unique(groups)])
    sizes = np.unique(groups, return_counts=True)[1]
    kish = sizes.sum() ** 2 / (sizes**2).sum()
    squares = (without - gains.mean()) ** 2
    freedom = 2 * squares.sum() ** 2 / (len(squares) * squares.var())
    distance = t.ppf(0.975, min(freedom, kish - 1)) * np.sqrt(squares.sum())
    pair = (replace(results_of_hits(hits), groups=groups) for hits in (new, old))
    assert limits_of(*pair) == approx([gains.mean() - distance, gains.mean() + distance], rel=1e-6)


def test_models_that_are_equal_on_few_images_may_differ():
    """The limits of Bonett and Price, with Student's t."""
    equal = results_of_hits(np.arange(400) < 380)
    assert limits_of(equal, equal)[1] == approx(100 * t.ppf(0.975, 399) * 2**0.5 / 402)
    grouped = replace(equal, groups=np.array([f"g{number // 8}" for number in range(400)]))
    expected = 100 * t.ppf(0.975, 49) * 2**0.5 / 52
    assert limits_of(grouped, grouped)[1] == approx(expected)
    low, high = limits_of(equal, equal, "min_recall")
    assert high == -low > 1.5
    assert limits_of(equal, equal, "loss") == (0, 0)


@mark.parametrize("number", [1, 40])  # images, of one group
def test_one_image_or_group_tells_nothing_with_any_factor(number):
    one = replace(results_of_hits(np.arange(number) % 7 != 5), groups=np.full(number, "a"))
    single = results_of_hits(np.array([True]))
    of_all = [paired_limits([single], [replace(single, losses=single.losses + 1)], METRICS["loss"])]
    of_all += [paired_limits([one], [one], METRICS[name]) for name in ("top1", "loss", "ece")]
    of_all += [paired_limits([one] * 3, [one] * 3, METRICS["top1"])]
    if number > 1:
        of_all += [limits_at_goal(one, one, OperatingPoint(name="ill", label=1, specificity=0.9))[1]]
    for limits_at in of_all:
        assert {limits_at(factor) for factor in (1, 4, 1e6)} == {(-math.inf, math.inf)}
        status, verdict = judge(limits_at, 5, number)
        assert status == compare.UNKNOWN
        assert "fewer than 2" in verdict


def test_the_interval_over_seeds_of_groups_has_the_difference_in_its_middle():
    """Of groups of unequal size, whose changes have another sum than 0; and it ends where no difference can be."""
    new, old, groups = of_unequal_groups()
    pair = [replace(results_of_hits(hits), groups=groups) for hits in (new, old)]
    low, high = paired_limits([pair[0], pair[1], pair[0]], [pair[1], pair[1], pair[1]], METRICS["top1"])(1)
    assert (low + high) / 2 == approx(METRICS["top1"].gain(*pair) * 2 / 3, abs=1e-9)
    right, wrong = (results_of_hits(np.full(20, is_right)) for is_right in (True, False))
    for name, largest in (("top1", 100), ("quadratic_kappa", 200)):
        limits = paired_limits([right, wrong, right], [wrong, right, wrong], METRICS[name])(1)
        assert limits == (-largest, largest)


def test_settings_are_compared_over_seeds_and_images():
    """Of top-1 the readers and cases of the hits themselves; more images narrow the part of the images alone."""
    hits = default_rng(3).random((2, 4, 300)) < np.linspace(0.7, 0.9, 4)[:, None]
    hits[0] |= default_rng(4).random(300) < 0.2
    new, old = ([results_of_hits(one) for one in setting] for setting in hits)
    limits_at = paired_limits(new, old, METRICS["top1"])
    expected = difference_of(100.0 * hits[0] - 100.0 * hits[1])
    distance = t.ppf(0.975, 3) * expected.error
    assert limits_at(1) == approx((expected.mean - distance, expected.mean + distance))
    low, high = limits_at(1e12)
    assert high - low == approx(2 * t.ppf(0.975, 3) * math.sqrt(expected.of_seeds))
    low, high = limits_at(1e12, 2.5)  # 10 seeds
    assert high - low == approx(2 * t.ppf(0.975, 9) * math.sqrt(expected.of_seeds / 2.5))
    gains = [METRICS["auroc"].gain(*pair) for pair in zip(new, old, strict=True)]
    low, high = paired_limits(new, old, METRICS["auroc"])(1)
    assert (low + high) / 2 == approx(np.mean(gains))
    assert paired_limits(old, old, METRICS["top1"])(1)[1] == approx(t.ppf(0.975, 3) * 100 * 2**0.5 / 302)
    with refused("calibration error"):
        paired_limits(new, old, METRICS["ece"])


@mark.parametrize("goal", [{"specificity": 0.9}, {"sensitivity": 0.8}])
def test_models_are_compared_at_one_goal_with_thresholds_of_each_draw(goal):
    """A bootstrap of both classes."""
    generator = default_rng(0)
    targets = np.repeat([0, 1], [150, 50])
    shared = generator.normal(size=200) + targets
    scores = [np.float32(shared + generator.normal(size=200) / 2 + gain * targets) for gain in (0.5, 1.5)]
    pair = [results_of_scores(targets, np.stack([-one, one], 1)) for one in scores]
    point = OperatingPoint(name="ill", label=1, **goal)

    def figures(drawn: np.ndarray) -> list[float]:
        return [figure_at(point, one[drawn], targets[drawn] == 1) for one in scores]

    values, limits_at = limits_at_goal(pair[1], pair[0], point)
    assert values == approx(figures(np.arange(200)))
    draws = []
    for _ in range(1000):
        before, after = figures(np.concatenate([generator.integers(0, 150, 150), generator.integers(150, 200, 50)]))
        draws.append(after - before)
    expanded = t.ppf(0.975, 49) / 1.96 * math.sqrt(50 / 49)
    difference = values[1] - values[0]
    expected = difference + expanded * (np.quantile(draws, (0.025, 0.975)) - difference)
    assert limits_at(1) == approx(expected, abs=3)
    assert limits_at(16)[0] == approx(difference + (limits_at(1)[0] - difference) / 4, abs=0.2)
    assert limits_at_goal(pair[0], pair[0], point)[1](1)[1] > 1  # equal models may differ
    few = [results.take(np.arange(151)) for results in pair]  # one image of the class
    assert limits_at_goal(*few, point)[1](1) == (-math.inf, math.inf)


def test_the_names_that_a_shell_makes_of_a_pattern_are_refused():
    with refused("SWEEP/KEY=VALUE SWEEP/KEY=VALUE, without *"):
        compare.main([f"sweep/LR={value},SEED={seed}{end}" for value in "12" for seed in "456" for end in ("", ".log")])
    with refused("-margin=-1"):
        compare.main(["old", "new", "-margin=-1"])


def test_an_undefined_figure_is_not_compared():
    one_class = results_of_hits(np.full(3, True))
    with refused("the quadratic kappa of these images is undefined"):
        compare._figure(METRICS["quadratic_kappa"], [one_class], [one_class])


VERDICTS = """
low | high | margin | status | part
-0.4 | 0.6 | 0.5 | 0 | Not worse
-0.6 | 0.4 | 0.5 | 11 | ' 157 images'  # (0.5 / 0.4)^2 = 1.5625
-2.2 | 0.2 | 0.5 | 11 | ' 145 images'  # (1.2 / 1)^2, and one more
-1.8 | -0.2 | 0.5 | 10 | Worse
-0.3 | -0.1 | 0.5 | 10 | within the margin
-0.5 | 0.5 | 0.0 | 11 | no number
"""


@each_value(VERDICTS)
def test_the_status_follows_from_the_limits(low, high, margin, status, part):
    difference = (low + high) / 2

    def limits_at(factor):
        width = (high - low) / 2 / factor**0.5
        return difference - width, difference + width

    found, verdict = judge(limits_at, margin, 100)
    assert found == status
    assert part in verdict


@mark.parametrize("name", ["top1", "balanced_accuracy", "min_recall"])
@mark.parametrize("target", [None, 0, 1])
def test_the_number_of_needed_images_is_the_fewest_whose_interval_tells_it(name, target):
    """Two equal models on 22 images of a class and 2 of another one; target: the figure of this class alone."""

    def limits_of(images: int):
        targets = (np.arange(images) % 12 == 0).astype(np.int64)
        results = results_of_scores(targets, np.eye(2, dtype=np.float32)[targets])
        if target is not None:
            results = results.take(np.flatnonzero(targets == target))
        return paired_limits([results], [results], METRICS[name])

    status, verdict = judge(limits_of(24), 5, 24)
    assert status == compare.UNKNOWN
    needed = int(verdict.partition("about ")[2].partition(" images")[0].replace(",", ""))
    assert judge(limits_of(12 * -(-needed // 12)), 5, needed)[0] == compare.NOT_WORSE  # whole dozens have the same mix
    assert judge(limits_of(12 * ((needed - 1) // 12)), 5, needed)[0] == compare.UNKNOWN


def test_the_number_of_needed_seeds_is_told_where_no_number_of_images_is_enough():
    def limits_at(factor, of_more_seeds=1):
        width = t.ppf(0.975, 4 * of_more_seeds - 1) * (9 / of_more_seeds + 1 / factor) ** 0.5
        return -width, width

    needed = next(seeds for seeds in range(4, 100) if limits_at(1, seeds / 4)[0] > -5)
    status, verdict = judge(limits_at, 5, 2000, 4)
    assert status == compare.UNKNOWN
    assert f"about {needed} seeds" in verdict
    assert "more of both" in judge(limits_at, 1, 2000, 4)[1]
    assert "larger -margin" in judge(limits_at, 0.1, 2000, 4)[1]


def add_images(root: Path, names: range) -> None:
    generator = default_rng(names.start)
    for number in names:
        for label, light in enumerate((60, 180)):
            pixels = generator.integers(light - 60, light + 60, (8, 8, 3), dtype=np.uint8)
            write_image(root / f"class{label}/{number:03}.png", pixels)


@fixture(scope="module")
def grown(tmp_path_factory) -> tuple[Path, Path, Path, Path]:
    """The data, an old run of a half of them, whose weights know nothing, and a new one with and without -held_out."""
    root = tmp_path_factory.mktemp("compare")
    data = root / "data"
    options = [*TINY_VIT, *cli("MODEL.NUM_CLASSES=2 TRAIN.NUM_EPOCHS=4 TRAIN.WARMUP_EPOCHS=0")]
    options.append("EVAL.OPERATING_POINT={class: class1, specificity: 0.5}")
    argv = cli(f"-dataset=folder -data_path={data} -batch_size=8 -output={root}")
    add_images(data, range(30))
    old = train([*argv, "-name=old", "-opts", *options, "DATA.VAL_FRACTION=0.4", "TRAIN.BASE_LR=1e-9"])
    add_images(data, range(30, 60))
    options += ["TRAIN.BASE_LR=3e-3"]
    new = train([*argv, "-name=new", f"-held_out={old}", "-opts", *options])
    other = train([*argv, "-name=other", "-opts", *options, "DATA.SPLIT_SEED=5"])
    return data, old, new, other


def predicted(run: Path, data: Path, names: set[str], folder: Path) -> list[dict[str, str]]:
    """The rows of -predict of these images."""
    folder.mkdir()
    (folder / "list.txt").write_text("\n".join(str(data / name) for name in names))
    run_here(f"-predict={folder / 'list.txt'}", f"-resume={run}", f"-output={folder}")
    return read_csv_rows(folder / "predictions.csv")


@fixture
def compared(capsys):
    """The exit status, and what is printed."""

    def run(old: Path, new: Path, *words: str) -> tuple[int, str]:
        return compare.main([str(old), str(new), *words]), capsys.readouterr().out

    return run


def test_models_of_other_classes_are_not_compared(grown, compared, tmp_path):
    data = tmp_path / "data"
    add_images(data, range(30))
    for name in CLASSES:
        (data / name).rename(data / f"other {name}")
    argv = cli(f"-dataset=folder -data_path={data} -batch_size=8 -output={tmp_path} -opts")
    new = train([*argv, *TINY_VIT, *cli("MODEL.NUM_CLASSES=2 TRAIN.NUM_EPOCHS=1")])
    with refused(r"best\.pth.*'class0'"):
        compared(grown[1], new)


def held_out_by(run: Path) -> set[str]:
    return {*json.loads((run / "held_out.json").read_text())["held_out"]}


def test_a_new_run_holds_out_the_old_list_and_a_part_of_the_new_images(grown):
    _, old, new, _ = grown
    assert held_out_by(old) < held_out_by(new)
    assert {int(name[7:10]) >= 30 for name in held_out_by(new) - held_out_by(old)} == {True}
    assert len(held_out_by(new)) == 24 + 24  # with the share of the old run
    before = RunSplit(3, 0.4, (), groups="(p.)/")
    given = config_for("-opts", "DATA.SPLIT_SEED=5")
    taken = _split_as(given, before).data
    assert (taken.val_fraction, taken.split_seed, taken.groups) == (0.4, 5, "(p.)/")
    with refused("-held_out excludes DATA.FOLDS"):
        _split_as(config_for("-opts", "DATA.FOLDS=3", "DATA.FOLD=0"), before)


def test_both_models_are_compared_on_images_that_neither_was_trained_on(grown, tmp_path, compared):
    """The figures are those of -predict on these images."""
    data, old, _, other = grown
    unseen = held_out_by(old) & held_out_by(other)
    status, text = compared(old, other, "-margin=5")
    left_out = f"training images of NEW among them, left out: {24 - len(unseen)}"
    assert re.search(rf"Images: 24; {left_out} \(by content.* or by path\)", text)
    shutil.copy(other / "best.pth", tmp_path)
    assert f"{left_out} (by path)" in compared(old, tmp_path / "best.pth")[1]
    state = torch.load(other / "best.pth")
    del state["split"]
    torch.save(state, tmp_path / "best.pth")
    shutil.copy(other / IMAGES, tmp_path)
    assert f"{left_out} (by content" in compared(old, tmp_path / "best.pth")[1]
    figures = []
    for name, run in (("OLD", old), ("NEW", other)):
        rows = predicted(run, data, unseen, tmp_path / name)
        figures.append(100 * np.mean([row["class_1"] in row["path"] for row in rows]))
        assert f"{name}: top-1 {figures[-1]:.2f}%" in text
    assert f"{figures[1] - figures[0]:+.4g}," in text
    assert status in (0, 11)


def test_images_count_as_trained_on_by_path_or_by_content(grown, tmp_path, compared):
    """NEW was interrupted, and its table has few of its images: one is at hand under another name, others by theirs."""
    data, old, _, other = grown
    packed = gzip.decompress((other / IMAGES).read_bytes()).decode().splitlines()
    trained = [line for line in packed if line.startswith("train,")]
    known, *others = (line.split(",")[1] for line in trained)
    copies = shutil.copytree(data, tmp_path / "copies")
    (copies / known).rename(copies / "class0/copy.png")
    for name in others:
        (copies / name).write_bytes((copies / name).read_bytes() + b" ")  # the same pixels
    lines = [line if line in (*trained[:1], packed[0]) else line.rpartition(",")[0] + "," for line in packed]
    (tmp_path / IMAGES).write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    shutil.copy(other / "best.pth", tmp_path)
    _, text = compared(old, tmp_path / "best.pth", f"-data_path={copies}", "-split=all")
    way = f"(by content, of which {tmp_path / IMAGES} has 1 of {len(trained)} or by path)"
    assert f"Images: 120; training images of NEW among them, left out: {len(trained)} {way}" in text


def test_new_data_are_compared_without_the_images_that_a_model_was_trained_on(grown, tmp_path, compared):
    data, old, new, _ = grown
    add_images(tmp_path, range(200, 210))
    trained = next(name for name in (f"class0/{number:03}.png" for number in range(30)) if name not in held_out_by(old))
    shutil.copy(data / trained, tmp_path / "class0/999.png")
    with refused("-split=all"):
        compared(old, new, f"-data_path={tmp_path}")
    _, text = compared(old, new, f"-data_path={tmp_path}", "-split=all")
    assert "Images: 21; training images of OLD among them, left out: 1 (by content or by path)" in text


def test_sensitivity_and_specificity_at_the_threshold_of_each_model_are_compared(grown, tmp_path, compared):
    """The figures are those of the decisions of -predict; the figure that is worse decides on the status."""
    data, old, new, _ = grown
    shares = []
    for run in (old, new):
        rows = predicted(run, data, held_out_by(old), tmp_path / run.name)
        is_right = {name: [row["decision"] == name for row in rows if name in row["path"]] for name in CLASSES}
        shares.append({name: 100 * np.mean(right) for name, right in is_right.items()})
    _, text = compared(old, new, POINT)
    for name, title in zip(CLASSES, ("specificity", "sensitivity"), strict=True):
        assert f"OLD: {title} of class1 {shares[0][name]:.2f}%" in text
        assert f"NEW: {title} of class1 {shares[1][name]:.2f}%" in text
        assert f"{shares[1][name] - shares[0][name]:+.4g}," in text
    status, text = compared(new, new, POINT, "-margin=5")  # half of the images are of a class: t * sqrt(2) / (n + 2)
    needed = next(n for n in range(48, 200) if 100 * t.ppf(0.975, n / 2 - 1) * 2**0.5 / (n / 2 + 2) < 5)
    assert (status, text.count(f" {needed} images like these")) == (11, 2)
    state = torch.load(new / "best.pth")
    (key,) = (key for key in state if "operating_point" in key)

    def with_threshold(threshold: float | None) -> Path:
        torch.save(state | {key: state[key] | {"threshold": threshold}}, tmp_path / "other.pth")
        return tmp_path / "other.pth"

    for threshold, title in ((-99.0, "specificity"), (99.0, "sensitivity")):  # that all images reach, or none
        status, text = compared(new, with_threshold(threshold), POINT)
        assert status == 10
        assert f"NEW: {title} of class1 0.00%" in text
    unreached = with_threshold(None)  # its images cannot reach the goal
    with refused("EVAL.OPERATING_POINT"):
        compared(unreached, unreached, POINT)
    del state[key]
    torch.save(state, tmp_path / "none.pth")
    with refused("EVAL.OPERATING_POINT"):
        compared(new, tmp_path / "none.pth", POINT)


def test_settings_of_a_sweep_are_compared_over_their_seeds(grown, tmp_path, compared, monkeypatch):
    """Of three equal seeds the difference of the pair, with Student's t of two degrees. One model after the other is in
    memory."""
    _, old, new, _ = grown
    difference = re.search(r"Difference, .*?,", compared(old, new, "-metric=loss")[1])[0]
    models = []

    def build(*arguments):
        assert not any(model() for model in models)
        session = build_evaluation_session(*arguments)
        models.append(weakref.ref(session.model))
        return session

    monkeypatch.setattr("scripts.compare.build_evaluation_session", build)
    for values, run in (("BASE_LR=1e-9,DROPOUT=0.1", old), ("BASE_LR=0.003,DROPOUT=0.2", new)):
        for seed in (4, 5, 6):
            folder = shutil.copytree(run, tmp_path / f"sweep/{values},SEED={seed}-20260101-12-00")
            config = (folder / "config.yaml").read_text()
            (folder / "config.yaml").write_text(re.sub(r"(?m)^SEED: .*", f"SEED: {seed}", config))
    sweep = tmp_path / "sweep"
    status, text = compared(sweep / "TRAIN.BASE_LR=1e-9", sweep / "BASE_LR=0.003", "-metric=loss")
    assert (status, len(models)) == (0, 6)
    assert difference in text
    assert "mean of 3 seeds, deviation 0" in text
    with refused("TRAIN.BASE_LR"):
        compared(sweep, sweep / "DROPOUT=0.2")
    for absent in ("BASE_LR=3", "EVAL.BASE_LR=1e-9", "TRAIN.WARMUP_START_LR=1e-9", "LORA.DROPOUT=0.1"):
        with refused(f"{absent}: no finished run .* 'BASE_LR=0.003,DROPOUT=0.2,SEED=4'"):
            compared(sweep / absent, sweep / "DROPOUT=0.2")
    with refused("3 seeds in common"):
        compared(sweep / "DROPOUT=0.1", sweep / "DROPOUT=0.2,SEED=4")
    with refused(POINT):
        compared(sweep / "DROPOUT=0.1", sweep / "DROPOUT=0.2", POINT)


def test_test_images_are_advised_only_where_the_run_has_some(grown, tmp_path, compared):
    """And the advice works: the figures are those of the run."""
    _, old, *_ = grown
    _, text = compared(old, old)
    assert "epoch or thresholds of OLD and NEW" in text
    assert "-split=test" not in text
    for split, names in (("train", range(8)), ("val", range(8, 12)), ("test", range(12, 18))):
        add_images(tmp_path / "data" / split, names)
    words = cli(f"-dataset=folder -data_path={tmp_path / 'data'} -batch_size=8 -output={tmp_path} -opts")
    argv = [*words, *TINY_VIT, "MODEL.NUM_CLASSES=2"]
    once = train([*argv, "TRAIN.NUM_EPOCHS=1"])
    assert "too good" not in compared(once, once)[1]  # nothing was chosen
    run = train([*argv, "TRAIN.NUM_EPOCHS=2"])
    assert "thresholds of NEW:" in compared(once, run)[1]
    assert "-split=test" in compared(run, run)[1]
    _, text = compared(run, run, "-split=test")
    top1 = json.loads((run / "run.json").read_text())["result"]["test"]["top1"]
    assert "Compared: 12 images" in text
    assert f"OLD: top-1 {top1:.2f}%" in text
    assert "too good" not in text


def test_the_status_is_the_one_of_a_cron_job(grown, tmp_path, compared):
    _, old, new, _ = grown
    status, text = compared(old, new)
    assert status == 0
    assert "NEW among them, left out: 0" in text  # none: NEW was trained with -held_out
    assert compared(new, old, "-metric=loss")[0] == 10
    assert compared(new, new, "-metric=balanced_accuracy")[0] == 11
    status, text = compared(old, new, "-opts", "EVAL.OPERATING_POINT={class: class0, sensitivity: 0.7}")
    assert status == 0
    assert "specificity of class0 at 70% sensitivity" in text
    state = torch.load(new / "best.pth")
    torch.save(state | {"class_names": ["a", "class1"]}, tmp_path / "a.pth")
    with refused("'class0'"):
        compared(old, tmp_path / "a.pth")
    hashes = hash_paths(StringPacker(held_out_by(old)).strings()).view(np.int64)
    state["split"]["trained"] = torch.from_numpy(np.concatenate([state["split"]["trained"], hashes]))
    torch.save(state, tmp_path / "a.pth")
    with refused("-held_out=OLD"):
        compared(old, tmp_path / "a.pth")
