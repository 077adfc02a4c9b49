"""Two settings of a sweep over seeds and images: the variance of readers and cases, Bonferroni's limits, Holm's p."""

from dataclasses import replace

import numpy as np
from numpy.random import default_rng
from pytest import approx
from run_folders import make_run
from scipy.stats import t
from test_report_comparison import groups_of

from engine.evaluation.limits import difference_of
from engine.evaluation.paired import paired_limits
from engine.evaluation.results import results_of_scores
from utils.metric_table import METRICS


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


def make_setting(root, rate, hits, *options):
    """A run of each seed, with its table of images; hits: bool (K, N)."""
    for seed, row in enumerate(hits):
        keys = [f"SEED={seed}", f"TRAIN.BASE_LR={rate}", *options]
        folder = make_run(root / f"{rate}-{seed}", 2, keys, result={"top1": 100 * row.mean()}) / "evaluation"
        folder.mkdir()
        lines = [f"{image},{image}.png,1,{hit:d}" for image, hit in enumerate(row)]
        (folder / "per_image.csv").write_text("\n".join(["index,path,label,predicted", *lines, ""]))


def test_groups_csv_has_the_difference_of_each_setting_to_the_first(tmp_path):
    generator = default_rng(0)
    hits = {}
    for rate, share in ((0.01, 0.9), (0.02, 0.7), (0.03, 0.85)):
        hits[rate] = generator.random((3, 60)) < share
        make_setting(tmp_path, rate, hits[rate])
    first, *others = groups_of(tmp_path)
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


def test_the_difference_of_settings_is_by_group(tmp_path, capsys):
    """The limits of `paired_limits`; without the groups of the images, or with one, there are none."""
    generator = default_rng(0)
    of_images = np.repeat(np.arange(10), np.arange(2, 12))
    hard = generator.random(10)[of_images] < 0.4
    settings = [generator.random((3, len(hard))) < np.where(hard, share, 0.9) for share in (0.8, 0.1)]
    for rate, hits in zip((0.01, 0.02), settings, strict=True):
        make_setting(tmp_path, rate, hits, "DATA.DATASET=folder", "DATA.GROUPS=(g.)")
    groups = np.array([f"g{group}" for group in of_images])
    right = np.ones(len(hard), np.int64)
    models = []
    for hits in settings[::-1]:
        results = [results_of_scores(right, np.eye(2, dtype=np.float32)[one.astype(int)]) for one in hits]
        models.append([replace(one, groups=groups) for one in results])
    expected = paired_limits(*models, METRICS["top1"])(1)
    for names, reason in ((groups, ""), (groups[:0], "no groups"), (np.full(len(hard), "g"), "fewer than 2 groups")):
        for folder in tmp_path.glob("*/evaluation"):
            np.savez(folder / "scores.npz", groups=names)
        _, row = groups_of(tmp_path)
        assert reason in capsys.readouterr().err
        found = [float(row[name] or "nan") for name in ("difference", "difference_low", "difference_high")]
        difference = 100 * (settings[1].mean() - settings[0].mean())
        assert found == approx([np.nan] * 3 if reason else [difference, *expected], nan_ok=True)
