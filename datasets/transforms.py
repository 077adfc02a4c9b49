"""Random augmentation: drawn per sample on the host, computed in batches on the device.

Legend: B images per batch, C channels, S pixels on a side. Batches travel as uint8 (B, C, S, S).
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.transforms import v2

from configs.schema import Data, Train
from datasets.decode import random_crop_box, resize_crop
from utils.chance import derive_seed


class TrainTransform:
    """A sample's crop, flip and affine map, each a function of (seed, epoch, index)."""

    def __init__(self, options: Data, seed: int) -> None:
        self.options = options
        self.seed = seed
        self.draws_affine = bool(
            options.affine_degrees or options.affine_translate or options.affine_scale != (1.0, 1.0)
        )

    def generator(self, epoch: int, index: int) -> random.Random:
        return random.Random(derive_seed(self.seed, "augment", epoch, index))

    def crop(self, image: torch.Tensor, rng: random.Random) -> torch.Tensor:
        """uint8 (C, H, W) -> uint8 (C, S, S): random resized crop (Szegedy et al., 2014) and flip."""
        options = self.options
        box = random_crop_box(
            image.shape[-2], image.shape[-1], options.random_crop_scale, options.random_crop_ratio, rng
        )
        image = resize_crop(image, box, options.image_size)
        return image.flip(-1) if rng.random() < options.hflip_prob else image

    def affine(self, rng: random.Random) -> list[list[float]]:
        """The map (2, 3) from a pixel of the new image to the old one's, in coordinates from -1 to 1."""
        options = self.options
        angle = math.radians(rng.uniform(-options.affine_degrees, options.affine_degrees))
        zoom = rng.uniform(*options.affine_scale)
        right, down = (2 * rng.uniform(-options.affine_translate, options.affine_translate) for _ in range(2))
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        return [[cos, -sin, right], [sin, cos, down]]


class DeviceTransform(nn.Module):
    """What is left to do on the device: uint8 -> float32, affine map, normalization."""

    def __init__(self, options: Data) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(options.imagenet_mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(options.imagenet_std).view(-1, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor, affine: torch.Tensor | None = None) -> torch.Tensor:
        """images uint8 (B, C, S, S), affine (B, 2, 3) or None -> normalized float32 (B, C, S, S)."""
        images = images.to(torch.float32)
        if affine is not None:
            grid = F.affine_grid(affine, list(images.shape), align_corners=False)
            images = F.grid_sample(images, grid, align_corners=False)
        return (images - self.mean) / self.std


def build_mixup(options: Train, num_classes: int) -> nn.Module:
    """(images, targets (B,)) -> (images, targets (B, classes)), or both as they are; draws from torch's global chance.

    Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019) with PaddleViT's and timm's probabilities.
    """
    mixup = v2.MixUp(num_classes=num_classes, alpha=options.mixup_alpha) if options.mixup_alpha else None
    cutmix = v2.CutMix(num_classes=num_classes, alpha=options.cutmix_alpha) if options.cutmix_alpha else None
    if mixup and cutmix:
        switch = options.mixup_switch_prob
        return v2.RandomApply([v2.RandomChoice([mixup, cutmix], p=[1 - switch, switch])], p=options.mixup_prob)
    if mixup or cutmix:
        return v2.RandomApply([mixup or cutmix], p=options.mixup_prob)
    return v2.Identity()
