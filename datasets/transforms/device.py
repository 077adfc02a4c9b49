"""Augmentation and normalization of a batch, on the device.

Legend: B images per batch, C channels, S pixels on a side, K erased images, R rectangles in each.
"""

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Data, Train
from datasets.transforms.host import NO_AUGMENTATION, Augmentation


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
