"""HaloNet (Vaswani et al., 2021): attention in blocks with a halo, in place of convolutions of a ResNet."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, shifted
from configs.schema.families.lists import Counts, check_lengths
from configs.schema.model import Model
from configs.schema.section import Ints, Names

BlockTypes = Annotated[Names, Field(description="the blocks of a stage: bottle (convolution) or attn (attention)")]
STEM_WIDTH, STEM_STRIDE = 64, 4


class HaloNet(Model):
    type: Literal["halo"] = "halo"
    act: Literal["relu", "silu"] | None = Field(None, description="activation function; must be given")
    stage1_block: BlockTypes = ("bottle",) * 3
    stage2_block: BlockTypes = ("bottle", "bottle", "bottle", "attn")
    stage3_block: BlockTypes = ("bottle", "attn") * 3
    stage4_block: BlockTypes = ("bottle", "attn", "bottle")
    channel: Counts = Field((64, 256, 512, 1024, 2048), description="channels of the stem (64) and of each stage")
    num_head: Ints = Field((0, 4, 8, 8), description="attention heads of each stage; 0 in a stage without attention")
    stride: Counts = Field((1, 2, 2, 2), description="stride of each stage: 1 or 2; 1 in the first")
    depth: Counts = Field(
        (3, 4, 6, 3), description="blocks of each stage: the lengths of STAGE1_BLOCK ... STAGE4_BLOCK"
    )
    block_size: int = Field(8, ge=1, description="height and width of a block of queries, pixels of the feature map")
    halo_size: int = Field(3, ge=1, description="pixels around a block whose keys and values it uses")
    hidden_channel: int | None = Field(
        1024, ge=1, description="channels before a stage that begins with attention; null: no stage does"
    )

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The blocks of each stage."""
        return self.stage1_block, self.stage2_block, self.stage3_block, self.stage4_block

    @model_validator(mode="after")
    def _check(self) -> "HaloNet":
        check_lengths(self, "DEPTH", "NUM_HEAD", "STRIDE", length=4)
        check_lengths(self, "CHANNEL", length=5)
        if self.act is None:
            raise ValueError("ACT is not given; set it to relu or silu (PaddleViT then has no activation functions)")
        if self.channel[0] != STEM_WIDTH or any(width % 32 for width in self.channel):
            raise ValueError("CHANNEL must begin with 64, and all values must be multiples of 32")
        if self.stride[0] != 1 or max(self.stride) > 2:
            raise ValueError("STRIDE must be 1 or 2, and 1 in the first stage")
        for number, blocks in enumerate(self.stages, start=1):
            self._check_stage(number, blocks)
        return self

    def _check_stage(self, number: int, blocks: tuple[str, ...]) -> None:
        key = f"STAGE{number}_BLOCK"
        before, width, heads = self.channel[number - 1], self.channel[number], self.num_head[number - 1]
        if not blocks or set(blocks) - {"bottle", "attn"}:
            raise ValueError(f"{key} must be a list of bottle and attn")
        if len(blocks) != self.depth[number - 1]:
            raise ValueError(f"{key} has {len(blocks)} values, DEPTH says {self.depth[number - 1]}")
        if before == width and self.stride[number - 1] == 1:
            raise ValueError(f"CHANNEL {width}: stage {number} has stride 1 and needs another width than before it")
        if "attn" in blocks and (heads < 1 or width // 4 % heads):
            raise ValueError(f"NUM_HEAD of stage {number} is {heads}; attention needs a divisor of {width // 4}")
        if blocks[0] == "attn" and (self.hidden_channel or width) != before:
            raise ValueError(f"HIDDEN_CHANNEL must be {before}, the channels before stage {number}")

    def image_size_problem(self, image_size: int) -> str | None:
        stride = STEM_STRIDE
        for number, blocks in enumerate(self.stages):
            strides = [stride, stride * self.stride[number]]  # before the first block of the stage, and after it
            used = [strides[index > 0] for index, block in enumerate(blocks) if block == "attn"]
            if used and image_size % (side := max(used) * self.block_size):
                return f"is not a multiple of {side}, as the attention blocks of stage {number + 1} need"
            stride = strides[1]
        return None


def _arguments(model: HaloNet, data: Data) -> dict[str, Any]:
    return {
        "stages": model.stages,
        "widths": model.channel[1:],
        "strides": model.stride,
        "num_heads": model.num_head,
        "block_size": model.block_size,
        "halo_size": model.halo_size,
        "activation": model.act,
    }


HALONET = Family(
    "HaloNet",
    HaloNet,
    timm="models.families.halonet:halonet",
    arguments=_arguments,
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
