"""Loss and accuracy as sums and counts that are reduced once: never averages of averages."""

from dataclasses import dataclass

import torch

from utils.distributed import ProcessContext, all_reduce_sum

_LOSS, _TOP1, _TOP5, _SAMPLES, _SKIPPED_SAMPLES, _GRAD_NORM, _STEPS = range(7)
NUM_SUMS = 7


@dataclass(frozen=True)
class Metrics:
    """Means over `samples` samples.

    loss: mean per sample. top1, top5: percent. skipped_samples: samples of skipped steps, which no other field counts.
    grad_norm: mean over the optimizer steps that were not skipped, before clipping; None without such a step.
    """

    loss: float
    top1: float
    top5: float
    samples: int
    skipped_samples: int = 0
    grad_norm: float | None = None

    @property
    def total_samples(self) -> int:
        """Samples of all steps, skipped ones included."""
        return self.samples + self.skipped_samples


class MetricSums:
    """Running sums, kept on the device in float64; only reading them waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss_sum: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> None:
        """loss_sum (): sum over the samples; logits (B, classes); targets int64 (B,), negative for padding."""
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = best == targets.unsqueeze(-1)
        batch = torch.stack((loss_sum.double(), hits[:, 0].sum(), hits.sum(), (targets >= 0).sum()))
        self.sums[: _SAMPLES + 1] += batch

    def add_step(self, step: "MetricSums", grad_norm: torch.Tensor, skipped: torch.Tensor) -> None:
        """Adds the sums of one optimizer step; of a skipped step only its number of samples, as skipped.

        grad_norm (): before clipping. skipped (): 1 or 0.
        """
        applied, lost = step.sums.clone(), torch.zeros_like(step.sums)
        applied[_GRAD_NORM], applied[_STEPS] = grad_norm, 1
        lost[_SKIPPED_SAMPLES] = step.sums[_SAMPLES]
        self.sums += torch.where(skipped > 0, lost, applied)

    def reduced(self, context: ProcessContext) -> torch.Tensor:
        """The sums (7,) over all ranks; a collective call."""
        return all_reduce_sum(self.sums.clone(), context)


def to_metrics(sums: torch.Tensor) -> Metrics:
    """From sums (7,). Gradient norms are equal on all ranks, so their mean over ranks and steps is that over steps."""
    loss, top1, top5, samples, skipped_samples, grad_norm, steps = sums.tolist()
    count = max(samples, 1)
    return Metrics(
        loss / count,
        100 * top1 / count,
        100 * top5 / count,
        int(samples),
        int(skipped_samples),
        grad_norm / steps if steps else None,
    )
