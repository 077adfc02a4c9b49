"""ConvNeXt (Liu et al., 2022)."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model


class ConvNeXt(Model):
    type: Literal["convnext"] = "convnext"
    patch_size: int = Field(4, ge=1, description="height and width of a patch, pixels")
    output_stride: Literal[32] = Field(32, description="no effect: dilation is not in PaddleViT")
    depths: Counts = Field((3, 3, 9, 3), description="blocks of each of the 4 stages")
    dims: Counts = Field((96, 192, 384, 768), description="channels of each stage")
    head_norm_first: Literal[False] = Field(False, description="norm before the pooling: no weights were verified")
    conv_mlp: Literal[False] = Field(False, description="MLPs as 1x1 convolutions: no weights were verified")
    stem_type: Literal["patch"] = Field("patch", description="PaddleViT's other stem, 'dual', is not in timm")

    @model_validator(mode="after")
    def _check(self) -> "ConvNeXt":
        check_lengths(self, "DEPTHS", "DIMS", length=4)
        return self

    def image_size_problem(self, image_size: int) -> str | None:
        smallest = self.patch_size * (16 if self.patch_size == 2 else 8)  # the first stage too has stride 2 after 2
        return f"is smaller than {smallest}, the stride of the model" if image_size < smallest else None


def _arguments(model: ConvNeXt, data: Data) -> dict[str, Any]:
    return {"depths": model.depths, "dims": model.dims, "patch_size": model.patch_size}


CONVNEXT = Family(
    "ConvNeXt",
    ConvNeXt,
    timm="convnext_tiny",
    arguments=_arguments,
    defaults=family_defaults(
        train={
            "WARMUP_EPOCHS": 20,
            "BASE_LR": 4e-3,
            "END_LR": 1e-5,
            "MODEL_EMA": True,
            "MODEL_EMA_DECAY": 0.9999,
        },
    ),
)
