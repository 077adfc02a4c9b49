"""PiT (Heo et al., 2021): a transformer with pooling between its stages; a second head if it is distilled."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import DROPOUTS, Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts


class PiT(Model):
    type: Literal["pit"] = "pit"
    patch_size: int = Field(14, ge=1, description="height and width of a patch, pixels")
    stride: int = Field(7, ge=1, description="distance between patches, pixels; less than PATCH_SIZE: they overlap")
    base_dims: Counts = per_stage((64, 64, 64), "channels of a head in each stage")
    num_heads: Counts = per_stage((4, 8, 16), "attention heads of each stage")
    depth: Counts = per_stage((3, 6, 4), "blocks of each stage")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / channels")
    distilled: bool = Field(False, description="a distillation token and head; default: DISTILLATION_TYPE is not none")


PIT = Family(
    "PiT",
    PiT,
    timm=lambda model: "pit_ti_distilled_224" if model.distilled else "pit_ti_224",
    arguments=arguments(
        *("img_size", "patch_size", "stride", "base_dims", "depth", "mlp_ratio"), heads="num_heads", dropout=DROPOUTS
    ),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996}),
    renames=[(r"^pools\.(\d+)\.", shifted("transformers.", ".pool.", by=1))],
)
