"""Two settings of a sweep over seeds and images: the variance of readers and cases, Bonferroni's limits, Holm's p."""

import csv

import numpy as np
from numpy.random import default_rng
from pytest import approx
from run_folders import make_run
from scipy.stats import t

from engine.evaluation.limits import difference_of
from scripts.report import main
from utils.tables import read_csv_rows


def test_the_variance_is_the_one_of_readers_and_cases():
    """Also where no image is better on the mean of the seeds, so that they add nothing."""
    generator = default_rng(0)
    opposite = np.tile([1.0, -1.0], (4, 25)) * [[1], [-1], [1], [-1]] + generator.normal(size=(4, 1))
    for x in (opposite, generator.normal(size=(4, 50)) + generator.normal(size=50)):
        rows = x.mean(1)
        columns = x.mean(0)
        rest = x - rows[:, None] - columns + x.mean()
        variance = 50 * rows.var(ddof=1) + max(4 * columns.var(ddof=1) - (rest**2).sum() / 147, 0)
        found = difference_of(x)
        assert (found.mean, found.error) == approx((x.mean(), np.sqrt(variance / 200)), rel=1e-9)
        assert found.of_seeds == approx(max(50 * rows.var(ddof=1) - (rest**2).sum() / 147, 0) / 200)
        assert found.p == approx(2 * t.sf(abs(x.mean()) / found.error, 3), rel=1e-6)


def test_groups_csv_has_the_difference_of_each_setting_to_the_first(tmp_path):
    generator = default_rng(0)
    hits = {}
    for rate, share in ((0.01, 0.9), (0.02, 0.7), (0.03, 0.85)):
        hits[rate] = generator.random((3, 60)) < share
        for seed in range(3):
            keys = [f"SEED={seed}", f"TRAIN.BASE_LR={rate}"]
            score = 100 * hits[rate][seed].mean()
            folder = make_run(tmp_path / f"{rate}-{seed}", 2, keys, result={"top1": score})
            (folder / "evaluation").mkdir()
            with open(folder / "evaluation/per_image.csv", "w", newline="") as file:
                table = csv.writer(file)
                table.writerow(["index", "path", "label", "predicted"])
                table.writerows([image, f"{image}.png", 1, int(hit)] for image, hit in enumerate(hits[rate][seed]))
    assert main([str(tmp_path)]) == 0
    first, *others = read_csv_rows(tmp_path / "groups.csv")
    assert first["difference"] == ""
    scores = 100 * hits[float(first["TRAIN.BASE_LR"])].mean(1)
    distance = t.ppf(0.975, 2) * scores.std(ddof=1) / np.sqrt(3)
    assert float(first["mean_high"]) == approx(scores.mean() + distance)
    found = [
        difference_of(100.0 * (hits[float(row["TRAIN.BASE_LR"])] * 1.0 - hits[float(first["TRAIN.BASE_LR"])]))
        for row in others
    ]
    ps = sorted(one.p for one in found)
    for row, one in zip(others, found, strict=True):
        assert float(row["difference"]) == approx(one.mean)
        assert float(row["difference_low"]) == approx(one.mean - t.ppf(1 - 0.025 / 2, 2) * one.error)
        expected = 2 * ps[0] if one.p == ps[0] else max(2 * ps[0], ps[1])
        assert float(row["difference_p"]) == approx(min(expected, 1))
