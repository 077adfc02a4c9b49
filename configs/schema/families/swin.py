"""Swin Transformer (Liu et al., 2021)."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, shifted
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model


class Swin(Model):
    type: Literal["swin"] = "swin"
    patch_size: int = Field(4, ge=1, description="height and width of a patch, pixels")
    window_size: int = Field(7, ge=1, description="height and width of an attention window, patches")
    embed_dim: int = Field(96, ge=1, description="channels of a token in the first stage; they double in each stage")
    num_heads: Counts = Field((3, 6, 12, 24), description="attention heads of each stage")
    stage_depths: Counts = Field((2, 2, 6, 2), description="blocks of each stage")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / channels")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    qk_scale: None = Field(None, description="PaddleViT's custom attention scale: not in timm")
    ape: Literal[False] = Field(False, description="PaddleViT's absolute position embedding: fails in PaddleViT")
    patch_norm: Literal[True] = Field(True, description="norm after the patch embedding")

    @model_validator(mode="after")
    def _check(self) -> "Swin":
        check_lengths(self, "NUM_HEADS", "STAGE_DEPTHS")
        for stage, heads in enumerate(self.num_heads):
            if self.embed_dim * 2**stage % heads:
                raise ValueError(
                    f"NUM_HEADS of stage {stage + 1} is {heads}, no divisor of {self.embed_dim * 2**stage}"
                )
        return self

    def image_size_problem(self, image_size: int) -> str | None:
        if image_size % self.patch_size:
            return f"is not a multiple of MODEL.PATCH_SIZE {self.patch_size}"
        if image_size // self.patch_size < self.window_size:
            return f"has fewer patches than MODEL.WINDOW_SIZE {self.window_size}"
        return None


def _arguments(model: Swin, data: Data) -> dict[str, Any]:
    return {
        "img_size": data.image_size,
        "patch_size": model.patch_size,
        "window_size": model.window_size,
        "embed_dim": model.embed_dim,
        "depths": model.stage_depths,
        "num_heads": model.num_heads,
        "mlp_ratio": model.mlp_ratio,
        "qkv_bias": model.qkv_bias,
        "drop_path_rate": model.droppath,  # also 0: timm's default is 0.1
        "proj_drop_rate": model.dropout,
        "drop_rate": 0.0,
    }


SWIN = Family(
    "Swin Transformer",
    Swin,
    timm="swin_tiny_patch4_window7_224",
    arguments=_arguments,
    defaults=family_defaults(
        data={"CROP_PCT": 0.9},
        model={"DROPPATH": 0.1},
        train={"WARMUP_EPOCHS": 20, "WARMUP_START_LR": 5e-7, "END_LR": 5e-6, "GRAD_CLIP": 5.0},
    ),
    renames=[
        (r"^patch_embedding\.patch_embed\.", "patch_embed.proj."),
        (r"^patch_embedding\.norm\.", "patch_embed.norm."),
        (r"^stages\.(\d+)\.downsample\.", shifted("layers.", ".downsample.", by=1)),
        (r"^stages\.", "layers."),
        (r"^fc\.", "head.fc."),
    ],
    dropped=[r".*\.relative_position_index", r".*\.attn_mask"],
)
