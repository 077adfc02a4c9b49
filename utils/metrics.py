"""Sums and counts, reduced once: never averages of averages."""

from dataclasses import dataclass

import torch

from utils.distributed import ProcessContext, all_reduce_sum


@dataclass(frozen=True)
class Metrics:
    """loss: mean per sample; top1, top5: percent of the samples."""

    loss: float
    top1: float
    top5: float
    samples: int


class MetricSums:
    """Running sums of loss and hits, kept on the device in float64; reading them is the only wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss_sum: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> None:
        """loss_sum (): sum over the samples; logits (B, classes); targets int64 (B,), negative where no sample is."""
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = best == targets.unsqueeze(-1)
        self.sums += torch.stack((loss_sum.double(), hits[:, 0].sum(), hits.sum(), (targets >= 0).sum()))

    def reduced(self, context: ProcessContext) -> torch.Tensor:
        """The sums (4,) over all ranks; every rank must call it."""
        return all_reduce_sum(self.sums.clone(), context)


def to_metrics(sums: torch.Tensor) -> Metrics:
    loss, top1, top5, samples = sums.tolist()
    count = max(samples, 1)
    return Metrics(loss / count, 100 * top1 / count, 100 * top5 / count, int(samples))
