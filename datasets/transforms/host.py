"""Random augmentation: drawn per sample on the host; what takes long is computed in batches on the device.

Flipping is left to the host: there it costs a hundredth of the decoding, in a batch on a CPU a tenth of it.

Legend: B images per batch, C channels, S pixels on a side, K erased images, R rectangles in each. Batches travel as
uint8 (B, C, S, S).
"""

import math
import random
from typing import NamedTuple

import torch

from configs.schema import Data, Train
from datasets.decoding.decode import Picture, random_crop_box, resize
from datasets.decoding.partial_jpeg import Box
from utils.seeding import derive_seed

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
