"""Images whose label may be wrong: another class is predicted by a model that has not seen them.

Legend: N samples, C classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.evaluation.ranking import divide
from utils.files import atomic_write, make_own_folder
from utils.tables import safe_cell, table_text

COLUMNS = ("correction", "split", "path", "label", "predicted", "probability", "label_probability", "margin")
_ENOUGH = 0.7  # a probability of the other class that makes a suspect of any model


class Margins(NamedTuple):
    """Of N samples, each (N,): the class that is predicted beside the label, the probabilities of both, the label.

    With several labels each (N, C): the absence of label l has the number 2 l, its presence 2 l + 1.
    """

    others: np.ndarray
    probabilities: np.ndarray
    label_probabilities: np.ndarray
    labels: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """From -1 to 1; below 0, another class is predicted."""
        return self.label_probabilities - self.probabilities

    def take(self, rows: np.ndarray) -> "Margins":
        return Margins(*(values[rows] for values in self))

    @property
    def suspects(self) -> list[int]:
        """The samples that another class is more probable for, and surely so; the lowest margin first. Of arrays (N,).

        Surely: its probability is at least the mean that the samples with its label have for it, as in Northcutt et
        al., "Confident Learning", 2021, or at least 0.7, also if no sample has its label. Of a weak model most other
        wrong predictions say nothing about the label; of one that is no better than chance, such as one that predicts
        a single class, all of them.
        """
        counts = np.bincount(self.labels, minlength=self.others.max(initial=0) + 1)
        means = divide(np.bincount(self.labels, self.label_probabilities, len(counts)), counts)
        least = np.fmin(means, _ENOUGH)
        sum_of_recalls = ((self.values >= 0) / counts[self.labels]).sum()  # by chance 1
        is_suspect = (self.values < 0) & (self.probabilities >= least[self.others]) & (sum_of_recalls > 1.001)
        order = np.argsort(self.values, kind="stable")
        return [*order[is_suspect[order]].tolist()]


def margins(probabilities: Tensor, targets: Tensor) -> Margins:
    """probabilities: (N, C), C >= 2. targets: int64 (N,), or int8 (N, C), whose unknown labels have the margin 1."""
    if is_multi_hot(targets):
        has_label = targets > 0
        is_unknown = targets == UNKNOWN
        of_label = torch.where(has_label, probabilities, 1 - probabilities).masked_fill(is_unknown, 1)
        labels = 2 * torch.arange(targets.shape[1], device=targets.device) + has_label
        labels = labels.masked_fill(is_unknown, 2 * targets.shape[1])  # of no class
        return Margins(*(column.cpu().numpy() for column in (labels ^ 1, 1 - of_label, of_label, labels)))
    of_label = probabilities.gather(1, targets[:, None])[:, 0]
    others = probabilities.scatter(1, targets[:, None], -1).max(1)
    return Margins(*(column.cpu().numpy() for column in (others.indices, others.values, of_label, targets)))


def write_suspects(
    table: Path,
    found: Margins,
    images: Sequence[tuple[str, str]],
    names: Sequence[str],
) -> list[int]:
    """Writes the suspects, with an empty column for the correction by a person (docs/data.md#corrected-labels).

    images: split and path of each sample. names: of the classes. Returns the indices of their images in the order of
    the suspects. Raises OSError.
    """
    labels_per_image = 1
    if is_multi_hot(found.labels):
        labels_per_image = len(names)
        names = [text for name in names for text in (f"not {name}", name)]
    flat = Margins(*map(np.ravel, found))
    suspects = flat.suspects
    rows = []
    for one in suspects:
        texts = (*images[one // labels_per_image], names[flat.labels[one]], names[flat.others[one]])
        figures = (flat.probabilities[one], flat.label_probabilities[one], flat.values[one])
        rows.append(["", *map(safe_cell, texts), *(f"{100 * figure:.4f}" for figure in figures)])
    make_own_folder(table.parent)
    atomic_write(table, table_text(COLUMNS, rows))
    return [one // labels_per_image for one in suspects]
