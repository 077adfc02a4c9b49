"""Compares an exported model with its original on validation images.

Legend: N images, C channels, S pixels on a side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from configs.schema import Data
from datasets.batch import PADDING
from datasets.loading.loader import BatchReader
from datasets.sources.samples import Samples
from datasets.transforms.device import build_eval_transform
from datasets.transforms.host import build_eval_host_transform
from utils.errors import UserError

TOLERANCE = 1e-3  # of logits in fp32, absolute
MIN_SPREAD = 100 * TOLERANCE  # of the logits of a class over the images: with less, the tolerance proves nothing
NUM_IMAGES = 32

Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """Normalized validation images float32 (N, C, S, S), and their logits float32 (N, classes)."""

    images: torch.Tensor
    logits: torch.Tensor

    @torch.no_grad()
    def largest_difference(self, forward: Forward) -> float:
        """The largest over a batch of one image and a batch of the others; infinite if a logit is NaN."""
        logits = torch.cat([forward(self.images[:1]), forward(self.images[1:])])
        return (logits - self.logits).abs().nan_to_num(nan=float("inf")).max().item()


@torch.inference_mode()
def make_reference(model: nn.Module, samples: Samples, data: Data) -> Reference:
    """The logits of `model` for images that are spread evenly over the validation samples.

    Raises:
        UserError: an image is unreadable, or the logits hardly depend on the image, as with an untrained head.
    """
    count = min(NUM_IMAGES, len(samples))
    keys = [(0, position * len(samples) // count, 0) for position in range(count)]
    batch = BatchReader(samples, data, build_eval_host_transform(data)).__getitems__(keys)
    if isinstance(batch, UserError):
        raise batch
    readable = batch.targets.reshape(count, -1)[:, 0] != PADDING  # with DATA.MULTI_LABEL, targets are rows
    images = build_eval_transform(data)(batch.images[readable])
    if len(images) < 2:
        raise UserError(f"{data.data_path}: has {len(images)} readable validation images; give two or more")
    logits = model.eval()(images)
    spread = (logits.amax(0) - logits.amin(0)).max().item()
    if not spread >= MIN_SPREAD:
        raise UserError(
            f"the logits of {len(images)} validation images differ by at most {spread:.2g}, less than {MIN_SPREAD}: a "
            "comparison would prove nothing; the weights, or their average (TRAIN.MODEL_EMA), are hardly trained"
        )
    return Reference(images, logits)
