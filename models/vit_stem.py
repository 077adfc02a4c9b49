"""A ViT behind a convolutional network, by a name of timm's. Exports have a copy: this file needs torch and timm only.

Once it is imported, `timm.create_model("local-dir:FOLDER", pretrained=True)` builds such an export.
"""

from functools import partial
from typing import Any

import timm
from timm.layers import PatchEmbed
from timm.models import VisionTransformer, build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

default_cfgs = generate_default_cfgs({"vit_stem": {"classifier": "head"}})


class ConvolutionalStem(PatchEmbed):
    """Images (B, C, S, S) -> tokens (B, N, D): the last features of `network`, with the stride `patch_size`, projected.

    With few images a ViT learns faster behind convolutions (Xiao et al., 2021, "Early Convolutions Help Transformers
    See Better"). Stages that would have a larger stride are dilated, as timm's `output_stride` does.
    Raises ValueError: timm's network does not have that stride.
    """

    def __init__(self, network: str, patch_size: int, in_chans: int, embed_dim: int, **kwargs: Any) -> None:
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, **kwargs)
        arguments: dict[str, Any] = {"output_stride": patch_size, "in_chans": in_chans, "out_indices": (-1,)}
        try:
            extractor: Any = timm.create_model(network, features_only=True, **arguments)
            (stride,), (channels,) = extractor.feature_info.reduction(), extractor.feature_info.channels()
        except (TypeError, AssertionError, RuntimeError, AttributeError):  # by family
            stride = 0
            channels = 0
        if stride != patch_size:
            raise ValueError(f"MODEL.STEM: timm's {network} has no features of stride {patch_size}; use resnet10t")
        self.network = extractor
        self.proj = nn.Conv2d(channels, embed_dim, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(self.network(images)[-1]).flatten(2).transpose(1, 2))


@register_model
def vit_stem(
    pretrained: bool = False, stem: str = "resnet10t", patch_size: int = 32, **kwargs: Any
) -> VisionTransformer:
    """timm's VisionTransformer on the features of timm's network `stem`, with the stride `patch_size`."""
    arguments: dict[str, Any] = {"patch_size": patch_size, "embed_layer": partial(ConvolutionalStem, stem)} | kwargs
    return build_model_with_cfg(VisionTransformer, "vit_stem", pretrained, **arguments)
