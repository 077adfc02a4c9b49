"""Transformers in stages, with fewer and wider tokens in each: Swin, PVT v2, PiT, LeViT, CoaT, VOLO."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from configs.schema.families.family import DROPOUTS, Family, Rename, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Bools, Counts, Floats, Section, option


class Swin(Model):
    """Swin Transformer (Liu et al., 2021)."""

    size_multiple: ClassVar[int | str] = "patch_size"
    type: Literal["swin"] = "swin"
    patch_size: int = option(4, "height and width of a patch, pixels", ge=1)
    window_size: int = option(7, "height and width of an attention window, patches", ge=1)
    embed_dim: int = option(96, "channels of a token in the first stage; they double in each stage", ge=1)
    num_heads: Counts = option((3, 6, 12, 24), "attention heads of each stage; as many as STAGE_DEPTHS")
    stage_depths: Counts = option((2, 2, 6, 2), "blocks of each stage", min_length=1)
    mlp_ratio: float = option(4.0, "hidden channels of the MLP / channels", gt=0)
    qkv_bias: bool = option(True, "bias in the query, key and value projections")

    def _problems(self) -> Iterator[str]:
        stages, heads_given = len(self.stage_depths), len(self.num_heads)
        if stages != heads_given:
            yield f"NUM_HEADS has {heads_given} values, STAGE_DEPTHS {stages}; give one per stage"
        for stage, heads in enumerate(self.num_heads):
            if self.embed_dim * 2**stage % heads:
                yield f"NUM_HEADS of stage {stage + 1} is {heads}, no divisor of {self.embed_dim * 2**stage}"


SWIN = Family(
    title="Swin Transformer",
    keys=Swin,
    timm="swin_tiny_patch4_window7_224",
    arguments=arguments(
        "img_size patch_size window_size embed_dim num_heads mlp_ratio qkv_bias",
        depths="stage_depths",
        drop_path_rate="droppath",  # also 0: timm's default is 0.1
        dropout="proj_drop_rate",
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


class PVTv2(Model):
    """PVT v2 (Wang et al., 2021): spatially reduced attention, convolutions in the patch embeddings and MLPs."""

    type: Literal["pvtv2"] = "pvtv2"
    embed_dim: Counts = per_stage((32, 64, 160, 256), "channels of each stage")
    num_heads: Counts = per_stage((1, 2, 5, 8), "attention heads of each stage")
    stage_depth: Counts = per_stage((2, 2, 2, 2), "blocks of each stage")
    qkv_bias: bool = option(True, "bias in the query, key and value projections")
    mlp_ratio: Floats = per_stage((8.0, 8.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each stage")
    sr_ratio: Counts = per_stage((8, 4, 2, 1), "keys and values: side of the map / side after the reduction")
    linear: bool | None = option(None, "keys and values: always pooled to 7x7 (PVT v2 Linear); null: false")


PVTV2 = Family(
    title="PVT v2",
    keys=PVTv2,
    timm="pvt_v2_b0",
    arguments=arguments(
        "num_heads qkv_bias linear",
        embed_dims="embed_dim",
        depths="stage_depth",
        mlp_ratios="mlp_ratio",
        sr_ratios="sr_ratio",
        dropout="proj_drop_rate",
    ),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    renames=[
        (r"^patch_embedding1\.patch_embed\.", "patch_embed.proj."),
        (r"^patch_embedding1\.norm\.", "patch_embed.norm."),
        (r"^patch_embedding(\d)\.patch_embed\.", shifted("stages.", ".downsample.proj.", by=-1)),
        (r"^patch_embedding(\d)\.norm\.", shifted("stages.", ".downsample.norm.", by=-1)),
        (r"^block(\d)\.", shifted("stages.", ".blocks.", by=-1)),
        (r"^norm(\d)\.", shifted("stages.", ".norm.", by=-1)),
        (r"\.dwconv\.dwconv\.", ".dwconv."),
    ],
    norm_eps={r"(.*\.)?norm[12]?": 1e-6},
)


class PiT(Model):
    """PiT (Heo et al., 2021): a transformer with pooling between its stages; a second head if it is distilled."""

    type: Literal["pit"] = "pit"
    patch_size: int = option(14, "height and width of a patch, pixels", ge=1)
    stride: int = option(7, "distance between patches, pixels; less than PATCH_SIZE: they overlap", ge=1)
    base_dims: Counts = per_stage((64, 64, 64), "channels of a head in each stage")
    num_heads: Counts = per_stage((4, 8, 16), "attention heads of each stage")
    depth: Counts = per_stage((3, 6, 4), "blocks of each stage")
    mlp_ratio: float = option(4.0, "hidden channels of the MLP / channels", gt=0)
    distilled: bool = option(False, "a distillation token and head; default: DISTILLATION_TYPE is not none")


PIT = Family(
    title="PiT",
    keys=PiT,
    timm=lambda model: "pit_ti_distilled_224" if model.distilled else "pit_ti_224",
    arguments=arguments("img_size patch_size stride base_dims depth mlp_ratio", heads="num_heads", dropout=DROPOUTS),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996}),
    renames=[(r"^pools\.(\d+)\.", shifted("transformers.", ".pool.", by=1))],
)


class LeViT(Model):
    """LeViT (Graham et al., 2021): batch norm, attention with learned biases, a second head if it is distilled."""

    size_multiple: ClassVar[int | str] = 16
    type: Literal["levit"] = "levit"
    distilled: bool = option(True, "a distillation head; default: DISTILLATION_TYPE is not none")
    embed_dim: Counts = per_stage((128, 256, 384), "channels of each stage; the first: a multiple of 8")
    key_dim: int = option(16, "channels of a query and key in a head", ge=1)
    num_heads: Counts = per_stage((4, 6, 8), "attention heads of each stage")
    depth: Counts = per_stage((2, 3, 4), "blocks of each stage")
    attn_ratio: float = option(2, "channels of a value / KEY_DIM", gt=0)


def _levit_renames(model: LeViT) -> Sequence[Rename]:
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


_LEVIT_TRAINING = {
    "NUM_EPOCHS": 1000, "WEIGHT_DECAY": 0.025, "END_LR": 1e-5, "LINEAR_SCALED_LR": None, "MODEL_EMA": True,
    "MIXUP_ALPHA": 0.2, "RANDOM_ERASE_PROB": 0.2, "DISTILLATION_TYPE": "hard",
}  # fmt: skip
LEVIT = Family(
    title="LeViT",
    keys=LeViT,
    timm="levit_128s",
    arguments=arguments("distilled img_size embed_dim key_dim depth num_heads attn_ratio"),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train=_LEVIT_TRAINING),
    renames=_levit_renames,
    dropped=[r".*\.attn_bias_idxs"],
)


class CoaTKeys(Model):
    """CoaT and CoaT-Lite (Xu et al., 2021)."""

    size_multiple: ClassVar[int | str] = 32
    embed_dims: Counts = per_stage((152, 152, 152, 152), "channels of each scale; multiples of 8")
    serial_depths: Counts = per_stage((2, 2, 2, 2), "serial blocks of each scale")
    parallel_depth: int = option(6, "blocks that combine the last three scales; 0: CoaT-Lite", ge=0)
    mlp_ratios: Floats = per_stage((4.0, 4.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each scale")
    qkv_bias: bool = option(True, "bias in the query, key and value projections")


class CoaT(CoaTKeys):
    type: Literal["coat"] = "coat"


class CoaTLite(CoaTKeys):
    type: Literal["coat_lite"] = "coat_lite"


COAT = Family(
    title="CoaT",
    keys=CoaT,
    arguments=arguments(
        "img_size embed_dims serial_depths parallel_depth mlp_ratios qkv_bias", dropout="proj_drop_rate"
    ),
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


class VOLOTrans(Section):
    layers: Counts = per_stage((12, 12, 20, 4), "blocks of each stage")
    embed_dims: Counts = per_stage((384, 768, 768, 768), "channels of each stage")
    num_heads: Counts = per_stage((12, 16, 16, 16), "attention heads of each stage")
    mlp_ratios: Floats = per_stage((4, 4, 4, 4), "hidden channels of the MLP / channels, of each stage")
    downsamples: Bools = per_stage((True, False, False, False), "halve height and width after the stage")
    outlook_attention: Bools = per_stage((True, False, False, False), "outlook attention in the stage")
    qkv_bias: bool = option(False, "bias in the query, key and value projections")


class VOLO(Model):
    """VOLO (Yuan et al., 2021): outlook attention, then self-attention, then class attention; an auxiliary head."""

    size_multiple: ClassVar[int | str] = 16  # patches of 8 pixels, downsampled once
    type: Literal["volo"] = "volo"
    stem_hidden_dim: int = option(128, "channels of the convolutions of the patch embedding", ge=1)
    trans: VOLOTrans = VOLOTrans()


VOLO_FAMILY = Family(
    title="VOLO",
    keys=VOLO,
    arguments=arguments(
        "img_size stem_hidden_dim trans.layers trans.num_heads trans.embed_dims trans.downsamples",
        "trans.outlook_attention trans.qkv_bias",
        mlp_ratio="trans.mlp_ratios",
        dropout="pos_drop_rate",
    ),
    defaults=family_defaults(train={"WARMUP_EPOCHS": 3, "BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 128}),
    renames=[
        (r"^patch_embed\.stem\.", "patch_embed.conv."),
        (r"^model\.", "network."),
        (r"^post_model\.", "post_network."),
    ],
    corrections=[
        "the default of TRAIN.END_LR is 1e-5, as in VOLO's own code; PaddleViT's, written 53-4, is 49",
        "MODEL.NUM_CLASSES, DROPPATH, DROPOUT and ATTENTION_DROPOUT have an effect; PaddleViT's VOLO ignores them and "
        "has 1000 classes",
    ],
)
