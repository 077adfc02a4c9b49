"""Models in stages, with fewer and wider tokens in each: Swin, PVT v2, PiT, LeViT, CoaT, VOLO, ConvNeXt, PoolFormer; of
timm's ByobNet HaloNet, MobileOne, MobileViT.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from math import lcm
from typing import Annotated, Literal

from pydantic import Field

from configs.schema.families.family import (
    DROPOUTS,
    MOBILE_TRAINING,
    QKV_BIAS,
    Family,
    Renames,
    arguments,
    per_stage,
    renames_in,
)
from configs.schema.model import Model
from configs.schema.section import (
    FROM_LIST,
    Bools,
    Count,
    Counts,
    Floats,
    Ints,
    Positive,
    Section,
    option,
    optional,
    switch,
)


class Swin(Model):
    """Swin Transformer (Liu et al., 2021)."""

    size_multiple = "patch_size"
    type: str = "swin"
    patch_size: Count = option(4, "height and width of a patch, pixels")
    window_size: Count = option(7, "height and width of an attention window, patches")
    embed_dim: Count = option(96, "channels of a token in the first stage; they double in each stage")
    num_heads: Counts = option((3, 6, 12, 24), "attention heads of each stage; as many as STAGE_DEPTHS")
    stage_depths: Counts = option((2, 2, 6, 2), "blocks of each stage", min_length=1)
    mlp_ratio: Positive = option(4.0, "hidden channels of the MLP / channels")
    qkv_bias: bool = QKV_BIAS

    def _problems(self) -> Iterator[str]:
        stages = len(self.stage_depths)
        heads_given = len(self.num_heads)
        if stages != heads_given:
            yield f"NUM_HEADS has {heads_given} values, STAGE_DEPTHS {stages}; give one per stage"
        for stage, heads in enumerate(self.num_heads):
            dim = self.embed_dim * 2**stage
            if dim % heads:
                yield f"NUM_HEADS of stage {stage + 1} is {heads}, no divisor of {dim}"

    family = Family(
        timm="swin_tiny_patch4_window7_224",
        arguments=arguments(
            "img_size patch_size window_size embed_dim num_heads mlp_ratio qkv_bias",
            depths="stage_depths",
            drop_path_rate="droppath",  # also 0: timm's default is 0.1
            dropout="proj_drop_rate",
        ),
        data={"CROP_PCT": 0.9},
        droppath=0.1,
        train={"WARMUP_EPOCHS": 20, "WARMUP_START_LR": 5e-7, "END_LR": 5e-6, "GRAD_CLIP": 5.0},
        renames=r"""
^patch_embedding\.patch_embed\. patch_embed.proj.
^patch_embedding\.norm\. patch_embed.norm.
^stages\.(\d+)\.downsample\. layers.{1+1}.downsample.
^stages\. layers.
^fc\. head.fc.
""",
        dropped=[r".*\.relative_position_index", r".*\.attn_mask"],
    )


class PVTv2(Model):
    """PVT v2 (Wang et al., 2021): spatially reduced attention, convolutions in the patch embeddings and MLPs."""

    type: str = "pvtv2"
    embed_dim: Counts = per_stage((32, 64, 160, 256), "channels of each stage")
    num_heads: Counts = per_stage((1, 2, 5, 8), "attention heads of each stage")
    stage_depth: Counts = per_stage((2, 2, 2, 2), "blocks of each stage")
    qkv_bias: bool = QKV_BIAS
    mlp_ratio: Floats = per_stage((8.0, 8.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each stage")
    sr_ratio: Counts = per_stage((8, 4, 2, 1), "keys and values: side of the map / side after the reduction")
    linear: bool | None = optional("keys and values: always pooled to 7x7 (PVT v2 Linear); null: false")

    family = Family(
        timm="pvt_v2_b0",
        arguments=arguments(
            "num_heads qkv_bias linear",
            embed_dims="embed_dim",
            depths="stage_depth",
            mlp_ratios="mlp_ratio",
            sr_ratios="sr_ratio",
            dropout="proj_drop_rate",
        ),
        droppath=0.1,
        train={"END_LR": 1e-5},
        renames=r"""
