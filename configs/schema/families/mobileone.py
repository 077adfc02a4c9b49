"""MobileOne (Vasu et al., 2022), with the parallel branches of training."""

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import MOBILE_TRAINING, family_defaults
from configs.schema.families.family import Family
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model
from configs.schema.section import Floats


class MobileOne(Model):
    type: Literal["mobileone"] = "mobileone"
    num_blocks: Counts = Field((1, 2, 8, 10, 1), description="blocks of each of the 5 stages; 1 in the first")
    channels: Counts = Field((64, 64, 128, 256, 512), description="channels of each stage, before EXPANSIONS")
    strides: Counts = Field((2, 2, 2, 2, 2), description="stride of each stage: 1 or 2; 2 in the first")
    expansions: Floats = Field((0.75, 0.75, 1.0, 1.0, 2.0), description="factors of CHANNELS")
    num_branches: Counts = Field((4, 4, 4, 4, 4), description="parallel branches of each stage; always 1 in the first")
    deploy: Literal[False] = Field(False, description="fused branches for inference: not available")
    use_se: bool = Field(False, description="squeeze and excitation in the last block and half of the fourth stage")

    @model_validator(mode="after")
    def _check(self) -> "MobileOne":
        check_lengths(self, "NUM_BLOCKS", "CHANNELS", "STRIDES", "EXPANSIONS", "NUM_BRANCHES", length=5)
        if self.num_blocks[0] != 1:
            raise ValueError(f"NUM_BLOCKS begins with {self.num_blocks[0]}; timm's stem is one block: begin with 1")
        if self.strides[0] != 2 or max(self.strides) > 2:
            raise ValueError("STRIDES must be 1 or 2, and 2 in the first stage")
        for width in self.widths:
            if width < 8 or width % 8:
                raise ValueError(f"EXPANSIONS x CHANNELS gives {width} channels; each stage needs a multiple of 8")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        pairs = zip(self.channels, self.expansions, strict=True)
        return tuple(int(channels * expansion) for channels, expansion in pairs)


def _arguments(model: MobileOne, data: Data) -> dict[str, Any]:
    return {
        "depths": model.num_blocks,
        "widths": model.widths,
        "strides": model.strides,
        "num_branches": model.num_branches,
        "use_se": model.use_se,
    }


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
    arguments=_arguments,
    defaults=family_defaults(
        train=MOBILE_TRAINING,
    ),
    renames=[
        (rf"^stages\.(\d+)\.(\d+)\.({'|'.join(_PARTS)})\.", _block),
        (r"\.attn\.reduce\.", ".attn.fc1."),
        (r"\.attn\.expand\.", ".attn.fc2."),
        (r"\.norm\.", ".bn."),
        (r"^fc\.", "head.fc."),
    ],
)
