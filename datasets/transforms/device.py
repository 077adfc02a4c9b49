"""Device transforms: operations on a batch, after it was copied to the device.

To add an operation, write an `nn.Module` that maps images to images, add it to `device_operations`. If it needs
random parameters per sample, subclass `RandomDeviceOperation`: loading workers draw them, seeded by sample.

Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019) are as timm's `Mixup` computes them. An image is mixed with the
one at the mirrored position of the batch: the first with the last. The parameters are drawn on the host; the host never
waits for the device.

Legend: B images per batch, C channels, S pixels on a side, K erased images, R rectangles in each.
"""

import math
import random
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.parts import DEVICE_AUGMENTATIONS
from configs.schema import Data, Train
from configs.schema.train import Horizon
from datasets.batch import Batch, Drawn
from datasets.sources.samples import UNKNOWN
from utils.errors import UserError

Box = tuple[int, int, int, int]  # top, left, height, width in pixels


class Mixup(nn.Module):
    """(images (B, C, S, S), targets (B,)) -> (images, targets float32 (B, classes)), or both unchanged.

    Targets of several labels per image are multi-hot (B, classes); `UNKNOWN` of one image is unknown in the mix.

    One mix for all images of a batch. It follows from torch's global generator of the CPU.
    """

    def __init__(self, train: Train, num_classes: int, horizon: Horizon) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.off_epoch = train.mixup_off_epoch or math.inf
        self.horizon = horizon
        self.probability = train.mixup_prob
        self.minmax = train.cutmix_minmax
        self.mixup_alpha = train.mixup_alpha
        self.cutmix_alpha = train.cutmix_alpha
        if self.minmax:  # as timm: the boxes do not follow from the weights
            self.cutmix_alpha = 1.0
        # the probability that a mix is CutMix
        self.cutmix_share = train.mixup_switch_prob if self.mixup_alpha and self.cutmix_alpha else self.cutmix_alpha > 0

    def forward(self, images: Tensor, targets: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Mixes a batch; may overwrite `images`. `epoch` counts from 0."""
        is_off = self.horizon.in_first_plan(epoch) >= self.off_epoch
        if is_off or not (self.mixup_alpha or self.cutmix_alpha):
            return images, targets
        rng = np.random.default_rng(int(torch.randint(2**63 - 1, ())))
        weight, box = self.draw(rng, *images.shape[-2:])
        if weight == 1 and box is None:
            return images, targets
        if box:
            top, bottom, left, right = box
            images[..., top:bottom, left:right] = images[..., top:bottom, left:right].flip(0)
        else:
            images = images.flip(0).lerp_(images, weight)
        hot = targets.float()
        if targets.ndim == 1:
            hot = torch.zeros((len(targets), self.num_classes), device=targets.device).scatter_(1, targets[:, None], 1)
        is_unknown = hot == UNKNOWN
        mixed = hot * weight + hot.flip(0) * (1 - weight)
        return images, mixed.masked_fill_(is_unknown | is_unknown.flip(0), UNKNOWN)

    def draw(self, rng: np.random.Generator, height: int, width: int) -> tuple[float, tuple[int, int, int, int] | None]:
        """The share of an image itself in its new target, with mixup in each pixel too; of CutMix, the box of the rest.

        The box is top, bottom, left, right. A share of 1 without a box is no mix.
        """
        if rng.random() >= self.probability:
            return 1.0, None
        alpha = self.cutmix_alpha if (is_cutmix := rng.random() < self.cutmix_share) else self.mixup_alpha
        weight = rng.beta(alpha, alpha)
        edges = list[int]()
        if not is_cutmix:
            return weight, None
        if self.minmax:  # the sides of a box are uniform in CUTMIX_MINMAX
            bounds = [[int(side * share) for share in self.minmax] for side in (height, width)]
            sides = [int(rng.integers(low, max(high, low + 1))) for low, high in bounds]
            for whole, side in zip((height, width), sides, strict=True):
                edges += [start := int(rng.integers(0, whole - side + 1)), start + side]
        else:  # a box around a uniform center, clipped; before clipping its area is 1 - `weight` of the image
            for side in (height, width):
                length = int(side * math.sqrt(1 - weight))
                center = int(rng.integers(0, side))
                edges += [max(center - length // 2, 0), min(center + (length + 1) // 2, side)]
        top, bottom, left, right = edges
        return 1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right)


_ERASED_AREA = (0.02, 1 / 3)  # of all rectangles together, as a share of the image, and their height / width: from
_ERASED_RATIO = (0.3, 1 / 0.3)  # Random Erasing (Zhong et al., 2017)
_MAX_TRIES = 10
_EMPTY_BOX: Box = (0, 0, 0, 0)


class RandomDeviceOperation(nn.Module):
    """An operation with random parameters for each sample.

    A loading worker calls `draw` per sample and `collate` per batch; `forward` gets the resulting tensors.
    """

    name: str

    def draw(self, rng: random.Random) -> Any:
        """The parameters for one sample, or None if the operation does not apply to it."""
        raise NotImplementedError

    def collate(self, drawn: list[Any]) -> Drawn | None:
        """The parameters (B,) as tensors, or None if there is nothing to do. None in `drawn` also means padding."""
        raise NotImplementedError


class RandomAffine(RandomDeviceOperation):
    """Rotation, translation and scaling in one bilinear resampling; returns float32 in 0..255."""

    name = "affine"

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data
        height, width = data.input_size
        self.aspect = height / width

    def draw(self, rng: random.Random) -> list[list[float]]:
        """The map (2, 3) from a pixel of the new image to a pixel of the old one, in coordinates from -1 to 1."""
        data = self.data
        if data.affine_prob < 1 and rng.random() >= data.affine_prob:
            return [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        angle = math.radians(rng.uniform(-data.affine_degrees, data.affine_degrees))
        zoom = rng.uniform(*data.affine_scale)
        right, down = (2 * rng.uniform(-data.affine_translate, data.affine_translate) for _ in range(2))
        cos = math.cos(angle) / zoom
        sin = math.sin(angle) / zoom
        return [[cos, -sin * self.aspect, right], [sin / self.aspect, cos, down]]

    def collate(self, drawn: list[list[list[float]] | None]) -> Drawn:
        """float32 (B, 2, 3), zeros for padding."""
        return (torch.tensor([matrix or [[0.0] * 3] * 2 for matrix in drawn]),)

    def forward(self, images: Tensor, matrices: Tensor) -> Tensor:
        images = images.to(torch.float32)
        grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)


class Normalize(nn.Module):
    """Images (B, C, S, S) of values 0..255 -> normalized float32. Of validation images, the whole device transform."""

    factor: Tensor
    offset: Tensor

    def __init__(self, data: Data) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.imagenet_mean, data.imagenet_std))
        self.register_buffer("factor", 1 / (255 * std), persistent=False)
        self.register_buffer("offset", -mean / std, persistent=False)
        self._full_size = [torch.empty(0), torch.empty(0)]  # offset, factor

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return torch.addcmul(self.offset, images, self.factor)
        # On a CPU torch vectorizes this operation for operands of the full size only.
        if self._full_size[0].shape != images.shape[1:]:
            self._full_size = [values.expand(images.shape[1:]).contiguous() for values in (self.offset, self.factor)]
        offset, factor = self._full_size
        values = torch.empty(images.shape)
        for image, value in zip(images, values, strict=True):  # in the cache, and in place: new pages take as long
            torch.addcmul(offset, value.copy_(image), factor, out=value)
        return values


class RandomErase(RandomDeviceOperation):
    """Random Erasing (Zhong et al., 2017) as timm and PaddleViT implement it: 1 to RANDOM_ERASE_COUNT rectangles.

    The noise comes from torch's global generator.
    """

    name = "erase"

    def __init__(self, data: Data, train: Train) -> None:
        super().__init__()
        self.size = data.input_size
        self.mode = train.random_erase_mode
        self.probability = train.random_erase_prob
        self.count = train.random_erase_count

    def draw(self, rng: random.Random) -> list[Box] | None:
        """Boxes; one is empty if ten in a row do not fit."""
        if rng.random() >= self.probability:
            return None
        boxes = []
        count = rng.randint(1, self.count) if self.count > 1 else 1
        height, width = self.size
        low, high = (math.log(bound) for bound in _ERASED_RATIO)
        for _ in range(count):
            box = _EMPTY_BOX
            for _ in range(_MAX_TRIES):
                area = rng.uniform(*_ERASED_AREA) * height * width / count
                ratio = math.exp(rng.uniform(low, high))
                rows = round(math.sqrt(area * ratio))
                columns = round(math.sqrt(area / ratio))
                if rows < height and columns < width:
                    box = rng.randint(0, height - rows), rng.randint(0, width - columns), rows, columns
                    break
            boxes.append(box)
        return boxes

    def collate(self, drawn: list[list[Box] | None]) -> Drawn | None:
        """The positions of erased images int64 (K,), and their boxes int64 (K, R, 4), some of which may be empty."""
        erased = [(position, boxes) for position, boxes in enumerate(drawn) if boxes]
        if not erased:
            return None
        most = max(len(boxes) for _, boxes in erased)
        padded = [boxes + [_EMPTY_BOX] * (most - len(boxes)) for _, boxes in erased]
        return torch.tensor([position for position, _ in erased]), torch.tensor(padded)

    def forward(self, images: Tensor, positions: Tensor, boxes: Tensor) -> Tensor:
        """Overwrites the erased parts of normalized float32 (B, C, S, S).

        On a CPU noise is drawn for the boxes only. On a GPU many small kernels would take longer than noise for whole
        images.
        """
        if images.device.type == "cpu":
            for position, of_image in zip(positions.tolist(), boxes.tolist(), strict=True):
                for first, start, rows, columns in of_image:
                    part = images[position, :, first : first + rows, start : start + columns]
                    if self.mode == "pixel":
                        part.normal_()
                    elif self.mode == "rand":
                        part.copy_(torch.randn((len(part), 1, 1)))
                    else:
                        part.zero_()
            return images
        parts = images[positions]
        top, left, height, width = boxes[..., None].unbind(2)  # each (K, R, 1)
        y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
        rows = (y >= top) & (y < top + height)  # (K, R, S)
        columns = (x >= left) & (x < left + width)
        masks = rows[..., :, None] & columns[..., None, :]  # (K, R, S, S)
        if self.mode == "rand":
            colors = torch.randn((*boxes.shape[:2], parts.shape[1], 1, 1), device=parts.device)
            for mask, color in zip(masks.unbind(1), colors.unbind(1), strict=True):
                parts = torch.where(mask[:, None], color, parts)
        else:
            fill = torch.randn_like(parts) if self.mode == "pixel" else torch.zeros((), device=parts.device)
            parts = torch.where(reduce(torch.logical_or, masks.unbind(1))[:, None], fill, parts)
        images[positions] = parts
        return images


def device_operations(data: Data, train: Train) -> Iterator[nn.Module]:
    """Yields the operations on training images; their draws follow each other in the same order."""
    if data.affine_degrees or data.affine_translate or data.affine_scale != (1.0, 1.0):
        yield RandomAffine(data)
    yield Normalize(data)
    if train.random_erase_prob:
        yield RandomErase(data, train)
    for name, options in (data.device_augmentations or {}).items():
        operation = DEVICE_AUGMENTATIONS.build(name, options)
        if not isinstance(operation, nn.Module):
            raise UserError(f"DATA.DEVICE_AUGMENTATIONS: {name} must be a class, an nn.Module with __init__(options)")
        yield operation


class TrainTransform(nn.Module):
    """The device transform of training batches: the device operations, then mixup or CutMix.

    With RANDOM_ERASE_AFTER_MIXUP the erased parts lie over the mixed images.
    """

    def __init__(self, data: Data, train: Train, num_classes: int, horizon: Horizon) -> None:
        super().__init__()
        operations = [*device_operations(data, train)]
        last = []
        if train.random_erase_after_mixup:
            last = [one for one in operations if isinstance(one, RandomErase)]
        self.operations = nn.ModuleList(one for one in operations if one not in last)
        self.mixup = Mixup(train, num_classes, horizon)
        self.last_operations = nn.ModuleList(last)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns images float32 (B, C, S, S), and the targets of the batch or, if mixed, float32 (B, classes).

        A batch with unreadable images is not mixed: its padding has no label. Noise and mixup use torch's global
        generator.
        """
        images = self._run(self.operations, batch.images, batch)
        targets = batch.targets
        if not batch.bad:
            images, targets = self.mixup(images, targets, batch.epoch)
        return self._run(self.last_operations, images, batch), targets

    def _run(self, operations: nn.ModuleList, images: Tensor, batch: Batch) -> Tensor:
        for operation in operations:
            if not isinstance(operation, RandomDeviceOperation):
                images = operation(images)
            elif operation.name in batch.drawn:
                images = operation(images, *batch.drawn[operation.name])
        return images