^patch_embedding1\.patch_embed\. patch_embed.proj.
^patch_embedding1\.norm\. patch_embed.norm.
^patch_embedding(\d)\.patch_embed\. stages.{1-1}.downsample.proj.
^patch_embedding(\d)\.norm\. stages.{1-1}.downsample.norm.
^block(\d)\. stages.{1-1}.blocks.
^norm(\d)\. stages.{1-1}.norm.
\.dwconv\.dwconv\. .dwconv.
""",
        norm_eps={r"(.*\.)?norm[12]?": 1e-6},
    )


class PiT(Model):
    """PiT (Heo et al., 2021): a transformer with pooling between its stages; a second head if it is distilled."""

    type: str = "pit"
    patch_size: Count = option(14, "height and width of a patch, pixels")
    stride: Count = option(7, "distance between patches, pixels; less than PATCH_SIZE: they overlap")
    base_dims: Counts = per_stage((64, 64, 64), "channels of a head in each stage")
    num_heads: Counts = per_stage((4, 8, 16), "attention heads of each stage")
    depth: Counts = per_stage((3, 6, 4), "blocks of each stage")
    mlp_ratio: Positive = option(4.0, "hidden channels of the MLP / channels")
    distilled: bool = switch("a distillation token and head; default: DISTILLATION_TYPE is not none")

    family = Family(
        timm=lambda model: "pit_ti_distilled_224" if model.distilled else "pit_ti_224",
        arguments=arguments(
            "img_size patch_size stride base_dims depth mlp_ratio", heads="num_heads", dropout=DROPOUTS
        ),
        droppath=0.1,
        train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996},
        renames=r"^pools\.(\d+)\. transformers.{1+1}.pool.",
    )


def _levit_renames(model: "LeViT") -> Renames:
    modules = []
    for stage, depth in enumerate(model.depth):
        if stage:
            modules.append(f"stages.{stage}.downsample.{{}}")
        modules += [f"stages.{stage}.blocks.{block}.{{}}" for block in range(depth)]

    def block(match: re.Match[str]) -> str:
        """PaddleViT numbers all blocks and downsamplings together."""
        index = int(match[1])
        part = match[2]
        if index >= len(modules):
            return match[0]
        is_downsample = ".downsample." in modules[index]
        return modules[index].format("attn_downsample" if is_downsample and part == "attn" else part)

    return {
        r"^blocks\.(\d+)\.(attn|mlp)\b": block,
        **renames_in(r"""
^patch_embed\.0\. stem.conv1.
^patch_embed\.2\. stem.conv2.
^patch_embed\.4\. stem.conv3.
^patch_embed\.6\. stem.conv4.
^(stem\.conv\d)\.conv\. \1.linear.
\.norm\. .bn.
\.attn_biases$ .attention_biases
\.(proj|q)\.1\. .\1.ln.
"""),
    }


_LEVIT_TRAINING = {
    "NUM_EPOCHS": 1000, "WEIGHT_DECAY": 0.025, "END_LR": 1e-5, "LINEAR_SCALED_LR": None, "MODEL_EMA": True,
    "MIXUP_ALPHA": 0.2, "RANDOM_ERASE_PROB": 0.2, "DISTILLATION_TYPE": "hard",
}  # fmt: skip


class LeViT(Model):
    """LeViT (Graham et al., 2021): batch norm, attention with learned biases, a second head if it is distilled."""

    size_multiple = 16
    type: str = "levit"
    distilled: bool = option(True, "a distillation head; default: DISTILLATION_TYPE is not none")
    embed_dim: Counts = per_stage((128, 256, 384), "channels of each stage; the first: a multiple of 8")
    key_dim: Count = option(16, "channels of a query and key in a head")
    num_heads: Counts = per_stage((4, 6, 8), "attention heads of each stage")
    depth: Counts = per_stage((2, 3, 4), "blocks of each stage")
    attn_ratio: Positive = option(2, "channels of a value / KEY_DIM")

    family = Family(
        timm="levit_128s",
        arguments=arguments("distilled img_size embed_dim key_dim depth num_heads attn_ratio"),
        droppath=0.1,
        train=_LEVIT_TRAINING,
        renames=_levit_renames,
        dropped=[r".*\.attn_bias_idxs"],
    )


class CoaT(Model):
    """CoaT and CoaT-Lite (Xu et al., 2021)."""

    size_multiple = 32
    type: str = "coat"
    embed_dims: Counts = per_stage((152, 152, 152, 152), "channels of each scale; multiples of 8")
    serial_depths: Counts = per_stage((2, 2, 2, 2), "serial blocks of each scale")
    parallel_depth: int = option(6, "blocks that combine the last three scales; 0: CoaT-Lite", ge=0)
    mlp_ratios: Floats = per_stage((4.0, 4.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each scale")
    qkv_bias: bool = QKV_BIAS

    family = Family(
        arguments=arguments(
            "img_size embed_dims serial_depths parallel_depth mlp_ratios qkv_bias", dropout="proj_drop_rate"
        ),
        train={"WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "END_LR": 1e-5, "MODEL_EMA": True},
        renames=r"""
