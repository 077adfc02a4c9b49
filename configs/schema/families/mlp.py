"""MLP-Mixer (Tolstikhin et al., 2021), ResMLP (Touvron et al., 2021), gMLP (Liu et al., 2021): no attention."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family
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


class GatedMLPKeys(_Keys):
    patch_size: Literal[16] = Field(16, description="height and width of a patch, pixels: PaddleViT has no other")
    mlp_ratio: float = Field(6.0, gt=0, description="channels before the gate, which halves them / EMBED_DIM")

    @model_validator(mode="after")
    def _check(self) -> "GatedMLPKeys":
        channels = int(self.embed_dim * self.mlp_ratio)
        if channels < 2 or channels % 2:
            raise ValueError(
                f"MLP_RATIO {self.mlp_ratio:g} x EMBED_DIM {self.embed_dim} gives {channels} channels; "
                "the gate needs an even number"
            )
        return self


class _MLPModel(Model):
    attention_dropout: Literal[0.0] = Field(  # type: ignore[valid-type]  # mypy knows no literal of a float
        0.0, description="not used: the model has no attention"
    )
    mixer: _Keys

    def image_size_problem(self, image_size: int) -> str | None:
        size = self.mixer.patch_size
        return f"is not a multiple of MODEL.MIXER.PATCH_SIZE {size}" if image_size % size else None


class Mixer(_MLPModel):
    type: Literal["mixer"] = "mixer"
    mixer: MixerKeys = MixerKeys()


class ResMLP(_MLPModel):
    type: Literal["resmlp"] = "resmlp"
    mixer: ResMLPKeys = ResMLPKeys()


class GatedMLP(_MLPModel):
    type: Literal["gatedmlp"] = "gatedmlp"
    mixer: GatedMLPKeys = GatedMLPKeys()


def _arguments(model: _MLPModel, data: Data) -> dict[str, Any]:
    keys = model.mixer
    ratio = {"mlp_ratio": keys.mlp_ratio} if isinstance(keys, ResMLPKeys | GatedMLPKeys) else {}
    return {
        **ratio,
        "img_size": data.image_size,
        "patch_size": keys.patch_size,
        "embed_dim": keys.embed_dim,
        "num_blocks": keys.depth,
        "proj_drop_rate": model.dropout,
        "drop_rate": 0.0,
    }


_TRAIN = {"WARMUP_EPOCHS": 20, "WEIGHT_DECAY": 0.1, "BASE_LR": 1e-3, "END_LR": 1e-5}
_SHARED: dict[str, Any] = {
    "arguments": _arguments,
    "renames": [(r"^patch_embed\.patch_embed\.", "stem.proj."), (r"^mixer_layers\.", "blocks.")],
}
_HALF = {"IMAGENET_MEAN": (0.5, 0.5, 0.5), "IMAGENET_STD": (0.5, 0.5, 0.5)}

MIXER = Family(
    "MLP-Mixer",
    Mixer,
    timm="models.families.mlp:mixer",
    defaults=family_defaults(data=_HALF, model={"DROPPATH": 0.1}, train=_TRAIN),
    **_SHARED,
)
RESMLP = Family(
    "ResMLP",
    ResMLP,
    timm="models.families.mlp:resmlp",
    defaults=family_defaults(model={"DROPPATH": 0.1}, train=_TRAIN),
    **_SHARED,
)
GATED_MLP = Family(
    "gMLP",
    GatedMLP,
    timm="models.families.mlp:gated_mlp",
    defaults=family_defaults(data=_HALF, model={"DROPPATH": 0.1}, train=_TRAIN),
    norm_eps={r"blocks\.\d+\.mlp_channels\.gate\.norm": 1e-6},
    **_SHARED,
)
