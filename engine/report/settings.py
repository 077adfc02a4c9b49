"""Settings of a sweep: the difference of each to the first, over seeds and images together."""

from collections.abc import Sequence
from contextlib import suppress
from zipfile import BadZipFile

import numpy as np

from engine.evaluation.limits import Difference, difference_of, t_quantile
from engine.report.contents import RunContents
from engine.report.tables import Group
from engine.run.record import EVALUATION, PER_IMAGE
from utils.errors import UserError
from utils.metric_table import METRICS
from utils.tables import read_csv_rows

FEWEST_SEEDS = 3
_DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile)  # a file of scores, or missing


def compare_settings(groups: Sequence[Group], problems: list[str]) -> None:
    """Sets the difference of each group to the first, its limits and its p in `Group.figures`: of top-1 or the loss, of
    at least 3 seeds in common on the same images.

    The limits of several differences hold together (Bonferroni), and p is Holm's (1979).

    problems: receives why there is no difference.
    """
    found = list[tuple[float, Group, Difference]]()
    for group in groups[1:]:
        try:
            difference = _difference(group, groups[0])
        except UserError as problem:
            problems.append(f"no difference of {group.runs[0].name} and others to the first setting: {problem}")
            continue
        if difference:
            found.append((difference.p, group, difference))
    least = 0.0
    for place, (p, group, (mean, error, freedom, *_)) in enumerate(sorted(found, key=lambda row: row[0])):
        distance = error * float(t_quantile(freedom, 1 - 0.025 / len(found)))
        least = max(least, min(1.0, p * (len(found) - place)))
        limits = {"difference_low": mean - distance, "difference_high": mean + distance, "difference_p": least}
        group.figures.update({"difference": mean} | limits)


def _difference(group: Group, first: Group) -> Difference | None:
    """Of the images or, with DATA.GROUPS, of the groups. Raises UserError: as `_by_group`."""
    metric = METRICS[group.figures["metric"]]
    read = {"top1": _hits, "loss": _losses}.get(metric.name)
    if read is None or group.are_folds or group.figures["metric"] != first.figures["metric"]:
        return None
    tables = []
    for one in (group, first):
        tables.append({run.options["SEED"]: read(run) for run in one.runs})
    gains = []
    images = set[tuple[str, ...]]()
    for seed in tables[0].keys() & tables[1].keys():
        (own, names), (others, other_names) = tables[0][seed], tables[1][seed]
        images |= {names, other_names}
        if names == other_names:
            gains.append(own - others)
    if len(gains) < FEWEST_SEEDS or len(images) != 1 or len(gains[0]) < 2:
        return None
    values = np.stack(gains)
    for run in (*first.runs, *group.runs):
        if run.options["DATA.GROUPS"]:
            return difference_of(_by_group(values, run))
    return difference_of(values)


def _by_group(gains: np.ndarray, run: RunContents) -> np.ndarray:
    """The jackknife's pseudo-value of each group, float (K, U), of the gains of images, (K, N), as in `paired_limits`;
    their mean is the one of the images. Raises UserError: the groups are not known, or show no variance."""
    from engine.evaluation.tables import SCORES  # late: torch

    file = run.folder / EVALUATION / SCORES
    names = np.array([])
    with suppress(*_DAMAGED), np.load(file, allow_pickle=False) as saved:
        names = saved["groups"]
    if len(names) != gains.shape[1]:
        raise UserError(f"{file} has no groups of the images; python scripts/compare.py finds them in the data")
    _, of_images, sizes = np.unique(names, return_inverse=True, return_counts=True)
    if sizes @ sizes * 2 > sizes.sum() ** 2:  # Kish's number of groups is below 2
        raise UserError("fewer than 2 groups of like size show no variance; give more groups")
    means = gains.mean(1, keepdims=True)
    sums = np.stack([np.bincount(of_images, row) for row in gains - means])
    changes = sums / (len(names) - sizes)  # of the mean without each group
    values: np.ndarray = means + len(sizes) * (changes - changes.mean())
    return values


def _hits(run: RunContents) -> tuple[np.ndarray, tuple[str, ...]]:
    """100 for each image that is right, else 0, and the names and labels of the images; empty without the file."""
    rows = []
    with suppress(OSError):
        rows = [row for row in read_csv_rows(run.folder / EVALUATION / PER_IMAGE) if row["label"] != "-1"]
    hits = np.array([100.0 * (row["label"] == row["predicted"]) for row in rows])
    return hits, tuple(f"{row['path']} {row['label']}" for row in rows)


def _losses(run: RunContents) -> tuple[np.ndarray, tuple[str, ...]]:
    """The loss of each image, as `_hits`."""
    from engine.evaluation.tables import SCORES, read_scores  # late: torch

    try:
        results, names, _ = read_scores(run.folder / EVALUATION / SCORES)
    except _DAMAGED:
        return np.array([]), ()
    return results.losses.astype(float), tuple(map(str, zip(names, results.targets.tolist(), strict=True)))