^(patch_embed|cls_token|cpe|crpe)s\.(\d) \1{2+1}
^(patch_embed\d)\.patch_embed\. \1.proj.
^serial_blocks\.(\d)\. serial_blocks{1+1}.
""",
    )


class CoaTLite(CoaT):
    type: str = "coat_lite"


class VOLOTrans(Section):
    layers: Counts = per_stage((12, 12, 20, 4), "blocks of each stage")
    embed_dims: Counts = per_stage((384, 768, 768, 768), "channels of each stage")
    num_heads: Counts = per_stage((12, 16, 16, 16), "attention heads of each stage")
    mlp_ratios: Floats = per_stage((4, 4, 4, 4), "hidden channels of the MLP / channels, of each stage")
    downsamples: Bools = per_stage((True, False, False, False), "halve height and width after the stage")
    outlook_attention: Bools = per_stage((True, False, False, False), "outlook attention in the stage")
    qkv_bias: bool = switch("bias in the query, key and value projections")


class VOLO(Model):
    """VOLO (Yuan et al., 2021): outlook attention, then self-attention, then class attention; an auxiliary head."""

    size_multiple = 16  # patches of 8 pixels, downsampled once
    type: str = "volo"
    stem_hidden_dim: Count = option(128, "channels of the convolutions of the patch embedding")
    trans: VOLOTrans = VOLOTrans()

    family = Family(
        arguments=arguments(
            "img_size stem_hidden_dim trans.layers trans.num_heads trans.embed_dims trans.downsamples",
            "trans.outlook_attention trans.qkv_bias",
            mlp_ratio="trans.mlp_ratios",
            dropout="pos_drop_rate",
        ),
        train={"WARMUP_EPOCHS": 3, "BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 128},
        renames=r"""
^patch_embed\.stem\. patch_embed.conv.
^model\. network.
^post_model\. post_network.
""",
    )


class ConvNeXt(Model):
    """ConvNeXt (Liu et al., 2022)."""

    type: str = "convnext"
    patch_size: Count = option(4, "height and width of a patch, pixels")
    depths: Counts = per_stage((3, 3, 9, 3), "blocks of each of the 4 stages")
    dims: Counts = per_stage((96, 192, 384, 768), "channels of each stage")

    family = Family(
        timm="convnext_tiny",
        arguments=arguments("depths dims patch_size"),
        train={"WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "END_LR": 1e-5, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9999},
    )


class PoolFormer(Model):
    """PoolFormer (Yu et al., 2022): average pooling in place of attention."""

    type: str = "poolformer"
    layers: Counts = per_stage((2, 2, 6, 2), "blocks of each stage")
    embed_dims: Counts = per_stage((64, 128, 320, 512), "channels of each stage")
    layer_scale_init_value: Positive = option(1e-5, "initial value of the layer scale")

    def _problems(self) -> Iterator[str]:
        for one, other in pairwise(self.embed_dims):
            if one == other:
                yield "EMBED_DIMS has two equal values in a row: timm then does not downsample; change one"

    family = Family(
        arguments=arguments(depths="layers", dims="embed_dims", layer_scale_init_values="layer_scale_init_value"),
        train={"BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 1024},
        renames=r"""
