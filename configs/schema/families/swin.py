"""Swin Transformer (Liu et al., 2021)."""

from typing import Literal

from pydantic import Field, model_validator

from configs.schema.families.family import Family, arguments, family_defaults, shifted
from configs.schema.model import Model
from configs.schema.section import Counts


class Swin(Model):
    type: Literal["swin"] = "swin"
    patch_size: int = Field(4, ge=1, description="height and width of a patch, pixels")
    window_size: int = Field(7, ge=1, description="height and width of an attention window, patches")
    embed_dim: int = Field(96, ge=1, description="channels of a token in the first stage; they double in each stage")
    num_heads: Counts = Field((3, 6, 12, 24), description="attention heads of each stage; as many as STAGE_DEPTHS")
    stage_depths: Counts = Field((2, 2, 6, 2), min_length=1, description="blocks of each stage")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / channels")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    qk_scale: None = Field(None, description="PaddleViT's custom attention scale: not in timm")
    ape: Literal[False] = Field(False, description="PaddleViT's absolute position embedding: fails in PaddleViT")
    patch_norm: Literal[True] = Field(True, description="norm after the patch embedding")

    @model_validator(mode="after")
    def _check(self) -> "Swin":
        stages, heads_given = len(self.stage_depths), len(self.num_heads)
        if stages != heads_given:
            raise ValueError(f"NUM_HEADS has {heads_given} values, STAGE_DEPTHS {stages}; give one per stage")
        for stage, heads in enumerate(self.num_heads):
            if self.embed_dim * 2**stage % heads:
                raise ValueError(
                    f"NUM_HEADS of stage {stage + 1} is {heads}, no divisor of {self.embed_dim * 2**stage}"
                )
        return self

    @property
    def image_size_multiple(self) -> int:
        return self.patch_size


SWIN = Family(
    "Swin Transformer",
    Swin,
    timm="swin_tiny_patch4_window7_224",
    arguments=arguments(
        *("img_size", "patch_size", "window_size", "embed_dim", "num_heads", "mlp_ratio", "qkv_bias"),
        depths="stage_depths",
        drop_path_rate="droppath",  # also 0: timm's default is 0.1
        dropout=["proj_drop_rate"],
    ),
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
