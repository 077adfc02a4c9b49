"""How often the printed 95% intervals have the true value, in simulated evaluations.

    python tests/stress/coverage.py             # 300 draws of small data; status 1: an interval has it in under 89%
    python tests/stress/coverage.py all -cells  # 1,000 draws of all cells, a line for each; docs/evaluation.md

A cell is a metric on a kind of data. The true value is the one of a very large sample. Draws without an interval do not
count. `need` is the width in which 95% of the figures themselves lie.
"""

import argparse
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from configs.schema.operating_point import OperatingPoint
from configs.yaml_io import parse_value
from engine.evaluation.intervals import confidence_interval
from engine.evaluation.paired import limits_at_goal, paired_limits
from engine.evaluation.ranking import figure_at
from engine.evaluation.results import SampleResults, results_of_scores
from utils import metric_table

SETS = {
    "ONE": "top1 macro_f1 balanced_accuracy min_recall auroc specificity precision",
    "SEVERAL": "mean_ap macro_f1 auroc specificity micro_f1 sample_f1 precision recall",
    "PAIRED": "top1 balanced_accuracy min_recall macro_f1 auroc loss",
    "EACH": "top1 micro_f1 macro_f1 min_recall auroc mean_ap quadratic_kappa",
}
# The kind; the values of each argument of `data_of`, a cell for each of their combinations; the metrics; those of them
# that are checked by default. A word in `SETS` stands for several.
CELLS = """
images, balanced classes | {margin: [1.2, 3.0], counts: [[20, 20], [8, 8, 8, 8, 8], [40, 40, 40, 40, 40],\
 [200, 200, 200, 200, 200]]} | ONE | EACH
images, a class of 5% | {margin: [1.2, 2.5], counts: [[38, 2], [190, 10], [950, 50]]} | ONE quadratic_kappa | EACH
drawn images, a class of 5% | {counts: [[190, 10], [950, 50]], margin: [1.2, 2.0], are_drawn: [true]} |\
 macro_f1 precision quadratic_kappa | EACH
drawn images, a grade of 5% | {counts: [[47, 47, 6], [95, 95, 10], [475, 475, 50]], margin: [2.0, 2.5, 3.0],\
 are_drawn: [true]} | quadratic_kappa linear_kappa | EACH
images, equal scores | {counts: [[100, 100], [190, 10]], margin: [1.5], decimals: [0]} | auroc | EACH
images of 5 grades | {counts: [[8, 8, 8, 8, 8], [40, 40, 40, 40, 40], [200, 200, 200, 200, 200],\
 [150, 20, 10, 10, 10], [750, 100, 50, 50, 50]], spread: [0.2, 0.3, 0.6]} | quadratic_kappa linear_kappa | EACH
images, at chance | {counts: [[100, 100], [190, 10], [40, 40, 40, 40, 40]], margin: [0.0]} | quadratic_kappa | EACH
groups of mixed classes | {number: [10, 40, 200], margin: [1.2, 2.5], counts: [[7, 3]]} | ONE quadratic_kappa | EACH
groups of one class | {number: [10], margin: [1.2, 2.5], counts: [[6, 4]], of_one: [true]} | ONE quadratic_kappa | EACH
groups of one class | {number: [40, 200], margin: [1.2, 2.5], counts: [[9, 1]], of_one: [true]} |\
 ONE quadratic_kappa | EACH
images, several labels | {images: [40], shares: [[0.5, 0.3, 0.1]], margin: [1.5, 4.0]} | SEVERAL | EACH
images, several labels | {images: [200], shares: [[0.5, 0.3, 0.1, 0.05]], margin: [1.5, 4.0]} | SEVERAL | EACH
images, several labels | {images: [1000], shares: [[0.5, 0.3, 0.1, 0.05, 0.05]], margin: [1.5, 4.0]} | SEVERAL | EACH
drawn images, several labels | {images: [40], shares: [[0.5, 0.3, 0.1]], margin: [1.0, 4.0], are_drawn: [true]} |\
 mean_ap micro_f1 | EACH
drawn images, several labels | {images: [200], shares: [[0.5, 0.3, 0.1, 0.05]], margin: [1.0, 4.0],\
 are_drawn: [true]} | mean_ap micro_f1 | EACH
drawn images, several labels | {images: [1000], shares: [[0.5, 0.3, 0.1, 0.05, 0.05]], margin: [1.0, 4.0],\
 are_drawn: [true]} | mean_ap micro_f1 | EACH
two models, drawn images | {counts: [[190, 10], [950, 50]], margin: [1.2, 2.0], are_drawn: [true]} |\
 macro_f1 quadratic_kappa |
two models, images | {counts: [[20, 20]], margin: [1.2]} | PAIRED | top1
two models, images | {counts: [[190, 10], [950, 50]], margin: [2.0]} | PAIRED | top1
two models, images | {counts: [[40, 40, 40, 40, 40]], margin: [2.5]} | PAIRED | top1
two models, 5 grades | {counts: [[8, 8, 8, 8, 8], [40, 40, 40, 40, 40], [200, 200, 200, 200, 200],\
 [150, 20, 10, 10, 10], [750, 100, 50, 50, 50]], spread: [0.2, 0.3, 0.6]} | quadratic_kappa | quadratic_kappa
two models, groups | {number: [6, 10, 40, 200], counts: [[6, 4]], of_one: [false, true]} |\
 PAIRED quadratic_kappa | top1 quadratic_kappa
two models, one goal | {counts: [[100, 100]], margin: [1.2]} | at_goal |
two models, one goal | {counts: [[190, 10], [950, 50]], margin: [2.0]} | at_goal |
two models, one goal | {counts: [[6, 4]], number: [40]} | at_goal |
"""
POINT = OperatingPoint(name="1", label=1, specificity=0.9)
AT_GOAL = metric_table.Metric(
    "at_goal",
    f"sensitivity at {POINT.title}",
    "share",
    lambda results: (np.array([figure_at(POINT, *results.of_class(POINT.label))]), np.array([100.0])),
)
METRICS = metric_table.METRICS | {AT_GOAL.name: AT_GOAL}
# draws with an interval, of a cell that counts; percent
_FEWEST = 50
_LEAST = 89
_SMALL = 200  # images, or about as many in groups, of the largest cell by default: few are the hardest
_LARGE = 200_000  # images, or about as many in groups, of the sample that has the true value


