"""Random augmentation: drawn per sample on the host; what takes long is computed in batches on the device.

Flipping is left to the host: there it costs a hundredth of the decoding, in a batch on a CPU a tenth of it.

Legend: B images per batch, C channels, S pixels on a side, K erased images, R rectangles in each. Batches travel as
uint8 (B, C, S, S).
"""

import math
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.transforms import v2

from configs.schema import Data, Train
from datasets.decode import Picture, random_crop_box, resize
from datasets.partial_jpeg import Box
from utils.chance import derive_seed

_ERASED_AREA = (0.02, 1 / 3)  # of the image, over all rectangles, and their height / width: as in the paper
_ERASED_RATIO = (0.3, 1 / 0.3)


class Augmentation(NamedTuple):
    """What was drawn for the samples of a batch, to be done on the device.

    affine float32 (B, 2, 3); the places of erased images int64 (K,) and their boxes int64 (K, R, 4) of top, left,
    height, width in pixels. None where no image has it.
    """

    affine: torch.Tensor | None = None
    erased: torch.Tensor | None = None
    boxes: torch.Tensor | None = None


NO_AUGMENTATION = Augmentation()


class TrainTransform:
    """A sample's crop, flip, affine map and erased boxes, each a function of (seed, epoch, index)."""

    def __init__(self, options: Data, train: Train, seed: int) -> None:
        self.options, self.train = options, train
        self.seed = seed
        self.draws_affine = bool(
            options.affine_degrees or options.affine_translate or options.affine_scale != (1.0, 1.0)
        )

    def generator(self, epoch: int, index: int) -> random.Random:
        return random.Random(derive_seed(self.seed, "augment", epoch, index))

    def crop(self, picture: Picture, rng: random.Random) -> torch.Tensor:
        """-> uint8 (C, S, S): random resized crop (Szegedy et al., 2014) and flip."""
        box, flips = self.draw_crop(picture.size, rng)
        image = resize(picture.region(box), self.options.image_size, self.options.image_size)
        return image.flip(-1) if flips else image

    def draw_crop(self, size: tuple[int, int], rng: random.Random) -> tuple[Box, bool]:
        """The box of an image of that height and width, and whether it is flipped."""
        options = self.options
        box = random_crop_box(*size, options.random_crop_scale, options.random_crop_ratio, rng)
        return box, rng.random() < options.hflip_prob

    def draw(self, generators: list[random.Random | None]) -> Augmentation:
        """For a batch, of which the places without a generator are empty."""
        size, train = self.options.image_size, self.train
        affine, erased, boxes = [], [], []
        for place, rng in enumerate(generators):
            if self.draws_affine:
                affine.append(self.affine(rng) if rng else [[0.0] * 3] * 2)
            if rng and train.random_erase_prob and rng.random() < train.random_erase_prob:
                erased.append(place)
                count = train.random_erase_count
                boxes.append([random_erase_box(size, count, rng) for _ in range(count)])
        return Augmentation(
            torch.tensor(affine) if affine else None,
            torch.tensor(erased) if erased else None,
            torch.tensor(boxes) if boxes else None,
        )

    def affine(self, rng: random.Random) -> list[list[float]]:
        """The map (2, 3) from a pixel of the new image to the old one's, in coordinates from -1 to 1."""
        options = self.options
        angle = math.radians(rng.uniform(-options.affine_degrees, options.affine_degrees))
        zoom = rng.uniform(*options.affine_scale)
        right, down = (2 * rng.uniform(-options.affine_translate, options.affine_translate) for _ in range(2))
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        return [[cos, -sin, right], [sin, cos, down]]


def random_erase_box(size: int, count: int, rng: random.Random) -> Box:
    """One of `count` boxes to erase of an image of `size` x `size` pixels (Zhong et al., 2017), as timm draws it.

    It is empty where ten boxes in a row would not lie inside the image.
    """
    low, high = (math.log(bound) for bound in _ERASED_RATIO)
    for _ in range(10):
        area = rng.uniform(*_ERASED_AREA) * size * size / count
        ratio = math.exp(rng.uniform(low, high))
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if height < size and width < size:
            return rng.randint(0, size - height), rng.randint(0, size - width), height, width
    return 0, 0, 0, 0


class DeviceTransform(nn.Module):
    """What is left to do on the device: uint8 -> float32, affine map, normalization, erasing."""

    def __init__(self, options: Data, train: Train) -> None:
        super().__init__()
        self.erase_mode = train.random_erase_mode
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (options.imagenet_mean, options.imagenet_std))
        self.register_buffer("factor", 1 / (255 * std), persistent=False)
        self.register_buffer("offset", -mean / std, persistent=False)

    def forward(self, images: torch.Tensor, augmentation: Augmentation = NO_AUGMENTATION) -> torch.Tensor:
        """images uint8 (B, C, S, S) -> normalized float32 (B, C, S, S). Noise is from torch's global chance."""
        images = images.to(torch.float32)
        if augmentation.affine is not None:
            grid = F.affine_grid(augmentation.affine, list(images.shape), align_corners=False)
            images = F.grid_sample(images, grid, align_corners=False)
        images = images.mul_(self.factor).add_(self.offset)
        if augmentation.erased is not None:
            self._erase(images, augmentation.erased, augmentation.boxes)
        return images

    def _erase(self, images: torch.Tensor, erased: torch.Tensor, boxes: torch.Tensor) -> None:
        parts = images[erased]
        top, left, height, width = boxes[..., None].unbind(2)  # each (K, R, 1)
        pixel = torch.arange(images.shape[-1], device=images.device)
        rows = (pixel >= top) & (pixel < top + height)  # (K, R, S)
        columns = (pixel >= left) & (pixel < left + width)
        mask = (rows[..., :, None] & columns[..., None, :]).any(1, keepdim=True)  # (K, 1, S, S)
        if self.erase_mode == "pixel":
            fill = torch.randn_like(parts)
        elif self.erase_mode == "rand":
            fill = torch.randn((*parts.shape[:2], 1, 1), device=parts.device)
        else:
            fill = torch.zeros((), device=parts.device)
        images[erased] = torch.where(mask, fill, parts)


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
