"""ConvMixer (Trockman and Kolter, 2022)."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, Rename, shifted
from configs.schema.model import Model
from configs.schema.section import Section


class Convolutions(Section):
    dim: int = Field(1536, ge=1, description="channels")
    depth: int = Field(20, ge=1, description="number of blocks")
    kernel_size: int = Field(9, ge=1, description="height and width of the depthwise convolution, patches; odd")
    patch_size: int = Field(7, ge=1, description="height and width of a patch, pixels")
    activation: Literal["GELU", "ReLU"] = Field("GELU", description="activation function")

    @field_validator("kernel_size")
    @classmethod
    def _odd(cls, size: int) -> int:
        if size % 2 == 0:
            raise ValueError(f"must be odd, such as {size + 1}")
        return size


class ConvMixer(Model):
    type: Literal["convmixer"] = "convmixer"
    cnn: Convolutions = Convolutions()

    def image_size_problem(self, image_size: int) -> str | None:
        size = self.cnn.patch_size
        return f"is smaller than MODEL.CNN.PATCH_SIZE {size}" if image_size < size else None


def _arguments(model: ConvMixer, data: Data) -> dict[str, Any]:
    return {
        "dim": model.cnn.dim,
        "depth": model.cnn.depth,
        "kernel_size": model.cnn.kernel_size,
        "patch_size": model.cnn.patch_size,
        "activation": model.cnn.activation,
    }


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
    arguments=_arguments,
    defaults=family_defaults(
        train={"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5},
    ),
    renames=_renames,
)
