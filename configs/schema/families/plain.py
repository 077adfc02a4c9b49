"""Models whose blocks all have the same size: DeiT, BEiT, CaiT, XCiT, MAE, and CrossViT with two such branches; without
attention: MLP-Mixer, ResMLP, gMLP, ConvMixer.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from configs.schema.data import Data
from configs.schema.families.family import (
    CROP_AND_FLIP,
    DROPOUTS,
    HALF,
    QKV_BIAS,
    Family,
    PlainTransformer,
    Renames,
    arguments,
    per_stage,
    renames_in,
)
from configs.schema.model import Model
from configs.schema.section import FROM_LIST, Count, Counts, Floats, Positive, Section, option, switch
from configs.yaml_io import Values

# timm's arguments have the names of the keys.
_KEYS = "img_size patch_size embed_dim depth num_heads mlp_ratio qkv_bias"
_transformer = partial(arguments, _KEYS, dropout=DROPOUTS)


# The names of PaddleViT's ViT, DeiT and MAE in timm.
# `patch_embedding` until March 2022, `embeddings` in June 2021.
_VIT_RENAMES = r"""
^transformer\.
^(?:patch_embedding|embeddings)\.position_embeddings$ pos_embed
^(?:patch_embedding|embeddings)\.cls_token$ cls_token
^position_embedding$ pos_embed
^class_token$ cls_token
^distill_token$ dist_token
^(?:patch_embedding|embeddings)\.patch_embeddings?\. patch_embed.proj.
^(?:encoder\.)?layers\. blocks.
^head_distill\. head_dist.
\.attn_norm\. .norm1.
\.mlp_norm\. .norm2.
\.attn\.out\. .attn.proj.
^encoder\.encoder_norm\. norm.
^classifier_dist\. head_dist.
^classifier\. head.
"""


class DeiT(PlainTransformer):
    """DeiT (Touvron et al., 2020): ViT with ImageNet's normalization, and a second head if it is distilled."""

    type: str = "deit"
    distilled: bool = option(True, "a distillation token and head; default: DISTILLATION_TYPE is not none")

    family = Family(
        timm=lambda model: "deit_tiny_distilled_patch16_224" if model.distilled else "deit_tiny_patch16_224",
        arguments=_transformer(),
        train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996, "DISTILLATION_TYPE": "hard"},
        renames=_VIT_RENAMES,
    )


_BEIT_TRAINING = {
    "NUM_EPOCHS": 100, "WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "WARMUP_START_LR": 0.0, "END_LR": 1e-6,
    "LAYER_DECAY": 0.65, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9999,
}  # fmt: skip


class BEiT(PlainTransformer):
    """BEiT (Bao et al., 2021), for fine-tuning: relative position bias, layer scale, averaged patches."""

    type: str = "beit"
    use_abs_pos_emb: bool = switch("a learned position embedding")
    use_rel_pos_bias: bool = option(True, "a relative position bias in each block")
    init_values: Positive = option(1e-4, "initial value of the layer scale")

    family = Family(
        timm="beit_base_patch16_224",
        arguments=_transformer("use_abs_pos_emb use_rel_pos_bias init_values"),
        data=HALF,
        droppath=0.1,
        train=_BEIT_TRAINING,
        dropped=[r".*\.relative_position_index"],
    )


class CaiT(PlainTransformer):
    """CaiT (Touvron et al., 2021): talking heads, layer scale, and blocks that update the class token only."""

    type: str = "cait"
    init_values: Positive = option(1e-4, "initial value of the layer scale")
    depth_token_only: Count = option(2, "number of blocks that update the class token only")

    family = Family(
        timm="cait_xxs24_224",
        arguments=_transformer("init_values depth_token_only", mlp_ratio_token_only="mlp_ratio"),
        droppath=0.1,
        train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996},
        renames=r"^patch_embed\.patch_embed\. patch_embed.proj.",
    )


