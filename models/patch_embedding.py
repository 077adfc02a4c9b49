"""The patch embedding: as a linear layer on a GPU, or behind a convolutional network (MODEL.STEM).

Legend: B images, C channels, S pixels on a side, P pixels on a side of a patch, G patches on a side, N tokens, D
features, the channels of a token.
"""

from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed
from torch import nn

from utils.errors import UserError, did_you_mean


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


class ConvolutionalStem(PatchEmbed):
    """Images (B, C, S, S) -> tokens (B, N, D): the last features of `network`, with the stride `patch_size`, projected.

    With few images a ViT learns faster behind convolutions (Xiao et al., 2021, "Early Convolutions Help Transformers
    See Better"). Stages that would have a larger stride are dilated, as timm's `output_stride` does.

    Raises:
        UserError: timm does not have the network, or it does not have that stride.
    """

    def __init__(self, network: str, patch_size: int, in_chans: int, embed_dim: int, **kwargs: Any) -> None:
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, **kwargs)
        if not timm.is_model(network):
            raise UserError(f"MODEL.STEM: timm has no model {network[:80]}{did_you_mean(network, timm.list_models())}")
        arguments: dict[str, Any] = {"output_stride": patch_size, "in_chans": in_chans, "out_indices": (-1,)}
        try:
            extractor: Any = timm.create_model(network, features_only=True, **arguments)
            (stride,), (channels,) = extractor.feature_info.reduction(), extractor.feature_info.channels()
        except (TypeError, AssertionError, RuntimeError, AttributeError):  # by family
            stride, channels = 0, 0
        if stride != patch_size:
            raise UserError(f"MODEL.STEM: timm's {network} has no features of stride {patch_size}; use resnet10t")
        self.network, self.proj = extractor, nn.Conv2d(channels, embed_dim, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.proj(self.network(images)[-1]).flatten(2).transpose(1, 2))
