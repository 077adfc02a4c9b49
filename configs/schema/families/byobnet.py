"""Models of timm's ByobNet: HaloNet, MobileOne, MobileViT."""

import re
from collections.abc import Iterator
from math import lcm
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from configs.schema.families.family import MOBILE_TRAINING, Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts, Floats, Ints, as_tuple, option

Blocks = Annotated[
    tuple[Literal["bottle", "attn"], ...],
    Field(min_length=1, description="the blocks of a stage: bottle (convolution) or attn (attention)"),
    BeforeValidator(as_tuple),
]
STEM_WIDTH, STEM_STRIDE = 64, 4


class HaloNet(Model):
    """HaloNet (Vaswani et al., 2021): attention in blocks with a halo, in place of convolutions of a ResNet."""

    type: Literal["halo"] = "halo"
    act: Literal["relu", "silu"] | None = option(None, "activation function; must be given")
    stage1_block: Blocks = ("bottle",) * 3
    stage2_block: Blocks = ("bottle", "bottle", "bottle", "attn")
    stage3_block: Blocks = ("bottle", "attn") * 3
    stage4_block: Blocks = ("bottle", "attn", "bottle")
    channel: Counts = per_stage((64, 256, 512, 1024, 2048), "channels of the stem (64) and of each stage")
    num_head: Ints = per_stage((0, 4, 8, 8), "attention heads of each stage; 0 in a stage without attention")
    stride: Counts = per_stage((1, 2, 2, 2), "stride of each stage: 1 or 2; 1 in the first")
    depth: Counts = per_stage((3, 4, 6, 3), "blocks of each stage: the lengths of STAGE1_BLOCK ... STAGE4_BLOCK")
    block_size: int = option(8, "height and width of a block of queries, pixels of the feature map", ge=1)
    halo_size: int = option(3, "pixels around a block whose keys and values it uses", ge=1)
    hidden_channel: int | None = option(1024, "channels before a stage that begins with attention; null: none", ge=1)

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The blocks of each stage."""
        return self.stage1_block, self.stage2_block, self.stage3_block, self.stage4_block

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return self.channel[1:]

    def _problems(self) -> Iterator[str]:
        if self.act is None:
            yield "ACT is not given; set it to relu or silu (PaddleViT then has no activation functions)"
        if self.channel[0] != STEM_WIDTH or any(width % 32 for width in self.channel):
            yield "CHANNEL must begin with 64, and all values must be multiples of 32"
        if self.depth != tuple(map(len, self.stages)):
            yield f"DEPTH {list(self.depth)} must have the lengths of STAGE1_BLOCK ... STAGE4_BLOCK"
        for before, blocks in zip(self.channel, self.stages, strict=False):
            if blocks[0] == "attn" and self.hidden_channel not in (None, before):
                yield f"HIDDEN_CHANNEL must be {before}, the channels before a stage that begins with attn"

    @property
    def image_size_multiple(self) -> int:
        """The attention blocks of each stage need whole blocks of queries."""
        multiple, stride = 1, STEM_STRIDE
        for blocks, factor in zip(self.stages, self.stride, strict=True):
            strides = [stride, stride * factor]  # before the first block of the stage, and after it
            used = [strides[index > 0] for index, block in enumerate(blocks) if block == "attn"]
            multiple = lcm(multiple, *(side * self.block_size for side in used))
            stride = strides[1]
        return multiple


_HALONET_TRAINING = {
    "NUM_EPOCHS": 150, "WARMUP_EPOCHS": 3, "WEIGHT_DECAY": 8e-5, "BASE_LR": 0.1, "WARMUP_START_LR": 2e-4,
    "END_LR": 2e-4, "LINEAR_SCALED_LR": 128,
}  # fmt: skip
HALONET = Family(
    title="HaloNet",
    keys=HaloNet,
    arguments=arguments("stages widths block_size halo_size", strides="stride", num_heads="num_head", activation="act"),
    defaults=family_defaults(data={"IMAGE_SIZE": 256, "CROP_PCT": 0.95}, train=_HALONET_TRAINING),
    renames=[
        (r"^stage(\d)\.blocks\.", shifted("stages.", ".", by=-1)),
        (r"\.creat_shortcut\.", ".shortcut."),
        (r"\.pos_embed\.rel_(height|width)$", r".pos_embed.\1_rel"),
        (r"\.post_attn\.bn\.", ".post_attn."),
        (r"^classifier\.1\.", "head.fc."),
    ],
)


class MobileOne(Model):
    """MobileOne (Vasu et al., 2022), with the parallel branches of training."""

    type: Literal["mobileone"] = "mobileone"
    num_blocks: Counts = per_stage((1, 2, 8, 10, 1), "blocks of each of the 5 stages; 1 in the first")
    channels: Counts = per_stage((64, 64, 128, 256, 512), "channels of each stage, before EXPANSIONS")
    strides: Counts = per_stage((2, 2, 2, 2, 2), "stride of each stage: 1 or 2; 2 in the first")
    expansions: Floats = per_stage((0.75, 0.75, 1.0, 1.0, 2.0), "factors of CHANNELS")
    num_branches: Counts = per_stage((4, 4, 4, 4, 4), "parallel branches of each stage; always 1 in the first")
    use_se: bool = option(False, "squeeze and excitation in the last block and half of the fourth stage")

    def _problems(self) -> Iterator[str]:
        if self.num_blocks[0] != 1 or self.strides[0] != 2:
            yield "NUM_BLOCKS must begin with 1 and STRIDES with 2: timm's stem is one block of stride 2"
        for width in self.widths:
            if width < 8 or width % 8:
                yield f"EXPANSIONS x CHANNELS gives {width} channels; each stage needs a multiple of 8"

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


def _mobileone_block(match: re.Match[str]) -> str:
    """A block of PaddleViT's is a depthwise and a pointwise block of timm's; the first stage is timm's stem."""
    stage, block, (second, part) = int(match[1]), int(match[2]), _PARTS[match[3]]
    return f"stages.{stage - 1}.{2 * block + second}.{part}." if stage else f"stem.{part}."


