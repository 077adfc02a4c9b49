"""Confidence intervals against Wilson's; their coverage is in tests/stress/coverage.py."""

import tracemalloc
from dataclasses import replace

import numpy as np
import torch
from conftest import each_value
from numpy.random import default_rng
from pytest import approx, mark
from scipy.stats import binom, binomtest, chi2, t
from sklearn.metrics import cohen_kappa_score
from test_influence import of_grades
from test_results import results_for, results_of

from engine.evaluation.influence import KINDS, units_of
from engine.evaluation.intervals import confidence_interval, ranking_of
from engine.evaluation.limits import wilson
from engine.evaluation.results import SampleResults, results_of_scores
from utils.metric_table import METRICS, metrics_of


def interval_of(results, metric, groups=None):
    return confidence_interval(replace(results, groups=None if groups is None else np.array(groups)), metric)


def of_first_class(is_wrong: np.ndarray) -> SampleResults:
    """The first of two classes is predicted for all images."""
    return results_of(torch.tensor([[1.0, 0.0]]).repeat(len(is_wrong), 1), torch.from_numpy(is_wrong).long())


def test_the_interval_of_single_images_is_wilsons():
    for hits in (0, 3, 90, 100):
        results = of_first_class(np.arange(100) >= hits)
        expected = binomtest(hits, 100).proportion_ci(method="wilson")
        low = chi2.ppf(0.05, 2 * hits) / 200 if hits == 3 else expected.low
        found, _ = confidence_interval(results, METRICS["top1"])
        assert found == approx([100 * low, 100 * expected.high], abs=0.01)
        assert confidence_interval(results, METRICS["loss"]) == (None, "")
    repeated = of_first_class(np.zeros(500))  # five in each group
    groups = [str(index // 5) for index in range(500)]
    assert interval_of(repeated, METRICS["top1"], groups)[0] == approx(found, abs=0.2)
    assert interval_of(repeated, METRICS["top1"], ["one"] * 500) == (None, "fewer than 2 groups")
    assert interval_of(of_first_class(np.zeros(1)), METRICS["recall"]) == (None, "fewer than 2 images")
    assert "most of the images" in interval_of(repeated, METRICS["top1"], ["one"] * 498 + ["two", "three"])[1]


@mark.parametrize("number", [8, 40, 200, 1000])
def test_the_interval_has_every_share_in_at_least_92_5_percent_of_the_samples(number):
    """Exactly, by the binomial distribution; Wilson's own has a share near 1 in 84%."""
    hits = np.arange(number + 1)
    low, high = wilson(hits / number, number)
    shares = np.geomspace(1e-5, 0.5, 2000)[:, None]
    covered = binom.pmf(hits, number, shares) * ((low <= shares) & (shares <= high))
    assert covered.sum(1).min() > 0.925
    assert low.min() >= 0  # tables show no -0.0000
    assert high[::-1] == approx(1 - low)


def test_images_of_few_groups_tell_no_more_than_single_images():
    groups = np.repeat(list("abcde"), [5, 5, 4, 4, 4])
    for wrong in ([0, 5, 10, 14, 18], [0, 1, 5, 6, 10, 14], [0, 5], []):  # errors spread evenly over the groups; none
        results = of_first_class(np.isin(np.arange(22), wrong))
        low, high = interval_of(results, METRICS["top1"], groups)[0]
        single_low, single_high = interval_of(results, METRICS["top1"])[0]
        assert low <= single_low
        assert high >= single_high
    kish = 22**2 / (2 * 5**2 + 3 * 4**2)  # all are right
    assert low == approx(100 * kish / (kish + 1.96**2))
    of_three, _ = interval_of(of_first_class(np.arange(24) < 8), METRICS["top1"], np.repeat(list("abc"), 8))
    assert of_three == approx([100 * limit for limit in wilson(2 / 3, 1)])  # one of which is wrong


def test_the_auroc_of_a_class_against_the_others_is_that_of_two_classes():
    generator = default_rng(0)
    targets = torch.from_numpy(generator.integers(0, 3, 300))
    logits = torch.from_numpy(generator.normal(size=(300, 3)).astype(np.float32))
    logits[:, 1] += targets == 1
    found = ranking_of(results_of(logits, targets), 1, "abc")
    others = logits[:, [0, 2]].logsumexp(1)
    binary = results_of(torch.stack([others, logits[:, 1]], 1), (targets == 1).long())
    assert found["class"] == "b"
    assert found["auroc"] == approx(binary.value(METRICS["auroc"]))
    assert found["interval"] == approx(interval_of(binary, METRICS["auroc"])[0])
    assert ranking_of(results_of(logits, torch.zeros(300, dtype=torch.int64)), 1, "abc") is None  # of no image


@mark.parametrize("name", ["balanced_accuracy", "macro_f1", "precision", "min_recall", "specificity"])
@mark.parametrize("is_right", [True, False])
def test_one_image_of_a_class_leaves_its_figure_open(name, is_right):
    """199 images of a class, all right, and one of another: Wilson's limits of 1 of 1, or 0 of 1, weighted 1/2."""
    targets = np.append(np.zeros(199, np.int64), 1)
    results = results_of_scores(targets, np.eye(2, dtype=np.float32)[targets * is_right])
    interval, _ = confidence_interval(results, METRICS[name])
    open_limits = binomtest(int(is_right), 1).proportion_ci(method="wilson")
    weight = 1 if name == "min_recall" else 0.5
    if name == "macro_f1":  # F1 is 2 J / (1 + J)
        weight /= 1 + open_limits.low
    value = results.value(METRICS[name])
    assert interval[0] <= value - 100 * weight * (is_right - open_limits.low) + 0.1
    assert interval[1] >= value + 100 * weight * (open_limits.high - is_right) - 0.1


def test_the_limits_of_the_worst_class_are_those_of_all_classes():
    """Five classes of 8 images, one wrong: each upper limit is at 0.025 / 5."""
    targets = np.repeat(np.arange(5), 8)
    results = results_of_scores(targets, np.eye(5, dtype=np.float32)[np.maximum(targets, np.arange(40) < 1)])
    limits = [binomtest(7, 8).proportion_ci(level, "exact") for level in (0.95, 0.99)]
    expected = [100 * limits[0].low, 100 * limits[1].high]
    assert confidence_interval(results, METRICS["min_recall"])[0] == approx(expected, abs=1e-6)


@mark.filterwarnings("error")
@mark.parametrize("seed", range(24))
def test_any_results_have_an_interval_that_holds_their_figure_or_none(seed):
    """Classes of 0, 1 and more images, by image and by group, one label per image or several."""
    generator = default_rng(seed)
    classes = int(generator.integers(1, 6))
    targets = np.repeat(np.arange(classes), generator.choice([0, 1, 2, 3, 30], classes))
    groups = [None, [*map(str, generator.integers(0, generator.integers(1, 30), len(targets)))]][seed % 2]
    logits = generator.normal(size=(len(targets), classes)).astype(np.float32).round(1)
    hot = np.eye(classes, dtype=np.int8)[targets]
    logits += hot * generator.choice([-9, 0, 2, 9])
    scores = torch.from_numpy(logits)
    several = torch.from_numpy(hot | (logits > 1.5))
    for results in (results_of(scores, torch.from_numpy(targets)), results_for(several, scores)):
        for metric in metrics_of(results.targets.ndim == 2):
            interval, reason = interval_of(results, metric, groups) if len(targets) else (None, "")
            if interval:
                least = -100 if metric.kind == "agreement" else 0
                assert least <= interval[0] <= results.value(metric) + 1e-9 <= interval[1] + 2e-9 <= 100 + 2e-9
                assert not reason
                assert interval[1] > interval[0]


def test_the_interval_of_many_labels_takes_12_bytes_a_score():
    generator = default_rng(0)
    shape = (1000, 400)
    targets = (generator.random(shape) < 0.003).astype(np.int8)
    results = results_of_scores(targets, generator.standard_normal(shape, np.float32))  # a quarter is predicted
    tracemalloc.start()
    assert confidence_interval(results, METRICS["mean_ap"])[0]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes + results.scores.nbytes + targets.nbytes < 12 * targets.size


@mark.parametrize("several", [False, True])
@mark.parametrize("number", [40, 200, 1000])
@mark.parametrize("name", [name for name, one in METRICS.items() if one.sign > 0 and name != "top5"])
def test_one_error_lowers_the_lower_limit_of_a_table_that_is_all_right(name, number, several):
    """Of single images and of groups of two, with scores of all sizes."""
    metric = METRICS[name]
    if metric not in metrics_of(several):
        return
    targets = np.arange(number) % 2
    groups = (np.arange(number) // 2).astype(str)
    shift = default_rng(0).uniform(0, 0.4, (number, 1)).astype(np.float32)
    for of_groups in (None, groups):
        lower = []
        for wrong in (0, 1):
            scores = np.eye(2, dtype=np.float32)[np.where(np.arange(number) < wrong, 1, targets)] + shift
            results = results_of_scores(targets, scores)
            if several:
                results = results_of_scores(np.eye(2, dtype=np.int8)[targets], scores - 0.5)
                results = replace(results, thresholds=np.zeros(2))
            low, high = interval_of(results, metric, of_groups)[0]
            lower.append(low)
            assert wrong or high == approx(100)
        assert lower[1] < lower[0] < 99.9
        assert lower[0] > 60


@mark.parametrize("images", [10, 40, 200])
def test_one_wrong_label_lowers_the_lower_limit_of_images_with_several(images):
    targets = (default_rng(0).random((images, 4)) < 0.3).astype(np.int8)
    scores = targets.astype(np.float32)
    scores[0, 0] = 1 - scores[0, 0]
    for name in ("micro_f1", "macro_f1"):
        lower = []
        for of_table in (targets, scores):
            results = replace(results_of_scores(targets, of_table.astype(np.float32)), thresholds=np.full(4, 0.5))
            lower.append(interval_of(results, METRICS[name])[0][0])
        assert 50 < lower[1] < lower[0]


PERFECT = """
number | low
7 | 74.94
40 | 93.80
200 | 98.67
1000 | 99.73
"""


@each_value(PERFECT)
def test_a_perfect_mean_average_precision_has_wilsons_interval(number, low):
    """All images have both labels, so that rounding is all the variance there is; of two labels the distance is the one
    of a label by the square root of 2."""
    both = np.ones((number, 2), np.int8)
    scores = default_rng(0).random((number, 2)).astype(np.float32)
    results = results_of_scores(both, scores)
    for groups in (None, np.arange(number)):
        assert interval_of(results, METRICS["mean_ap"], groups)[0] == approx([low, 100], abs=0.01)


KAPPAS = """
table | low | high
[[250, 250], [250, 250]] | -6.2 | 6.2  # the standard error is 1 / sqrt(1000)
[[251, 249], [250, 250]] | -6.1 | 6.3
[[25, 225], [225, 25]] | -84.7 | -74.1  # as of 80, reversed
[[225, 25], [25, 225]] | 74.1 | 84.7
[[0, 20], [20, 0]] | -100 | -82.5  # Wilson's of 40 images, twice as wide
"""


@each_value(KAPPAS)
def test_the_interval_of_a_kappa_at_chance_or_below_is_as_wide_as_its_error(table, low, high):
    for name in ("linear_kappa", "quadratic_kappa"):  # equal, of two grades
        assert confidence_interval(of_grades(table), METRICS[name])[0] == approx([low, high], abs=0.2)


def test_near_errors_do_not_show_how_far_an_error_may_be():
    """The lower limit of a quadratic kappa: as if two errors more were by chance; where all images are a grade beside,
    as far below kappa as where none is wrong. The costs follow from scikit-learn's kappas."""
    for results in (of_grades([[30, 4, 0], [4, 30, 4], [0, 4, 30]]), of_grades(10 * np.eye(10, k=1, dtype=int))):
        true = results.targets
        predicted = results.labels[:, 0]
        kappa = cohen_kappa_score(true, predicted, weights="quadratic")
        least = cohen_kappa_score(np.sort(true), np.sort(predicted)[::-1], weights="quadratic")
        errors = np.count_nonzero(true != predicted)
        near, by_chance = ((1 - one) * len(true) / errors for one in (kappa, cohen_kappa_score(true, predicted)))
        ratio = (errors * near**2 + 2 * by_chance) / (errors * near + 2)
        scale = 1 - least
        expected = least + scale * wilson((kappa - least) / scale, scale * len(true) / ratio)[0]
        of_none_wrong = least + scale * wilson(1, scale * len(true) / by_chance)[0]
        lowest = 100 * min(expected, kappa * of_none_wrong)
        assert confidence_interval(results, METRICS["quadratic_kappa"])[0][0] == approx(lowest)


@mark.parametrize("own, others", [(9, 60), (60, 9)])
@mark.parametrize("groups", [None, np.arange(69)])
def test_the_auroc_of_few_images_or_groups_has_no_interval(own, others, groups):
    hot = (np.arange(69) < own).astype(np.int8)[:, None]
    results = results_of_scores(hot, default_rng(0).normal(size=(69, 1)).astype(np.float32))
    reason = f"fewer than 10 {'images' if groups is None else 'groups'} of a class, or of the others"
    assert interval_of(results, METRICS["auroc"], groups) == (None, reason)


FEW_ERRORS = of_grades([[20, 0, 2], [0, 20, 0], [0, 0, 20]])
PLACES = np.arange(100)[:, None]
RARE_CLASS = results_of_scores(np.isin(PLACES, [0, 10, 20, 30]).astype(np.int8), -PLACES.astype(np.float32))


@mark.parametrize("name, results", [("linear_kappa", FEW_ERRORS), ("mean_ap", RARE_CLASS)])
def test_few_images_that_make_most_of_a_variance_open_the_interval(name, results):
    """By SciPy's t at the degrees of freedom of Pan and Wall: about 4.5 and 2.5 of 62 and 100 images."""
    metric = METRICS[name]
    figure = KINDS[metric.kind](results, metric.of, units_of(results))
    scale = 1 - figure.least
    share = (figure.values.mean() - figure.least) / scale
    squares = (figure.changes / scale) ** 2
    freedom = 2 * squares.sum() ** 2 / (len(squares) * squares.var())
    variance = squares.sum() * (t.ppf(0.975, freedom) / 1.96) ** 2
    limits = wilson(share, share * (1 - share) / variance)
    expected = [100 * (figure.least + scale * limit) for limit in limits]
    assert confidence_interval(results, metric)[0] == approx(expected)
