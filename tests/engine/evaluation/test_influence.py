"""Limits and changes of figures, against SciPy, statsmodels, closed forms, and figures without an image or a group."""

from dataclasses import replace

import numpy as np
from numpy.random import default_rng
from pytest import approx, mark
from scipy.stats import beta, binomtest, t

from datasets.sources.samples import UNKNOWN
from engine.evaluation.influence import KINDS, limits_of_classes, units_of
from engine.evaluation.limits import beta_quantile, clopper_pearson, newcombe, t_quantile, two_sided_p, wilson
from engine.evaluation.results import SampleResults, results_of_scores
from utils.metric_table import METRICS, metrics_of

SMOOTH = {name for name, metric in METRICS.items() if metric.kind and name != "min_recall"}


def test_the_quantiles_are_those_of_scipy():
    generator = default_rng(0)
    a, b = 1 + 10 ** generator.uniform(-1, 6, (2, 200))
    for probability in (1e-5, 0.025, 0.5, 0.975):
        for one, two, error in ((a.round(), b.round(), 1e-9), (a, b, 1e-6)):  # counts, and those of groups
            expected = beta.ppf(probability, one, two)
            assert beta_quantile(probability, one, two) == approx(expected, abs=error)
    freedom = np.array([1, 2, 2.5, 7, 30.1, 1e3, 1e6, np.inf])
    assert t_quantile(freedom) == approx(t.ppf(0.975, freedom), rel=2e-8)
    assert t_quantile(5, 0.9999) == approx(t.ppf(0.9999, 5))
    assert two_sided_p(2.3, 7.5) == approx(2 * t.sf(2.3, 7.5))
    for hits, number in ((0, 8), (7, 8), (8, 8), (431, 1000)):
        expected = binomtest(hits, number).proportion_ci(0.98, "exact")
        assert clopper_pearson(hits, number, 0.01) == approx(tuple(expected), abs=1e-8)


def test_the_limits_of_newcombe_solve_his_equation():
    """Method 5: the areas whose standard error by Hanley and McNeil, with equal numbers, times 1.96 is the distance."""
    own = np.array([12])
    others = np.array([230])
    for theta in newcombe(np.array([0.9]), own, others):
        half = (own + others) / 2 - 1
        spread = 1 + half * (1 - theta) / (2 - theta) + half * theta / (1 + theta)
        error = np.sqrt(theta * (1 - theta) * spread / (own * others))
        assert 1.96 * error == approx(abs(0.9 - theta), abs=1e-8)
    low, high = newcombe(np.array([0.9, 1]), own, others)
    assert (low < [0.9, 1]).all()
    assert high[0] > 0.9
    assert high[1] == 1


def drawn(generator: np.random.Generator, shape: tuple[int, int], several: bool) -> SampleResults:
    """With equal scores, unknown and absent labels, a class that is never predicted, and unreadable images."""
    hot = generator.random(shape) < 0.3
    scores = (generator.normal(size=shape) + hot).round(1)
    targets = np.where(generator.random(shape) < 0.1, UNKNOWN, hot).astype(np.int8)
    targets[[3, 7]] = -1
    if several:
        return replace(results_of_scores(targets, scores.astype(np.float32)), thresholds=np.full(shape[1], 0.6))
    of_one = generator.integers(0, shape[1] - 1, shape[0])
    scores[np.arange(len(scores)), of_one] += 1
    scores[:, -1] -= 9 * (scores[:, -1] < 1)
    of_one[[3, 7]] = -1
    return results_of_scores(of_one, scores.astype(np.float32))


@mark.parametrize("several", [False, True])
@mark.parametrize("name", sorted(SMOOTH))
def test_the_changes_are_those_of_the_figure_without_the_unit(name, several):
    """Of an image the derivative: the figure of 300 copies of all images but one. Of a group exactly, where each class
    is a share: the figure without it."""
    metric = METRICS[name]
    if metric not in metrics_of(several):
        return
    results = drawn(default_rng(4), (40, 2 if several else 4), several)
    scale = 100 if metric.is_percent else 1
    rows = np.tile(results.readable, 300)
    copies = results.take(rows)
    figure = KINDS[metric.kind](results, metric.of, units_of(results))
    assert scale * figure.values.mean() == approx(results.value(metric))
    assert figure.changes.sum() == approx(0, abs=1e-9)
    for unit in (0, 5, 20):
        change = copies.value(metric) - results.take(np.delete(rows, unit)).value(metric)
        assert scale * figure.changes[unit] / 300 == approx(change, rel=0.02, abs=1e-5)
    grouped = replace(results, groups=(np.arange(40) % 9).astype(str))
    figure = KINDS[metric.kind](grouped, metric.of, units_of(grouped))
    if metric.kind in ("share", "mean") and metric.of != "f1":
        rows = results.readable
        for unit in range(9):
            without = results.take(rows[rows % 9 != unit]).value(metric)
            assert scale * figure.changes[unit] == approx(results.value(metric) - without, abs=1e-9)


