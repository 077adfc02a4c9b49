"""The mean of the probabilities of several models, such as the folds of a sweep.

Legend: B images per batch, C channels, S pixels on a side, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.evaluation.evaluate import Evaluator


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
        logits = torch.stack([one.forward(model, images) / (one.decision.temperature or 1) for one, model in pairs])
        if self._evaluators[0].multi_label:
            return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
        return logits.log_softmax(-1).logsumexp(0)