^patch_embed\.proj\. stem.conv.
^network\.1\.proj\. stages.1.downsample.conv.
^network\.3\.proj\. stages.2.downsample.conv.
^network\.5\.proj\. stages.3.downsample.conv.
^network\.0\. stages.0.blocks.
^network\.2\. stages.1.blocks.
^network\.4\. stages.2.blocks.
^network\.6\. stages.3.blocks.
\.layer_scale_(\d)$ .layer_scale\1.scale
^norm\. head.norm.
^head\.(weight|bias)$ head.fc.\1
""",
    )


Blocks = Annotated[
    tuple[Literal["bottle", "attn"], ...],
    Field(min_length=1, description="the blocks of a stage: bottle (convolution) or attn (attention)"),
    FROM_LIST,
]
_STEM_WIDTH = 64
_STEM_STRIDE = 4


_HALONET_TRAINING = {
    "NUM_EPOCHS": 150, "WARMUP_EPOCHS": 3, "WEIGHT_DECAY": 8e-5, "BASE_LR": 0.1, "WARMUP_START_LR": 2e-4,
    "END_LR": 2e-4, "LINEAR_SCALED_LR": 128,
}  # fmt: skip


class HaloNet(Model):
    """HaloNet (Vaswani et al., 2021): attention in blocks with a halo, in place of convolutions of a ResNet."""

    type: str = "halo"
    act: Literal["relu", "silu"] | None = optional("activation function; must be given")
    stage1_block: Blocks = ("bottle",) * 3
    stage2_block: Blocks = ("bottle", "bottle", "bottle", "attn")
    stage3_block: Blocks = ("bottle", "attn") * 3
    stage4_block: Blocks = ("bottle", "attn", "bottle")
    channel: Counts = per_stage((64, 256, 512, 1024, 2048), "channels of the stem (64) and of each stage")
    num_head: Ints = per_stage((0, 4, 8, 8), "attention heads of each stage; 0 in a stage without attention")
    stride: Counts = per_stage((1, 2, 2, 2), "stride of each stage: 1 or 2; 1 in the first")
    depth: Counts = per_stage((3, 4, 6, 3), "blocks of each stage: the lengths of STAGE1_BLOCK ... STAGE4_BLOCK")
    block_size: Count = option(8, "height and width of a block of queries, pixels of the feature map")
    halo_size: Count = option(3, "pixels around a block whose keys and values it uses")
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
        is_wide = self.channel[0] == _STEM_WIDTH and not any(width % 32 for width in self.channel)
        if self.act is None:
            yield "ACT is not given; set it to relu or silu (PaddleViT then has no activation functions)"
        if not is_wide:
            yield "CHANNEL must begin with 64, and all values must be multiples of 32"
        if self.depth != tuple(map(len, self.stages)):
            yield f"DEPTH {list(self.depth)} must have the lengths of STAGE1_BLOCK ... STAGE4_BLOCK"
        for before, blocks in zip(self.channel, self.stages, strict=False):
            if blocks[0] == "attn" and self.hidden_channel not in (None, before):
                yield f"HIDDEN_CHANNEL must be {before}, the channels before a stage that begins with attn"

    @property
    def image_size_multiple(self) -> int:
        """The attention blocks of each stage need whole blocks of queries."""
        multiple = 1
        stride = _STEM_STRIDE
        for blocks, factor in zip(self.stages, self.stride, strict=True):
            strides = [stride, stride * factor]  # before the first block of the stage, and after it
            used = [strides[index > 0] for index, block in enumerate(blocks) if block == "attn"]
            multiple = lcm(multiple, *(side * self.block_size for side in used))
            stride = strides[1]
        return multiple

    family = Family(
        arguments=arguments(
            "stages widths block_size halo_size", strides="stride", num_heads="num_head", activation="act"
        ),
        data={"IMAGE_SIZE": 256, "CROP_PCT": 0.95},
        train=_HALONET_TRAINING,
        renames=r"""