def of_grades(table: list[list[int]]) -> SampleResults:
    """Of so many images of each true (row) and predicted grade (column)."""
    true, predicted = np.repeat(np.indices(np.shape(table)).reshape(2, -1), np.ravel(table), axis=1)
    return results_of_scores(true, np.eye(len(table), dtype=np.float32)[predicted])


@mark.parametrize("name, expected", [("linear", 0.001631550850165377), ("quadratic", 0.001071603939499685)])
def test_the_variance_of_kappa_is_the_one_of_statsmodels(name, expected):
    """`cohens_kappa(TABLE, wt=NAME).var_kappa` of statsmodels 0.15.0."""
    results = of_grades([[30, 4, 1, 0], [6, 25, 5, 2], [1, 7, 18, 4], [0, 1, 3, 23]])
    power = METRICS[f"{name}_kappa"].of
    figure = KINDS["agreement"](results, power, units_of(results))
    assert figure.changes @ figure.changes == approx(expected, rel=1e-9)
    costs = abs(results.targets - results.labels[:, 0]) ** power
    by_chance = costs.mean() / (1 - figure.values.mean())
    assert figure.step == approx(np.sqrt(np.mean(costs[costs > 0] ** 2)) / by_chance)


def test_the_variance_of_the_auroc_is_delongs():
    """From the placements, with denominators n in place of his n - 1."""
    targets = np.repeat([0, 1], [30, 12])
    score = (default_rng(0).normal(size=42) + targets).round(1)
    results = results_of_scores(targets, np.stack([-score, score], 1).astype(np.float32))
    wins = np.sign(score[30:, None] - score[:30]) / 2 + 0.5
    figure = KINDS["ranking"](results, "auroc", units_of(results))
    assert figure.values.mean() == approx(wins.mean())
    assert figure.changes @ figure.changes == approx(wins.mean(1).var() / 12 + wins.mean(0).var() / 30)


def test_the_limits_of_classes_are_wilsons_and_newcombes():
    """Of groups at the effective number of images: errors of whole groups count as one each. Class 3 is never
    predicted, and class 4 has no images."""
    targets = np.repeat([0, 1, 2, 3], [60, 40, 2, 1])
    predicted = np.where(np.arange(103) < 8, 1, targets % 3)
    results = results_of_scores(targets, np.eye(5, dtype=np.float32)[predicted])
    areas = results.ranking.auroc
    precisions = results.ranking.average_precision
    columns = {name: getattr(results.per_class, name) for name in ("precision", "recall", "f1")}
    columns |= {"auroc": areas, "ap": precisions}
    found = limits_of_classes(results, columns)
    recall = binomtest(52, 60).proportion_ci(method="wilson")
    assert [found["recall_low"][0], found["recall_high"][0]] == approx([100 * end for end in recall], abs=0.01)
    jaccard = binomtest(40, 48).proportion_ci(method="wilson").high
    assert found["f1_high"][1] == approx(200 * jaccard / (1 + jaccard), abs=0.01)
    assert np.isnan(found["precision_high"][3:]).all()
    assert all(np.isnan(values[4]) for values in found.values())
    groups = np.append(np.arange(100) // 4, [98, 98, 99]).astype(str)
    grouped = limits_of_classes(replace(results, groups=groups), columns)
    effective = 14**2 / 15 * (1.96 / t.ppf(0.975, 14)) ** 2  # of 15 equal groups, two of which are wrong
    assert grouped["recall_low"][0] == approx(100 * wilson(52 / 60, effective)[0])
    assert grouped["recall_low"][2] < found["recall_low"][2]  # one group
    for limits, own, others in ((found, 60, 43), (grouped, 15, 12)):
        assert limits["auroc_low"][0] == 100 * newcombe(areas[:1] / 100, np.array([own]), np.array([others]))[0]
        assert limits["ap_low"][0] == approx(100 * wilson(precisions[0] / 100, own)[0])
    unknown = limits_of_classes(replace(results, lacks_groups=True), columns)
    assert all(np.isnan(values).all() for values in unknown.values())
