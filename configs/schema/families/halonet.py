"""HaloNet (Vaswani et al., 2021): attention in blocks with a halo, in place of convolutions of a ResNet."""

from math import lcm
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from configs.schema.families.family import Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts, Ints, as_tuple

Blocks = Annotated[
    tuple[Literal["bottle", "attn"], ...],
    Field(min_length=1, description="the blocks of a stage: bottle (convolution) or attn (attention)"),
    BeforeValidator(as_tuple),
]
STEM_WIDTH, STEM_STRIDE = 64, 4


class HaloNet(Model):
    type: Literal["halo"] = "halo"
    act: Literal["relu", "silu"] | None = Field(None, description="activation function; must be given")
    stage1_block: Blocks = ("bottle",) * 3
    stage2_block: Blocks = ("bottle", "bottle", "bottle", "attn")
    stage3_block: Blocks = ("bottle", "attn") * 3
    stage4_block: Blocks = ("bottle", "attn", "bottle")
    channel: Counts = per_stage((64, 256, 512, 1024, 2048), "channels of the stem (64) and of each stage")
    num_head: Ints = per_stage((0, 4, 8, 8), "attention heads of each stage; 0 in a stage without attention")
    stride: Counts = per_stage((1, 2, 2, 2), "stride of each stage: 1 or 2; 1 in the first")
    depth: Counts = per_stage((3, 4, 6, 3), "blocks of each stage: the lengths of STAGE1_BLOCK ... STAGE4_BLOCK")
    block_size: int = Field(8, ge=1, description="height and width of a block of queries, pixels of the feature map")
    halo_size: int = Field(3, ge=1, description="pixels around a block whose keys and values it uses")
    hidden_channel: int | None = Field(
        1024, ge=1, description="channels before a stage that begins with attention; null: no stage does"
    )

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The blocks of each stage."""
        return self.stage1_block, self.stage2_block, self.stage3_block, self.stage4_block

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return self.channel[1:]

    @model_validator(mode="after")
    def _check(self) -> "HaloNet":
        if self.act is None:
            raise ValueError("ACT is not given; set it to relu or silu (PaddleViT then has no activation functions)")
        if self.channel[0] != STEM_WIDTH or any(width % 32 for width in self.channel):
            raise ValueError("CHANNEL must begin with 64, and all values must be multiples of 32")
        if self.depth != tuple(map(len, self.stages)):
            raise ValueError(f"DEPTH {list(self.depth)} must have the lengths of STAGE1_BLOCK ... STAGE4_BLOCK")
        for before, blocks in zip(self.channel, self.stages, strict=False):
            if blocks[0] == "attn" and self.hidden_channel not in (None, before):
                raise ValueError(f"HIDDEN_CHANNEL must be {before}, the channels before a stage that begins with attn")
        return self

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


HALONET = Family(
    "HaloNet",
    HaloNet,
    timm="models.families.halonet:halonet",
    arguments=arguments(
        *("stages", "widths", "block_size", "halo_size"), strides="stride", num_heads="num_head", activation="act"
    ),
    defaults=family_defaults(
        data={"IMAGE_SIZE": 256, "CROP_PCT": 0.95},
        train={
            "NUM_EPOCHS": 150,
            "WARMUP_EPOCHS": 3,
            "WEIGHT_DECAY": 8e-5,
            "BASE_LR": 0.1,
            "WARMUP_START_LR": 2e-4,
            "END_LR": 2e-4,
            "LINEAR_SCALED_LR": 128,
        },
    ),
    renames=[
        (r"^stage(\d)\.blocks\.", shifted("stages.", ".", by=-1)),
        (r"\.creat_shortcut\.", ".shortcut."),
        (r"\.pos_embed\.rel_(height|width)$", r".pos_embed.\1_rel"),
        (r"\.post_attn\.bn\.", ".post_attn."),
        (r"^classifier\.1\.", "head.fc."),
    ],
)
