"""CoaT and CoaT-Lite (Xu et al., 2021)."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, shifted
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model
from configs.schema.section import Floats


class CoaTKeys(Model):
    patch_size: Literal[4] = Field(4, description="height and width of a patch, pixels: always 4")
    embed_dims: Counts = Field((152, 152, 152, 152), description="channels of each scale; multiples of 8")
    serial_depths: Counts = Field((2, 2, 2, 2), description="serial blocks of each scale")
    parallel_depth: int = Field(6, ge=0, description="blocks that combine the last three scales; 0: CoaT-Lite")
    num_heads: Literal[8] = Field(8, description="attention heads: the position encodings have windows for 8 heads")
    mlp_ratios: Floats = Field((4.0, 4.0, 4.0, 4.0), description="hidden channels of the MLP / channels, of each scale")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")

    @model_validator(mode="after")
    def _check(self) -> "CoaTKeys":
        check_lengths(self, "EMBED_DIMS", "SERIAL_DEPTHS", "MLP_RATIOS", length=4)
        if any(dim % 8 for dim in self.embed_dims):
            raise ValueError("EMBED_DIMS has a value that is not a multiple of 8, the number of heads; change it")
        if self.parallel_depth and len(set(self.embed_dims[1:])) > 1:
            raise ValueError("EMBED_DIMS must end with three equal values if PARALLEL_DEPTH is not 0")
        if self.parallel_depth and len(set(self.mlp_ratios[1:])) > 1:
            raise ValueError("MLP_RATIOS must end with three equal values if PARALLEL_DEPTH is not 0")
        return self

    def image_size_problem(self, image_size: int) -> str | None:
        return "is not a multiple of 32" if image_size % 32 else None


class CoaT(CoaTKeys):
    type: Literal["coat"] = "coat"


class CoaTLite(CoaTKeys):
    type: Literal["coat_lite"] = "coat_lite"


def _arguments(model: CoaTKeys, data: Data) -> dict[str, Any]:
    return {
        "img_size": data.image_size,
        "patch_size": model.patch_size,
        "embed_dims": model.embed_dims,
        "serial_depths": model.serial_depths,
        "parallel_depth": model.parallel_depth,
        "num_heads": model.num_heads,
        "mlp_ratios": model.mlp_ratios,
        "qkv_bias": model.qkv_bias,
        "proj_drop_rate": model.dropout,
        "drop_rate": 0.0,
    }


COAT = Family(
    "CoaT",
    CoaT,
    timm="models.families.coat:coat",
    arguments=_arguments,
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
