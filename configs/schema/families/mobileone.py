"""MobileOne (Vasu et al., 2022), with the parallel branches of training."""

import re
from typing import Literal

from pydantic import Field, model_validator

from configs.schema.families.family import MOBILE_TRAINING, Family, arguments, family_defaults, per_stage
from configs.schema.model import Model
from configs.schema.section import Counts, Floats


class MobileOne(Model):
    type: Literal["mobileone"] = "mobileone"
    num_blocks: Counts = per_stage((1, 2, 8, 10, 1), "blocks of each of the 5 stages; 1 in the first")
    channels: Counts = per_stage((64, 64, 128, 256, 512), "channels of each stage, before EXPANSIONS")
    strides: Counts = per_stage((2, 2, 2, 2, 2), "stride of each stage: 1 or 2; 2 in the first")
    expansions: Floats = per_stage((0.75, 0.75, 1.0, 1.0, 2.0), "factors of CHANNELS")
    num_branches: Counts = per_stage((4, 4, 4, 4, 4), "parallel branches of each stage; always 1 in the first")
    deploy: Literal[False] = Field(False, description="fused branches for inference: not available")
    use_se: bool = Field(False, description="squeeze and excitation in the last block and half of the fourth stage")

    @model_validator(mode="after")
    def _check(self) -> "MobileOne":
        if self.num_blocks[0] != 1 or self.strides[0] != 2:
            raise ValueError("NUM_BLOCKS must begin with 1 and STRIDES with 2: timm's stem is one block of stride 2")
        for width in self.widths:
            if width < 8 or width % 8:
                raise ValueError(f"EXPANSIONS x CHANNELS gives {width} channels; each stage needs a multiple of 8")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        pairs = zip(self.channels, self.expansions, strict=True)
        return tuple(int(channels * expansion) for channels, expansion in pairs)


_PARTS = {
    "dw_3x3_blocks": (0, "conv_kxk"),
    "dw_1x1": (0, "conv_scale"),
    "dw_skip": (0, "identity"),
    "dw_se": (0, "attn"),
    "pw_1x1_blocks": (1, "conv_kxk"),
    "pw_skip": (1, "identity"),
    "pw_se": (1, "attn"),
}


def _block(match: re.Match[str]) -> str:
    """A block of PaddleViT's is a depthwise and a pointwise block of timm's; the first stage is timm's stem."""
    stage, block, (second, part) = int(match[1]), int(match[2]), _PARTS[match[3]]
    return f"stages.{stage - 1}.{2 * block + second}.{part}." if stage else f"stem.{part}."


MOBILEONE = Family(
    "MobileOne",
    MobileOne,
    timm="models.families.mobileone:mobileone",
    arguments=arguments("widths", "strides", "num_branches", "use_se", depths="num_blocks"),
    defaults=family_defaults(train=MOBILE_TRAINING),
    renames=[
        (rf"^stages\.(\d+)\.(\d+)\.({'|'.join(_PARTS)})\.", _block),
        (r"\.attn\.reduce\.", ".attn.fc1."),
        (r"\.attn\.expand\.", ".attn.fc2."),
        (r"\.norm\.", ".bn."),
        (r"^fc\.", "head.fc."),
    ],
)