@dataclass(frozen=True)
class Classes:
    """counts: images of each class. margin: of the right class, in standard deviations of the noise.

    spread: of grades in the order of the classes, the standard deviation of the model's grade. decimals: of the scores,
    which then have ties. are_drawn: counts are the ones of the mean, as images are drawn one by one.
    """

    counts: tuple[int, ...]
    margin: float = 1.5
    spread: float = 0.0
    decimals: int | None = None
    are_drawn: bool = False

    def __str__(self) -> str:
        words = "+".join(map(str, self.counts))
        if len({*self.counts}) == 1:
            words = f"{len(self.counts)} x {self.counts[0]}"
        words += f", spread {self.spread}" if self.spread else f", margin {self.margin}"
        words += ", drawn" * self.are_drawn
        return words if self.decimals is None else f"{words}, ties"

    @property
    def images(self) -> int:
        return sum(self.counts)

    def draw(self, generator: np.random.Generator, is_large: bool, models: int) -> list[SampleResults]:
        times = -(-_LARGE // self.images) if is_large else 1
        targets = np.repeat(np.arange(len(self.counts)), np.array(self.counts) * times)
        if self.are_drawn:
            targets = draw_classes(generator, self.counts, len(targets))
        return self.predict(generator, targets, np.zeros(len(targets)), models)

    def predict(
        self, generator: np.random.Generator, targets: np.ndarray, shift: np.ndarray, models: int
    ) -> list[SampleResults]:
        """shift (N,): of the evidence of an image, which the models share; they share a half of the noise, too."""
        shape = (len(targets), len(self.counts))
        shared = generator.standard_normal(shape, np.float32)
        found = []
        for _ in range(models):
            noise = (shared + generator.standard_normal(shape, np.float32)) / np.float32(2**0.5)
            scores = self._scores(targets, noise, shift)
            if self.decimals is not None:
                scores = scores.round(self.decimals)
            found.append(results_of_scores(targets, scores.astype(np.float32)))
        return found

    def _scores(self, targets: np.ndarray, noise: np.ndarray, shift: np.ndarray) -> np.ndarray:
        if self.spread:
            grade = targets + self.spread * (noise[:, 0] + shift)
            return -2 * np.abs(grade[:, None] - np.arange(noise.shape[1]))
        if noise.shape[1] == 2:
            evidence = (2 * targets - 1) * self.margin + noise[:, 0] + shift
            return np.stack([-evidence, evidence], 1)
        scores = noise.copy()
        scores[np.arange(len(targets)), targets] += self.margin
        scores[:, 0] += shift
        return scores


def draw_classes(generator: np.random.Generator, counts: Sequence[int], number: int) -> np.ndarray:
    """The class of each image, int64 (number,): one of each at least."""
    targets = np.zeros(0, np.int64)
    while len(np.unique(targets)) < len(counts):
        targets = generator.choice(len(counts), number, p=np.array(counts) / sum(counts))
    return targets


@dataclass(frozen=True)
class Groups:
    """Groups of unequal size with a shift in common, all of whose images may have one class."""

    number: int
    classes: Classes
    are_of_one_class: bool = False

    def __str__(self) -> str:
        return f"{self.number} groups{' of one class' * self.are_of_one_class}, {self.classes}"

    @property
    def images(self) -> int:
        return 5 * self.number

    def draw(self, generator: np.random.Generator, is_large: bool, models: int) -> list[SampleResults]:
        number = _LARGE // 5 if is_large else self.number
        shares = np.array(self.classes.counts) / sum(self.classes.counts)
        targets = np.zeros(0, np.int64)
        while len(np.unique(targets)) < len(shares):
            sizes = 1 + generator.lognormal(1.5, 0.8, number).astype(int)
            groups = np.repeat(np.arange(number), sizes)
            targets = generator.choice(len(shares), number, p=shares)[groups]
            if not self.are_of_one_class:
                targets = generator.choice(len(shares), len(groups), p=shares)
        shift = generator.normal(0, 1, number)[groups]
        names = groups.astype(str)
        return [replace(one, groups=names) for one in self.classes.predict(generator, targets, shift, models)]


@dataclass(frozen=True)
class Labels:
    """Several labels per image, at fixed thresholds. shares: of the images that have each label; of the mean with
    are_drawn."""

    images: int
    shares: tuple[float, ...]
    margin: float
    are_drawn: bool = False

    def __str__(self) -> str:
        return f"{self.images} images of {len(self.shares)} labels, margin {self.margin}{', drawn' * self.are_drawn}"

    def draw(self, generator: np.random.Generator, is_large: bool, models: int) -> list[SampleResults]:
        images = _LARGE if is_large else self.images
        targets = np.zeros((images, len(self.shares)), np.int8)
        for label, share in enumerate(self.shares):
            number = max(generator.binomial(images, share), 1) if self.are_drawn else round(share * images)
            targets[:number, label] = 1
            generator.shuffle(targets[:, label])
        hard = generator.normal(0, 0.5, (images, 1))
        found = []
        for _ in range(models):
            scores = (2 * targets - 1) * self.margin / 2 + hard + generator.normal(size=targets.shape)
            results = results_of_scores(targets, scores.astype(np.float32))
            found.append(replace(results, thresholds=np.full(len(self.shares), 0.5)))
        return found


class Cell(NamedTuple):
    """Metrics of data. kind: the row of the table. in_ci: the metrics that are checked by default, of small data."""

    kind: str
    data: Classes | Groups | Labels
    metrics: Sequence[str]
    in_ci: Sequence[str]

    def __str__(self) -> str:
        return f"{self.kind}: {self.data}"

    @property
    def models(self) -> int:
        return 2 if self.kind.startswith("two models") else 1


class Coverage(NamedTuple):
    """In percent, of the draws with an interval. width, need: medians in points; in nats of a loss."""

    covered: float
    drawn: int
    width: float
    need: float


def data_of(number: int = 0, of_one: bool = False, **of_data: Any) -> Classes | Groups | Labels:
    """number: of groups. of_one: whether all images of a group are of one class."""
    if "shares" in of_data:
        return Labels(**of_data)
    classes = Classes(**of_data)
    return Groups(number, classes, of_one) if number else classes


def metrics_in(words: str) -> list[str]:
    return " ".join(SETS.get(word, word) for word in words.split()).split()


def cells() -> Iterator[Cell]:
    for row in CELLS.strip().splitlines():
        kind, arguments, metrics, by_default = (cell.strip() for cell in row.split("|"))
        values = parse_value(arguments)
        names = metrics_in(metrics)
        in_ci = [name for name in names if name in metrics_in(by_default)]
        for chosen in product(*values.values()):
            of_data = {
                key: tuple(one) if isinstance(one, list) else one for key, one in zip(values, chosen, strict=True)
            }
            yield Cell(kind, data_of(**of_data), names, in_ci)


def measure(cell: Cell, draws: int) -> dict[str, Coverage]:
    """The coverage of the metrics of a cell, of the same draws in each run."""
    seed = zlib.crc32(str(cell).encode())
    metrics = [METRICS[name] for name in cell.metrics]
    true = dict.fromkeys(cell.metrics, 0.0)
    if cell.models == 1:
        (large,) = cell.data.draw(np.random.default_rng([seed, 1]), True, 1)
        true = {metric.name: large.value(metric) for metric in metrics}
    generator = np.random.default_rng(seed)
    limits = defaultdict[str, list[tuple[float, float]]](list)
    figures = defaultdict[str, list[float]](list)
    for _ in range(draws):
        new, *others = cell.data.draw(generator, False, cell.models)
        for metric in metrics:
            if metric is AT_GOAL:
                interval = limits_at_goal(new, others[0], POINT)[1](1)
            elif others:
                interval = paired_limits([new], others, metric)(1)
            else:
                interval = confidence_interval(new, metric)[0]
            figures[metric.name].append(metric.gain(new, others[0]) if others else new.value(metric))
            if interval:
                limits[metric.name].append(tuple(interval))
    found = {}
    for name in limits:
        low, high = np.array(limits[name]).T
        # rounding
        low = low - 1e-9
        high = high + 1e-9
        need = np.subtract(*np.nanquantile(figures[name], (0.975, 0.025)))
        covered = 100 * float(np.mean((low <= true[name]) & (true[name] <= high)))
        found[name] = Coverage(covered, len(low), float(np.median(high - low)), float(need))
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("which", nargs="?", choices=("ci", "all"), default="ci")
    parser.add_argument("-draws", type=int, help="default: 300, of all cells 1,000")
    parser.add_argument("-only", default="", help="cells whose kind begins with this")
    parser.add_argument("-metric", default="", help="one metric")
    parser.add_argument("-cells", action="store_true", help="a line for each cell and metric")
    parser.add_argument("-jobs", type=int, default=os.cpu_count())
    flags = parser.parse_args(argv)
    draws = flags.draws or (1000 if flags.which == "all" else 300)
    chosen = []
    for cell in cells():
        metrics = cell.metrics
        if flags.which == "ci":
            metrics = cell.in_ci if cell.data.images <= _SMALL else ()
        metrics = [name for name in metrics if flags.metric in ("", name)]
        if cell.kind.startswith(flags.only) and metrics:
            chosen.append(cell._replace(metrics=tuple(metrics)))
    with ProcessPoolExecutor(flags.jobs) as pool:
        found = pool.map(measure, chosen, [draws] * len(chosen))
        return report(zip(chosen, found, strict=True), flags.cells)


def report(found: Iterable[tuple[Cell, Mapping[str, Coverage]]], with_cells: bool) -> int:
    """Prints the table, and the cells below 89%; returns 1 if there are some."""
    by_kind = defaultdict[tuple[str, str], list[Coverage]](list)
    low = []
    for cell, measured in found:
        for name, one in measured.items():
            line = f"{one.covered:5.1f}% of {one.drawn:4}, width {one.width:8.4g}, need {one.need:8.4g}: {cell}, {name}"
            if with_cells:
                print(line, flush=True)
            if one.drawn >= _FEWEST:
                by_kind[cell.kind, METRICS[name].title].append(one)
                low += [line] * (one.covered < _LEAST)
    print("| data | figure | coverage, percent | width / need |\n|---|---|---|---|")
    for (kind, title), rows in by_kind.items():
        shares = [row.covered for row in rows]
        ratios = [row.width / row.need for row in rows if row.need] or [np.nan]
        print(f"| {kind} | {title} | {min(shares):.1f} to {max(shares):.1f} | {min(ratios):.2f} to {max(ratios):.2f} |")
    for line in low:
        print(f"too low: {line}", file=sys.stderr)
    return int(bool(low))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
