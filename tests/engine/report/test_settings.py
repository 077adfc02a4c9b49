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
    """Of differences without an effect of images the paired t interval of the means of the seeds."""
    generator = default_rng(0)
    effect = generator.normal(size=(4, 1)) + np.zeros((4, 50))
    effect += np.tile([1.0, -1.0], (4, 25)) * generator.choice(
        [-1, 1], (4, 1)
    )  # no image is better on the mean of seeds
    found = difference_of(effect)
    assert found.mean == approx(effect.mean())
    of_seeds = effect.mean(1)
    assert found.error >= of_seeds.std(ddof=1) / 2
    x = generator.normal(size=(3, 40)) + generator.normal(size=40)
    rows = x.mean(1)
    columns = x.mean(0)
    rest = x - rows[:, None] - columns + x.mean()
    variance = 40 * rows.var(ddof=1) + max(3 * columns.var(ddof=1) - (rest**2).sum() / 78, 0)
    assert difference_of(x).error == approx(np.sqrt(variance / 120), rel=1e-9)
    assert difference_of(x).p == approx(2 * t.sf(abs(x.mean()) / np.sqrt(variance / 120), 2), rel=1e-6)


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
