"""The mean of the probabilities of several models, such as the folds of a sweep, and the thresholds measured for it.

Legend: B images per batch, C channels, S pixels on a side, K classes.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema.operating_point import UNDECIDED, Decision
from engine.checkpoint.weights_record import decision_to_entries, read_decision
from engine.evaluation.evaluate import Evaluator
from utils.files import atomic_write, indented_json, read_json

MEAN = "mean.json"  # in the folder of a sweep


class MeanOfModels(nn.Module):
    """Normalized images (B, C, S, S) -> logits (B, K) of the mean of the probabilities.

    members: each model with the evaluator whose `forward` gives its logits.
    """

    def __init__(self, members: Sequence[tuple[Evaluator, nn.Module]]) -> None:
        super().__init__()
        self._evaluators = [evaluator for evaluator, _ in members]
        self.models = nn.ModuleList(model for _, model in members)

    def forward(self, images: Tensor) -> Tensor:
        pairs = zip(self._evaluators, self.models, strict=True)
        logits = torch.stack([one.forward(model, images) / (one.temperature or 1) for one, model in pairs])
        if self._evaluators[0].multi_label:
            return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
        return logits.log_softmax(-1).logsumexp(0)


def read_measured(runs: Sequence[Path]) -> Decision:
    """The thresholds that an evaluation has measured for the mean of these runs; none for other runs."""
    stored = read_json(runs[0].parent / MEAN)
    if stored.get("runs") != [run.name for run in runs]:
        return UNDECIDED
    return read_decision(stored)._replace(tta=stored["tta"])


def write_measured(runs: Sequence[Path], decision: Decision, tta: str) -> None:
    """Raises OSError."""
    entries = {"runs": [run.name for run in runs], "tta": tta, **decision_to_entries(decision)}
    atomic_write(runs[0].parent / MEAN, indented_json(entries))
