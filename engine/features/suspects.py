"""Training images whose label may be wrong, by the probabilities of classifiers that were not fitted on them.

The order is that of cleanlab's normalized margin (Northcutt et al., "Confident Learning", 2021): the probability of the
given class minus the largest other one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from configs.schema import Data
from datasets.sources.samples import Samples
from engine.evaluation.pictures import write_findings
from engine.features.classifiers import ROWS, fit_linear, standardize
from engine.training.losses.loss import Loss
from utils.tables import safe_cell

SUSPECTS = "suspects"
_COLUMNS = ("path", "label", "predicted", "probability", "label_probability", "margin")


class Margins(NamedTuple):
    """Of N samples, each (N,): the class that is predicted beside the given one, and the probabilities of both."""

    others: np.ndarray
    probabilities: np.ndarray
    label_probabilities: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """From -1 to 1; below 0, another class is predicted."""
        return self.label_probabilities - self.probabilities


def margins(probabilities: torch.Tensor, targets: torch.Tensor) -> Margins:
    """probabilities: (N, C), C >= 2. targets: int64 (N,)."""
    of_label = probabilities.gather(1, targets[:, None])[:, 0]
    others = probabilities.scatter(1, targets[:, None], -1).max(1)
    return Margins(*(column.cpu().numpy() for column in (others.indices, others.values, of_label)))


def out_of_fold_margins(
    features: torch.Tensor, targets: torch.Tensor, num_classes: int, loss: Loss, l2: float, folds: torch.Tensor
) -> Margins:
    """The margins by the linear classifiers that are fitted without the fold of a sample.

    features: (N, F). targets: int64 (N,). l2: as of `fit_linear`. folds: of each sample, (N,).
    """
    inputs, parts, order = standardize(features)[0], [], []
    for fold in folds.unique():
        kept, held_out = folds != fold, (folds == fold).nonzero()[:, 0]
        start = inputs.new_zeros(num_classes, inputs.shape[1])
        fitted = fit_linear(inputs[kept], targets[kept], loss, l2, start)
        for rows in held_out.split(ROWS):
            parts.append(margins((inputs[rows] @ fitted.T).softmax(1), targets[rows]))
            order.append(rows.cpu().numpy())
    places = np.argsort(np.concatenate(order))
    return Margins(*(np.concatenate(column)[places] for column in zip(*parts, strict=True)))


def write_suspects(
    folder: Path, found: Margins, indices: np.ndarray, samples: Samples, names: Sequence[str], data: Data
) -> str:
    """Writes the samples for which another class is predicted, the lowest margin first; returns a line for the log.

    indices: of the margins in `samples`, (N,). Raises OSError.
    """
    rows = [row for row in np.argsort(found.values, kind="stable").tolist() if found.values[row] < 0]
    targets = samples.targets[indices]
    cells = (
        [
            safe_cell(samples.name(int(indices[row]))),
            *(safe_cell(names[label]) for label in (targets[row], found.others[row])),
            *(f"{100 * column[row]:.4f}" for column in (found.probabilities, found.label_probabilities, found.values)),
        ]
        for row in rows
    )
    file = write_findings(folder / SUSPECTS, _COLUMNS, cells, [[(samples, int(indices[row]))] for row in rows], data)
    return (
        f"{len(rows)} of {len(targets)} training images are predicted as another class by probes without them: {file}"
    )