^stage(\d)\.blocks\. stages.{1-1}.
\.creat_shortcut\. .shortcut.
\.pos_embed\.rel_(height|width)$ .pos_embed.\1_rel
\.post_attn\.bn\. .post_attn.
^classifier\.1\. head.fc.
""",
    )


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
    stage = int(match[1])
    block = int(match[2])
    second, part = _PARTS[match[3]]
    return f"stages.{stage - 1}.{2 * block + second}.{part}." if stage else f"stem.{part}."


class MobileOne(Model):
    """MobileOne (Vasu et al., 2022), with the parallel branches of training."""

    type: str = "mobileone"
    num_blocks: Counts = per_stage((1, 2, 8, 10, 1), "blocks of each of the 5 stages; 1 in the first")
    channels: Counts = per_stage((64, 64, 128, 256, 512), "channels of each stage, before EXPANSIONS")
    strides: Counts = per_stage((2, 2, 2, 2, 2), "stride of each stage: 1 or 2; 2 in the first")
    expansions: Floats = per_stage((0.75, 0.75, 1.0, 1.0, 2.0), "factors of CHANNELS")
    num_branches: Counts = per_stage((4, 4, 4, 4, 4), "parallel branches of each stage; always 1 in the first")
    use_se: bool = switch("squeeze and excitation in the last block and half of the fourth stage")

    def _problems(self) -> Iterator[str]:
        if (self.num_blocks[0], self.strides[0]) != (1, 2):
            yield "NUM_BLOCKS must begin with 1 and STRIDES with 2: timm's stem is one block of stride 2"
        for width in self.widths:
            if width < 8 or width % 8:
                yield f"EXPANSIONS x CHANNELS gives {width} channels; each stage needs a multiple of 8"

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        pairs = zip(self.channels, self.expansions, strict=True)
        return tuple(int(channels * expansion) for channels, expansion in pairs)

    family = Family(
        arguments=arguments("widths strides num_branches use_se", depths="num_blocks"),
        train=MOBILE_TRAINING,
        renames=lambda _: {
            rf"^stages\.(\d+)\.(\d+)\.({'|'.join(_PARTS)})\.": _mobileone_block,
            **renames_in(r"""
\.attn\.reduce\. .attn.fc1.
\.attn\.expand\. .attn.fc2.
\.norm\. .bn.
^fc\. head.fc.
"""),
        },
    )


_MultiplesOf8 = Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], FROM_LIST]


class MobileViT(Model):
    """MobileViT (Mehta and Rastegari, 2021)."""

    size_multiple = 64
    type: str = "mobilevit"
    dims: _MultiplesOf8 = per_stage(
        (16, 32, 48, 48, 48, 64, 80, 96, 384),
        "channels of the stem, of the 7 inverted residuals, and of the last convolution; multiples of 8",
    )
    hidden_dims: _MultiplesOf8 = per_stage((96, 120, 144), "channels of the 3 transformers; multiples of 8")

    family = Family(
        arguments=arguments("dims", transformer_dims="hidden_dims"),
        data={"CROP_PCT": 0.9},
        train=MOBILE_TRAINING,
        renames=r"""
^mv2_block_1\. stages.0.0.
^mv2_block_([234])\. stages.1.{1-2}.
^mv2_block_([567])\. stages.{1-3}.0.
^(stages\.\d\.\d)\.conv\.0\. \1.conv1_1x1.
^(stages\.\d\.\d)\.conv\.1\. \1.conv2_kxk.
^(stages\.\d\.\d)\.conv\.2\. \1.conv3_1x1.conv.
^(stages\.\d\.\d)\.conv\.3\. \1.conv3_1x1.bn.
^mvit_block_(\d)\. stages.{1+1}.1.
^(stages\.\d\.1)\.transformer\.norm\. \1.norm_.
\.transformer\.layers\. .transformer.
\.attn_norm\. .norm1.
\.mlp_norm\. .norm2.
^(stages\.\d\.1)\.conv1\. \1.conv_kxk.
^(stages\.\d\.1)\.conv2\. \1.conv_1x1.
^(stages\.\d\.1)\.conv3\. \1.conv_proj.
^(stages\.\d\.1)\.conv4\. \1.conv_fusion.
^conv3x3\. stem.
^conv1x1\. final_conv.
^linear\. head.fc.
\.norm\. .bn.
\.norm_\. .norm.
""",
        norm_eps={r"stages\.\d\.1\.norm": 1e-6},
    )
