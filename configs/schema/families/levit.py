"""LeViT (Graham et al., 2021): batch norm, attention with learned biases, a second head if it is distilled."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, Rename, arguments, family_defaults, per_stage
from configs.schema.model import Model
from configs.schema.section import Counts


class LeViT(Model):
    type: Literal["levit"] = "levit"
    distilled: bool = Field(True, description="a distillation head; default: DISTILLATION_TYPE is not none")
    patch_size: Literal[16] = Field(16, description="no effect: the stem has four convolutions of stride 2")
    embed_dim: Counts = per_stage((128, 256, 384), "channels of each stage; the first: a multiple of 8")
    key_dim: int = Field(16, ge=1, description="channels of a query and key in a head")
    num_heads: Counts = per_stage((4, 6, 8), "attention heads of each stage")
    depth: Counts = per_stage((2, 3, 4), "blocks of each stage")
    attn_ratio: float = Field(2, gt=0, description="channels of a value / KEY_DIM")
    mlp_ratio: float = Field(2, ge=2, le=2, description="hidden channels of the MLP / channels: timm has 2 only")
    use_conv: Literal[False] = Field(False, description="linear layers as 1x1 convolutions: fails in PaddleViT")

    @property
    def image_size_multiple(self) -> int:
        return 16


def _renames(model: LeViT) -> Sequence[Rename]:
    modules = [f"stages.0.blocks.{block}.{{}}" for block in range(model.depth[0])]
    for stage, depth in enumerate(model.depth[1:], start=1):
        modules += [
            f"stages.{stage}.downsample.{{}}",
            *(f"stages.{stage}.blocks.{block}.{{}}" for block in range(depth)),
        ]

    def block(match: re.Match[str]) -> str:
        """PaddleViT numbers all blocks and downsamplings together."""
        index, part = int(match[1]), match[2]
        if index >= len(modules):
            return match[0]
        is_downsample = ".downsample." in modules[index]
        return modules[index].format("attn_downsample" if is_downsample and part == "attn" else part)

    return [
        (r"^patch_embed\.(\d+)\.conv\.", lambda match: f"stem.conv{int(match[1]) // 2 + 1}.linear."),
        (r"^patch_embed\.(\d+)\.norm\.", lambda match: f"stem.conv{int(match[1]) // 2 + 1}.bn."),
        (r"^blocks\.(\d+)\.(attn|mlp)\b", block),
        (r"\.norm\.", ".bn."),
        (r"\.attn_biases$", ".attention_biases"),
        (r"\.(proj|q)\.1\.", r".\1.ln."),
    ]


LEVIT = Family(
    "LeViT",
    LeViT,
    timm="levit_128s",
    arguments=arguments(
        *("distilled", "img_size", "embed_dim", "key_dim", "depth", "num_heads", "attn_ratio", "mlp_ratio")
    ),
    defaults=family_defaults(
        model={"DROPPATH": 0.1},
        train={
            "NUM_EPOCHS": 1000,
            "WEIGHT_DECAY": 0.025,
            "END_LR": 1e-5,
            "LINEAR_SCALED_LR": None,
            "MODEL_EMA": True,
            "MIXUP_ALPHA": 0.2,
            "RANDOM_ERASE_PROB": 0.2,
            "DISTILLATION_TYPE": "hard",
        },
    ),
    renames=_renames,
    dropped=[r".*\.attn_bias_idxs"],
)
