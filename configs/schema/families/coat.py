"""CoaT and CoaT-Lite (Xu et al., 2021)."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts, Floats


class CoaTKeys(Model):
    patch_size: Literal[4] = Field(4, description="height and width of a patch, pixels: always 4")
    embed_dims: Counts = per_stage((152, 152, 152, 152), "channels of each scale; multiples of 8")
    serial_depths: Counts = per_stage((2, 2, 2, 2), "serial blocks of each scale")
    parallel_depth: int = Field(6, ge=0, description="blocks that combine the last three scales; 0: CoaT-Lite")
    num_heads: Literal[8] = Field(8, description="attention heads: the position encodings have windows for 8 heads")
    mlp_ratios: Floats = per_stage((4.0, 4.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each scale")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")

    @property
    def image_size_multiple(self) -> int:
        return 32


class CoaT(CoaTKeys):
    type: Literal["coat"] = "coat"


class CoaTLite(CoaTKeys):
    type: Literal["coat_lite"] = "coat_lite"


COAT = Family(
    "CoaT",
    CoaT,
    timm="models.families.coat:coat",
    arguments=arguments(
        *("img_size", "patch_size", "embed_dims", "serial_depths", "parallel_depth", "num_heads", "mlp_ratios"),
        *("qkv_bias",),
        dropout=["proj_drop_rate"],
    ),
    defaults=family_defaults(train={"WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "END_LR": 1e-5, "MODEL_EMA": True}),
    renames=[
        (r"^patch_embeds\.(\d)\.patch_embed\.", shifted("patch_embed", ".proj.", by=1)),
        (r"^patch_embeds\.(\d)\.norm\.", shifted("patch_embed", ".norm.", by=1)),
        (r"^cls_tokens\.(\d)$", shifted("cls_token", "", by=1)),
        (r"^cpes\.(\d)\.", shifted("cpe", ".", by=1)),
        (r"^crpes\.(\d)\.", shifted("crpe", ".", by=1)),
        (r"^serial_blocks\.(\d)\.", shifted("serial_blocks", ".", by=1)),
    ],
    differs="the three MLPs of a parallel block have weights of their own, as in PaddleViT",
)
COAT_LITE = replace(COAT, title="CoaT-Lite", keys=CoaTLite, differs="")
