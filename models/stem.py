"""A convolutional stem for a ViT: a network of timm's in place of the patch embedding.

Legend: B images, C channels, S pixels on a side, N tokens, D channels of a token.
"""

from typing import Any

import timm
import torch
from timm.layers import PatchEmbed
from torch import nn

from utils.errors import UserError, did_you_mean


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
