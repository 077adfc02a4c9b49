"""Models without attention: MLP-Mixer, ResMLP, gMLP, ConvMixer, ConvNeXt, PoolFormer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

from configs.schema.families.family import HALF, Family, Rename, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts, Section, option


class MixerKeys(Section):
    embed_dim: int = option(768, "channels of a token", ge=1)
    depth: int = option(12, "number of blocks", ge=1)


class ResMLPKeys(MixerKeys):
    patch_size: int = option(16, "height and width of a patch, pixels", ge=1)
    mlp_ratio: float = option(4.0, "hidden channels of the MLP / EMBED_DIM", gt=0)


class GatedMLPKeys(MixerKeys):
    mlp_ratio: float = option(6.0, "channels before the gate, which halves them / EMBED_DIM", gt=0)


class Mixer(Model):
    """MLP-Mixer (Tolstikhin et al., 2021)."""

    size_multiple: ClassVar[int | str] = 16
    type: Literal["mixer"] = "mixer"
    mixer: MixerKeys = MixerKeys()


class ResMLP(Model):
    """ResMLP (Touvron et al., 2021)."""

    size_multiple: ClassVar[int | str] = "mixer.patch_size"
    type: Literal["resmlp"] = "resmlp"
    mixer: ResMLPKeys = ResMLPKeys()


class GatedMLP(Model):
    """gMLP (Liu et al., 2021)."""

    size_multiple: ClassVar[int | str] = 16
    type: Literal["gatedmlp"] = "gatedmlp"
    mixer: GatedMLPKeys = GatedMLPKeys()


_mlp = partial(arguments, "img_size mixer.embed_dim", num_blocks="mixer.depth", dropout="proj_drop_rate")
_MLP_TRAINING = {"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5}

MIXER = Family(
    title="MLP-Mixer",
    keys=Mixer,
    arguments=_mlp(),
    defaults=family_defaults(data=HALF, model={"DROPPATH": 0.1}, train=_MLP_TRAINING),
    renames=[(r"^patch_embed\.patch_embed\.", "stem.proj."), (r"^mixer_layers\.", "blocks.")],
)
RESMLP = replace(
    MIXER,
    title="ResMLP",
    keys=ResMLP,
    arguments=_mlp("mixer.patch_size mixer.mlp_ratio"),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train=_MLP_TRAINING),
)
GATED_MLP = replace(
    MIXER,
    title="gMLP",
    keys=GatedMLP,
    arguments=_mlp("mixer.mlp_ratio"),
    norm_eps={r"blocks\.\d+\.mlp_channels\.gate\.norm": 1e-6},
)


class Convolutions(Section):
    dim: int = option(1536, "channels", ge=1)
    depth: int = option(20, "number of blocks", ge=1)
    kernel_size: int = option(9, "height and width of the depthwise convolution, patches; odd", ge=1)
    patch_size: int = option(7, "height and width of a patch, pixels", ge=1)
    activation: Literal["GELU", "ReLU"] = option("GELU", "activation function")


class ConvMixer(Model):
    """ConvMixer (Trockman and Kolter, 2022)."""

    type: Literal["convmixer"] = "convmixer"
    cnn: Convolutions = Convolutions()


def _convmixer_renames(model: ConvMixer) -> Sequence[Rename]:
    head = model.cnn.depth + 5  # PaddleViT numbers the stem, the blocks, the pooling and the head together
    return [
        (rf"^{head}\.", "head."),
        (r"^([0-2])\.", r"stem.\1."),
        (r"^(\d+)\.", shifted("blocks.", ".", by=-3)),
    ]


CONVMIXER = Family(
    title="ConvMixer",
    keys=ConvMixer,
    arguments=arguments("cnn.dim cnn.depth cnn.kernel_size cnn.patch_size cnn.activation"),
    defaults=family_defaults(train=_MLP_TRAINING),
    renames=_convmixer_renames,
)


class ConvNeXt(Model):
    """ConvNeXt (Liu et al., 2022)."""

    type: Literal["convnext"] = "convnext"
    patch_size: int = option(4, "height and width of a patch, pixels", ge=1)
    depths: Counts = per_stage((3, 3, 9, 3), "blocks of each of the 4 stages")
    dims: Counts = per_stage((96, 192, 384, 768), "channels of each stage")


CONVNEXT = Family(
    title="ConvNeXt",
    keys=ConvNeXt,
    timm="convnext_tiny",
    arguments=arguments("depths dims patch_size"),
    defaults=family_defaults(
        train={"WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "END_LR": 1e-5, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9999}
    ),
)


class PoolFormer(Model):
    """PoolFormer (Yu et al., 2022): average pooling in place of attention."""

    type: Literal["poolformer"] = "poolformer"
    layers: Counts = per_stage((2, 2, 6, 2), "blocks of each stage")
    embed_dims: Counts = per_stage((64, 128, 320, 512), "channels of each stage")
    layer_scale_init_value: float = option(1e-5, "initial value of the layer scale", gt=0)

    def _problems(self) -> Iterator[str]:
        if any(one == other for one, other in pairwise(self.embed_dims)):
            yield "EMBED_DIMS has two equal values in a row: timm then does not downsample; change one"


POOLFORMER = Family(
    title="PoolFormer",
    keys=PoolFormer,
    arguments=arguments(depths="layers", dims="embed_dims", layer_scale_init_values="layer_scale_init_value"),
    defaults=family_defaults(train={"BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 1024}),
    renames=[
        (r"^patch_embed\.proj\.", "stem.conv."),
        (r"^network\.(\d+)\.proj\.", lambda match: f"stages.{(int(match[1]) + 1) // 2}.downsample.conv."),
        (r"^network\.(\d+)\.(\d+)\.", lambda match: f"stages.{int(match[1]) // 2}.blocks.{match[2]}."),
        (r"\.layer_scale_(\d)$", r".layer_scale\1.scale"),
        (r"^norm\.", "head.norm."),
        (r"^head\.(weight|bias)$", r"head.fc.\1"),
    ],
    differs="a group norm before the pooling, as in PaddleViT, in place of a layer norm after it",
)
