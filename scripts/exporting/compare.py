"""Compares an exported model with its original: on validation images, or on images and logits of another program.

Legend: N images, C channels, S pixels on a side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from configs.schema import Config, Data
from datasets.batch import PADDING
from datasets.loading.loader import BatchReader
from datasets.sources.samples import Samples
from datasets.transforms.device import build_eval_transform
from datasets.transforms.host import build_eval_host_transform
from models.weights.read import checked_archive_bytes
from utils.errors import UserError, error_from

TOLERANCE = 1e-3  # of logits in fp32, absolute
MIN_SPREAD = 100 * TOLERANCE  # of the logits of a class over the images: with less, the tolerance proves nothing
NUM_IMAGES = 32

Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """Normalized images float32 (N, C, S, S), and their logits float32 (N, classes). title: of the images."""

    images: torch.Tensor
    logits: torch.Tensor
    title: str = "validation images"

    def check_spread(self, advice: str) -> None:
        """Raises UserError, with the advice, if the logits hardly depend on the image."""
        spread = (self.logits.amax(0) - self.logits.amin(0)).max().item()
        if not spread >= MIN_SPREAD:
            raise UserError(
                f"the logits of {len(self.images)} {self.title} differ by at most {spread:.2g}, less than "
                f"{MIN_SPREAD}: a comparison would prove nothing; {advice}"
            )

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
    reference = Reference(images, model.eval()(images))
    reference.check_spread("the weights, or their average (TRAIN.MODEL_EMA), are hardly trained")
    return reference


@torch.inference_mode()
def read_reference(file: Path, model: nn.Module, config: Config) -> Reference:
    """The arrays `images` (N, C, S, S), normalized, and `logits` (N, classes) of another program, in an .npz file.

    Raises:
        UserError: no such arrays, or of other shapes than the model's; logits that hardly depend on the image, or that
            differ from the logits of `model` by more than `TOLERANCE`.
    """
    data = config.data
    shape = (data.image_channels, data.image_size, data.image_size)
    try:
        checked_archive_bytes(file)
        with np.load(file, allow_pickle=False) as arrays:
            images, logits = (torch.from_numpy(arrays[name]).float() for name in ("images", "logits"))
    except Exception as error:  # numpy raises almost any type for a damaged file
        reason = getattr(error, "strerror", None) or error
        raise error_from(
            error, f"-check {file}: cannot be read ({reason}); give an .npz file with images and logits"
        ) from None
    if images.shape[1:] != shape or logits.shape != (len(images), config.model.num_logits) or len(images) < 2:
        raise UserError(
            f"-check {file}: images are {tuple(images.shape)}, logits {tuple(logits.shape)}; the model needs (N, *"
            f"{shape}) and (N, {config.model.num_logits}), N at least 2: set DATA.IMAGE_SIZE or MODEL.NUM_CLASSES"
        )
    reference = Reference(images, logits, f"images of {file}")
    reference.check_spread("give images that differ, and logits of trained weights")
    difference = reference.largest_difference(model.eval())
    if not difference <= TOLERANCE:
        raise UserError(
            f"-check {file}: the logits differ by {difference:.2g}, more than {TOLERANCE:g}; nothing was written: give "
            "the images and logits of this model and these weights"
        )
    return reference