class XCiT(PlainTransformer):
    """XCiT (El-Nouby et al., 2021): attention between channels, local convolutions, class attention at the end."""

    type: str = "xcit"
    patch_size: Literal[8, 16] = option(16, "height and width of a patch, pixels")
    embed_dim: Count = option(128, "channels of a token")
    num_heads: Count = option(4, "attention heads per block")
    eta: Positive = option(1.0, "initial value of the layer scale")
    tokens_norm: bool = switch("norm of all tokens, not of the class token only, in the last blocks")
    cls_attn_layers: Count = option(2, "number of blocks with class attention")
    use_pos: bool = option(True, "a position embedding of sines and cosines")

    family = Family(
        timm="xcit_nano_12_p16_224",
        arguments=_transformer("eta tokens_norm cls_attn_layers", use_pos_embed="use_pos"),
        droppath=0.1,
        train={"END_LR": 1e-5},
        teacher_distils=True,
        renames=r"^pos_embeder\. pos_embed.",
        split={r"(cls_attn_blocks\.\d+\.attn\.)qkv(\..*)": ("q", "k", "v")},
    )


_Stages = Annotated[tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], Field(min_length=1), FROM_LIST]


def _crossvit_arguments(model: "CrossViT", data: Data) -> Values:
    first, second = model.img_size
    # timm truncates the product with img_size
    sizes = {"img_size": first, "img_scale": (1.0, (second + 0.5) / first)}
    return _transformer("multi_conv")(model, data) | sizes


class CrossViT(Model):
    """CrossViT (Chen et al., 2021): two branches with patches of two sizes, which exchange their class tokens."""

    type: str = "crossvit"
    img_size: Counts = per_stage((240, 224), "height and width of each branch's input, to which it is resized")
    patch_size: Counts = per_stage((12, 16), "height and width of a patch of each branch, pixels")
    embed_dim: Counts = per_stage((384, 768), "channels of a token of each branch")
    num_heads: Counts = per_stage((12, 12), "attention heads of each branch")
    depth: _Stages = option(
        ((1, 4, 0), (1, 4, 0), (1, 4, 0)),
        "for each stage: blocks of each branch, and of the exchange (0: one attention without MLP)",
    )
    qkv_bias: bool = QKV_BIAS
    mlp_ratio: Floats = per_stage((4, 4, 1), "hidden channels of the MLP / channels: each branch, the exchange")
    multi_conv: bool = switch("three convolutions as patch embedding")

    def _problems(self) -> Iterator[str]:
        for size, patch in zip(self.img_size, self.patch_size, strict=True):
            if size % patch:
                yield f"IMG_SIZE {size} is not a multiple of its PATCH_SIZE {patch}; change one of them"
        for stage in self.depth:
            if len(stage) != 3:
                yield f"DEPTH {list(stage)} of a stage must have three values: each branch, the exchange"

    family = Family(
        timm="crossvit_tiny_240",
        arguments=_crossvit_arguments,
        droppath=0.1,
        train={"END_LR": 1e-5},
        renames=r"""
^(pos_embed|cls_token)\.(\d)$ \1_\2
\.attn\.out\. .attn.proj.
""",
        norm_eps={r"blocks\.\d+\.revert_projs\.\d+\.0": 1e-5},
    )


class Blocks(Section):
    embed_dim: Count = option(768, "channels of a token")
    depth: Count = option(12, "number of blocks")


class MAEEncoder(Blocks):
    num_heads: Count = option(12, "attention heads per block")


class MAETrans(Section):
    patch_size: Count = option(16, "height and width of a patch, pixels")
    mlp_ratio: Positive = option(4.0, "hidden channels of the MLP / EMBED_DIM")
    qkv_bias: bool = QKV_BIAS
    encoder: MAEEncoder = MAEEncoder()


