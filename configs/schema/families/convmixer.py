"""ConvMixer (Trockman and Kolter, 2022)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, Rename, arguments, family_defaults, shifted
from configs.schema.model import Model
from configs.schema.section import Section


class Convolutions(Section):
    dim: int = Field(1536, ge=1, description="channels")
    depth: int = Field(20, ge=1, description="number of blocks")
    kernel_size: int = Field(9, ge=1, description="height and width of the depthwise convolution, patches; odd")
    patch_size: int = Field(7, ge=1, description="height and width of a patch, pixels")
    activation: Literal["GELU", "ReLU"] = Field("GELU", description="activation function")


class ConvMixer(Model):
    type: Literal["convmixer"] = "convmixer"
    cnn: Convolutions = Convolutions()


def _renames(model: ConvMixer) -> Sequence[Rename]:
    head = model.cnn.depth + 5  # PaddleViT numbers the stem, the blocks, the pooling and the head together
    return [
        (rf"^{head}\.", "head."),
        (r"^([0-2])\.", r"stem.\1."),
        (r"^(\d+)\.", shifted("blocks.", ".", by=-3)),
    ]


CONVMIXER = Family(
    "ConvMixer",
    ConvMixer,
    timm="models.families.convmixer:convmixer",
    arguments=arguments("cnn.dim", "cnn.depth", "cnn.kernel_size", "cnn.patch_size", "cnn.activation"),
    defaults=family_defaults(train={"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5}),
    renames=_renames,
)