MOBILEONE = Family(
    title="MobileOne",
    keys=MobileOne,
    arguments=arguments("widths strides num_branches use_se", depths="num_blocks"),
    defaults=family_defaults(train=MOBILE_TRAINING),
    renames=[
        (rf"^stages\.(\d+)\.(\d+)\.({'|'.join(_PARTS)})\.", _mobileone_block),
        (r"\.attn\.reduce\.", ".attn.fc1."),
        (r"\.attn\.expand\.", ".attn.fc2."),
        (r"\.norm\.", ".bn."),
        (r"^fc\.", "head.fc."),
    ],
)


_MultiplesOf8 = Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], BeforeValidator(as_tuple)]


class MobileViT(Model):
    """MobileViT (Mehta and Rastegari, 2021)."""

    size_multiple: ClassVar[int | str] = 64
    type: Literal["mobilevit"] = "mobilevit"
    dims: _MultiplesOf8 = per_stage(
        (16, 32, 48, 48, 48, 64, 80, 96, 384),
        "channels of the stem, of the 7 inverted residuals, and of the last convolution; multiples of 8",
    )
    hidden_dims: _MultiplesOf8 = per_stage((96, 120, 144), "channels of the 3 transformers; multiples of 8")


_RESIDUALS = {"1": "0.0", "2": "1.0", "3": "1.1", "4": "1.2", "5": "2.0", "6": "3.0", "7": "4.0"}
_LAYERS = {"0": "conv1_1x1", "1": "conv2_kxk", "2": "conv3_1x1.conv", "3": "conv3_1x1.bn"}
_CONVOLUTIONS = {"1": "conv_kxk", "2": "conv_1x1", "3": "conv_proj", "4": "conv_fusion"}

MOBILEVIT = Family(
    title="MobileViT",
    keys=MobileViT,
    arguments=arguments("dims", transformer_dims="hidden_dims"),
    defaults=family_defaults(data={"CROP_PCT": 0.9}, train=MOBILE_TRAINING),
    renames=[
        (r"^mv2_block_([1-7])\.conv\.([0-3])\.", lambda match: f"stages.{_RESIDUALS[match[1]]}.{_LAYERS[match[2]]}."),
        (r"^mvit_block_(\d)\.", shifted("stages.", ".1.", by=1)),
        (r"^(stages\.\d\.1)\.transformer\.norm\.", r"\1.norm_."),
        (r"\.transformer\.layers\.", ".transformer."),
        (r"\.attn_norm\.", ".norm1."),
        (r"\.mlp_norm\.", ".norm2."),
        (r"^(stages\.\d\.1)\.conv([1-4])\.", lambda match: f"{match[1]}.{_CONVOLUTIONS[match[2]]}."),
        (r"^conv3x3\.", "stem."),
        (r"^conv1x1\.", "final_conv."),
        (r"^linear\.", "head.fc."),
        (r"\.norm\.", ".bn."),
        (r"\.norm_\.", ".norm."),
    ],
    norm_eps={r"stages\.\d\.1\.norm": 1e-6},
    differs="a batch norm and an activation follow the second convolution of a block, as in PaddleViT",
)
