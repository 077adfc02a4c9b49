"""PiT (Heo et al., 2021): a transformer with pooling between its stages; a second head if it is distilled."""

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, dropout_arguments, shifted
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model


class PiT(Model):
    type: Literal["pit"] = "pit"
    patch_size: int = Field(14, ge=1, description="height and width of a patch, pixels")
    stride: int = Field(7, ge=1, description="distance between patches, pixels; less than PATCH_SIZE: they overlap")
    base_dims: Counts = Field((64, 64, 64), description="channels of a head in each stage")
    num_heads: Counts = Field((4, 8, 16), description="attention heads of each stage")
    depth: Counts = Field((3, 6, 4), description="blocks of each stage")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / channels")
    distilled: bool = Field(False, description="a distillation token and head; default: DISTILLATION_TYPE is not none")

    def image_size_problem(self, image_size: int) -> str | None:
        if image_size < self.patch_size:
            return f"is less than MODEL.PATCH_SIZE {self.patch_size}"
        return None

    @model_validator(mode="after")
    def _check(self) -> "PiT":
        check_lengths(self, "DEPTH", "NUM_HEADS", "BASE_DIMS")
        channels = [dim * heads for dim, heads in zip(self.base_dims, self.num_heads, strict=True)]
        for before, after in pairwise(channels):
            if after % before:
                raise ValueError(
                    f"BASE_DIMS x NUM_HEADS gives {before} and then {after} channels; the pooling between stages needs "
                    "a multiple"
                )
        return self


def _arguments(model: PiT, data: Data) -> dict[str, Any]:
    return {
        "img_size": data.image_size,
        "patch_size": model.patch_size,
        "stride": model.stride,
        "base_dims": model.base_dims,
        "heads": model.num_heads,
        "depth": model.depth,
        "mlp_ratio": model.mlp_ratio,
        **dropout_arguments(model),
    }


PIT = Family(
    "PiT",
    PiT,
    timm=lambda model: "pit_ti_distilled_224" if model.distilled else "pit_ti_224",
    arguments=_arguments,
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996}),
    renames=[(r"^pools\.(\d+)\.", shifted("transformers.", ".pool.", by=1))],
)
