"""Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019) of a batch on its device, as timm's `Mixup` computes them.

An image is mixed with the one at the mirrored position of the batch: the first with the last. The parameters are drawn
on the host; the host never waits for the device.

Legend: B images per batch, C channels, S pixels on a side, D draws per batch.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from configs.schema import Train

_NUMPY_SEEDS = 2**63 - 1


class MixDraws(NamedTuple):
    """The parameters of D mixes, on the host.

    weight: float64 (D,), the share of the image itself in the new target, and with mixup in each pixel.
    box: int64 (D, 4) of CutMix: top, bottom, left, right; empty for mixup.
    is_cutmix: bool (D,)
    """

    weight: np.ndarray
    box: np.ndarray
    is_cutmix: np.ndarray


class Mixup(nn.Module):
    """(images (B, C, S, S), targets (B,)) -> (images, targets float32 (B, classes)), or both unchanged.

    Targets of several labels per image are multi-hot (B, classes).

    MIXUP_MODE batch draws once per batch, elem once per image, pair once per pair of images that are mixed with each
    other. The middle image of an odd batch is never mixed. The draws follow from torch's global generator of the CPU.
    """

    def __init__(self, train: Train, num_classes: int) -> None:
        super().__init__()
        self.num_classes, self.mode, self.off_epoch = num_classes, train.mixup_mode, train.mixup_off_epoch
        self.probability, self.minmax = train.mixup_prob, train.cutmix_minmax
        self.mixup_alpha, self.cutmix_alpha = train.mixup_alpha, train.cutmix_alpha
        if self.minmax:  # as timm: the boxes do not follow from the weights
            self.cutmix_alpha = 1.0
        # the probability that a mix is CutMix
        self.cutmix_share = train.mixup_switch_prob if self.mixup_alpha and self.cutmix_alpha else self.cutmix_alpha > 0

    def forward(self, images: torch.Tensor, targets: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mixes a batch; may overwrite `images`. `epoch` counts from 0."""
        if not (self.mixup_alpha or self.cutmix_alpha) or (self.off_epoch and epoch >= self.off_epoch):
            return images, targets
        seed = int(torch.randint(_NUMPY_SEEDS, ()))
        batch, (height, width) = len(images), images.shape[-2:]
        count = {"batch": 1, "pair": batch // 2, "elem": batch}[self.mode]
        draws = self.draw(np.random.default_rng(seed), count, (height, width))
        if self.mode == "batch":
            return self.mix_batch(images, targets, draws)
        return self.mix_elements(images, targets, mirrored(draws, batch) if self.mode == "pair" else draws)

    def draw(self, rng: np.random.Generator, count: int, size: tuple[int, int]) -> MixDraws:
        """The parameters of `count` mixes. Each is CutMix, mixup, or, with weight 1, neither.

        size: height and width of the images.
        """
        is_mixed = rng.random(count) < self.probability
        is_cutmix = is_mixed & (rng.random(count) < self.cutmix_share)
        alpha = np.where(is_cutmix, self.cutmix_alpha, self.mixup_alpha)
        weight = rng.beta(np.where(is_mixed, alpha, 1), np.where(is_mixed, alpha, 1))
        boxes = _minmax_boxes(rng, self.minmax, count, size) if self.minmax else _boxes(rng, weight, size)
        boxes = np.where(is_cutmix[:, None], boxes, 0)
        top, bottom, left, right = boxes.T
        weight = np.where(is_cutmix, 1 - (bottom - top) * (right - left) / (size[0] * size[1]), weight)
        return MixDraws(np.where(is_mixed, weight, 1.0), boxes, is_cutmix)

    def mix_batch(
        self, images: torch.Tensor, targets: torch.Tensor, draws: MixDraws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One mix for all images: CutMix copies the box only."""
        weight = float(draws.weight[0])
        if weight == 1 and not draws.is_cutmix[0]:
            return images, targets
        if draws.is_cutmix[0]:
            top, bottom, left, right = draws.box[0].tolist()
            images[..., top:bottom, left:right] = images[..., top:bottom, left:right].flip(0)
        else:
            images = images.flip(0).lerp_(images, weight)
        return images, self._mix_targets(targets, weight)

    def mix_elements(
        self, images: torch.Tensor, targets: torch.Tensor, draws: MixDraws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A mix (D = B) for each image."""
        weight = _to_device(draws.weight.astype(np.float32), images.device)[:, None]
        pixel_weight = np.where(draws.is_cutmix, 1, draws.weight).astype(np.float32)
        top, bottom, left, right = _to_device(draws.box, images.device).T[:, :, None]  # each (B, 1)
        y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
        rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)  # (B, S)
        in_box = rows[:, :, None] & columns[:, None, :]  # (B, S, S)
        share = torch.where(in_box, 0.0, _to_device(pixel_weight, images.device)[:, None, None])
        return images.flip(0).lerp_(images, share[:, None]), self._mix_targets(targets, weight)

    def _mix_targets(self, targets: torch.Tensor, weight: float | torch.Tensor) -> torch.Tensor:
        """weight: a number, or (B, 1)."""
        hot = targets.float()
        if targets.ndim == 1:
            hot = torch.zeros((len(targets), self.num_classes), device=targets.device).scatter_(1, targets[:, None], 1)
        return hot * weight + hot.flip(0) * (1 - weight)


def mirrored(draws: MixDraws, batch: int) -> MixDraws:
    """Extends the draws for the first B // 2 images to B images: the partner of an image has its draw."""
    middle = batch % 2
    unmixed = MixDraws(np.ones(middle), np.zeros((middle, 4), int), np.zeros(middle, bool))
    return MixDraws(*(np.concatenate([half, odd, half[::-1]]) for half, odd in zip(draws, unmixed, strict=True)))


def _minmax_boxes(
    rng: np.random.Generator, minmax: tuple[float, float], count: int, size: tuple[int, int]
) -> np.ndarray:
    """Boxes (count, 4) whose sides are uniform in CUTMIX_MINMAX."""
    bounds = [[int(side * share) for share in minmax] for side in size]
    height, width = (rng.integers(low, max(high, low + 1), count) for low, high in bounds)
    top, left = rng.integers(0, size[0] - height + 1), rng.integers(0, size[1] - width + 1)
    return np.stack([top, top + height, left, left + width], axis=1)


def _boxes(rng: np.random.Generator, weight: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Boxes (D, 4) around uniform centers, clipped; before clipping their area is 1 - `weight` of the image."""
    edges = []
    for side in size:
        length, center = (side * np.sqrt(1 - weight)).astype(int), rng.integers(0, side, len(weight))
        edges += [np.clip(center - length // 2, 0, side), np.clip(center + (length + 1) // 2, 0, side)]
    return np.stack(edges, axis=1)


def _to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copies from pinned memory: a copy from pageable memory may wait for the GPU."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
