"""MLP-Mixer (Tolstikhin et al., 2021), ResMLP (Touvron et al., 2021), gMLP (Liu et al., 2021): no attention."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from configs.schema.families.family import HALF, Family, arguments, family_defaults
from configs.schema.model import Model
from configs.schema.section import Section


class _Keys(Section):
    patch_size: int = Field(16, ge=1, description="height and width of a patch, pixels")
    embed_dim: int = Field(768, ge=1, description="channels of a token")
    depth: int = Field(12, ge=1, description="number of blocks")


class MixerKeys(_Keys):
    patch_size: Literal[16] = Field(16, description="height and width of a patch, pixels: PaddleViT has no other")


class ResMLPKeys(_Keys):
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / EMBED_DIM")


class GatedMLPKeys(MixerKeys):
    mlp_ratio: float = Field(6.0, gt=0, description="channels before the gate, which halves them / EMBED_DIM")


class _MLPModel(Model):
    mixer: _Keys

    @property
    def image_size_multiple(self) -> int:
        return self.mixer.patch_size


class Mixer(_MLPModel):
    type: Literal["mixer"] = "mixer"
    mixer: MixerKeys = MixerKeys()


class ResMLP(_MLPModel):
    type: Literal["resmlp"] = "resmlp"
    mixer: ResMLPKeys = ResMLPKeys()


class GatedMLP(_MLPModel):
    type: Literal["gatedmlp"] = "gatedmlp"
    mixer: GatedMLPKeys = GatedMLPKeys()


_KEYS = ("img_size", "mixer.patch_size", "mixer.embed_dim")
_TRAIN = {"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5}

MIXER = Family(
    "MLP-Mixer",
    Mixer,
    timm="models.families.mlp:mixer",
    arguments=arguments(*_KEYS, num_blocks="mixer.depth", dropout=["proj_drop_rate"]),
    defaults=family_defaults(data=HALF, model={"DROPPATH": 0.1}, train=_TRAIN),
    renames=[(r"^patch_embed\.patch_embed\.", "stem.proj."), (r"^mixer_layers\.", "blocks.")],
)
RESMLP = replace(
    MIXER,
    title="ResMLP",
    keys=ResMLP,
    timm="models.families.mlp:resmlp",
    arguments=arguments(*_KEYS, "mixer.mlp_ratio", num_blocks="mixer.depth", dropout=["proj_drop_rate"]),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train=_TRAIN),
)
GATED_MLP = replace(
    RESMLP,
    title="gMLP",
    keys=GatedMLP,
    timm="models.families.mlp:gated_mlp",
    defaults=MIXER.defaults,
    norm_eps={r"blocks\.\d+\.mlp_channels\.gate\.norm": 1e-6},
)
