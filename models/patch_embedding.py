"""The patch embedding as a linear layer, on a GPU.

Legend: B images, C channels, S pixels on a side, P pixels on a side of a patch, G patches on a side, D features.
"""

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed
from torch import nn


class PatchLinear(nn.Conv2d):
    """A convolution of patches that do not overlap, as one matrix product on the same weight.

    With three input channels cuDNN's kernels use a small part of the tensor cores. Not measured here.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images (B, C, S, S) -> (B, D, G, G), whose memory has the order (B, G, G, D)."""
        height, width = self.kernel_size
        if images.shape[2] % height or images.shape[3] % width:
            return super().forward(images)
        patches = images.unflatten(3, (-1, width)).unflatten(2, (-1, height))  # (B, C, G, P, G, P)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype
        patches = patches.permute(0, 2, 4, 1, 3, 5).to(dtype, memory_format=torch.contiguous_format).flatten(3)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def use_linear_patches(model: nn.Module) -> None:
    """Makes the convolution of each of timm's patch embeddings in `model` a `PatchLinear`."""
    for module in model.modules():
        if isinstance(module, PatchEmbed) and type(module.proj) is nn.Conv2d:
            module.proj.__class__ = PatchLinear