_MAE_TRAINING = CROP_AND_FLIP | {
    "NUM_EPOCHS": 800, "WARMUP_EPOCHS": 40, "BASE_LR": 1.5e-4, "LINEAR_SCALED_LR": 256,
    "OPTIMIZER.BETAS": (0.9, 0.95), "RAND_AUGMENT_LAYERS": 9, "RAND_AUGMENT_MAGNITUDE": 5,
}  # fmt: skip


class MAE(Model):
    """MAE (He et al., 2021), fine-tuning: ViT with PaddleViT's fixed position embedding."""

    size_multiple = "trans.patch_size"
    type: str = "mae"
    trans: MAETrans = MAETrans()

    family = Family(
        arguments=arguments(
            "img_size trans.patch_size trans.mlp_ratio trans.qkv_bias",
            "trans.encoder.embed_dim trans.encoder.depth trans.encoder.num_heads",
            dropout=DROPOUTS,
        ),
        data={"RANDOM_CROP_SCALE": (0.05, 1.0)},
        train=_MAE_TRAINING,
        renames=_VIT_RENAMES,
        computed=["pos_embed"],
    )


class ResMLPKeys(Blocks):
    patch_size: Count = option(16, "height and width of a patch, pixels")
    mlp_ratio: Positive = option(4.0, "hidden channels of the MLP / EMBED_DIM")


class GatedMLPKeys(Blocks):
    mlp_ratio: Positive = option(6.0, "channels before the gate, which halves them / EMBED_DIM")


_mlp = partial(arguments, "img_size mixer.embed_dim", num_blocks="mixer.depth", dropout="proj_drop_rate")
_MLP_TRAINING = {"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5}


class Mixer(Model):
    """MLP-Mixer (Tolstikhin et al., 2021)."""

    size_multiple = 16
    type: str = "mixer"
    mixer: Blocks = Blocks()

    family = Family(
        arguments=_mlp(),
        data=HALF,
        droppath=0.1,
        train=_MLP_TRAINING,
        renames=r"""
^patch_embed\.patch_embed\. stem.proj.
^mixer_layers\. blocks.
""",
    )


class ResMLP(Model):
    """ResMLP (Touvron et al., 2021)."""

    size_multiple = "mixer.patch_size"
    type: str = "resmlp"
    mixer: ResMLPKeys = ResMLPKeys()

    family = replace(
        Mixer.family,
        arguments=_mlp("mixer.patch_size mixer.mlp_ratio"),
        data={},
    )


class GatedMLP(Model):
    """gMLP (Liu et al., 2021)."""

    size_multiple = 16
    type: str = "gatedmlp"
    mixer: GatedMLPKeys = GatedMLPKeys()

    family = replace(
        Mixer.family, arguments=_mlp("mixer.mlp_ratio"), norm_eps={r"blocks\.\d+\.mlp_channels\.gate\.norm": 1e-6}
    )


class Convolutions(Section):
    dim: Count = option(1536, "channels")
    depth: Count = option(20, "number of blocks")
    kernel_size: Count = option(9, "height and width of the depthwise convolution, patches; odd")
    patch_size: Count = option(7, "height and width of a patch, pixels")
    activation: Literal["GELU", "ReLU"] = option("GELU", "activation function")


def _convmixer_renames(model: "ConvMixer") -> Renames:
    head = model.cnn.depth + 5  # PaddleViT numbers the stem, the blocks, the pooling and the head together
    return {
        rf"^{head}\.": "head.",
        **renames_in(r"""
^([0-2])\. stem.\1.
^(\d+)\. blocks.{1-3}.
"""),
    }


class ConvMixer(Model):
    """ConvMixer (Trockman and Kolter, 2022)."""

    type: str = "convmixer"
    cnn: Convolutions = Convolutions()

    family = Family(
        arguments=arguments("cnn.dim cnn.depth cnn.kernel_size cnn.patch_size cnn.activation"),
        train=_MLP_TRAINING,
        renames=_convmixer_renames,
    )
