"""The training loss and the evaluation loss: sums over samples, since the step divides by the global batch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from configs.schema import Train
from datasets.batch import PADDING

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_loss(options: Train) -> Loss:
    """logits (B, classes), targets -> loss (), summed over the samples, in fp32.

    Targets are labels int64 (B,), of which those equal to `PADDING` do not count, or mixed targets (B, classes).
    """

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            logits.float(), targets, reduction="sum", ignore_index=PADDING, label_smoothing=options.smoothing
        )

    return loss


def eval_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy without label smoothing: logits (B, classes), targets int64 (B,) -> (), summed."""
    return F.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=PADDING)
