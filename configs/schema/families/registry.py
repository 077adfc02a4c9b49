"""The families of MODEL.TYPE: families that timm builds, and families of PaddleViT that timm lacks."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from configs.schema.families.attention_free import CONVMIXER, CONVNEXT, GATED_MLP, MIXER, POOLFORMER, RESMLP
from configs.schema.families.byobnet import HALONET, MOBILEONE, MOBILEVIT
from configs.schema.families.family import Family, TimmModel, TransformersModel, ViT
from configs.schema.families.plain import BEIT, CAIT, CROSSVIT, DEIT, MAE_FINETUNING, XCIT
from configs.schema.families.staged import COAT, COAT_LITE, LEVIT, PIT, PVTV2, SWIN, VOLO_FAMILY
from configs.schema.model import Model

# A new family of PaddleViT's: one entry here, and its keys in a file of this folder (CONTRIBUTING.md).
_FAMILIES = (
    *(BEIT, CAIT, COAT, COAT_LITE, CONVMIXER, CONVNEXT, CROSSVIT, DEIT, GATED_MLP, HALONET, LEVIT, MAE_FINETUNING),
    *(MIXER, MOBILEONE, MOBILEVIT, PIT, POOLFORMER, PVTV2, RESMLP, SWIN, VOLO_FAMILY, XCIT),
)
FAMILIES: dict[str, Family] = {family.type: family for family in _FAMILIES}

MODEL_SECTIONS: dict[str, type[Model]] = {
    "vit": ViT,
    "timm": TimmModel,
    "transformers": TransformersModel,
    **{name: family.keys for name, family in FAMILIES.items()},
}

# MODEL.TYPE of PaddleViT's files that timm has no architecture for -> title, families with similar blocks.
NOT_IN_TIMM = {
    "botnet": ("BoTNet", ("halo",)),
    "convmlp": ("ConvMLP", ("convnext", "mixer")),
    "cswin": ("CSWin Transformer", ("swin", "pvtv2")),
    "cvt": ("CvT", ("pvtv2", "levit")),
    "cyclemlp": ("CycleMLP", ("mixer", "resmlp", "gatedmlp")),
    "ff_only": ("FF Only", ("resmlp", "mixer")),
    "focal": ("Focal Transformer", ("swin", "pvtv2")),
    "hvt": ("HVT", ("pit", "deit")),
    "mobileformer": ("Mobile-Former", ("mobilevit", "levit")),
    "replknet": ("RepLKNet", ("convnext", "convmixer")),
    "repmlp": ("RepMLP", ("mixer", "mobileone")),
    "rest": ("ResT", ("pvtv2", "swin")),
    "rest_v2": ("ResTv2", ("pvtv2", "swin")),
    "shuffle": ("Shuffle Transformer", ("swin", "pvtv2")),
    "t2t-vit": ("T2T-ViT", ("deit", "vit")),
    "topformer": ("TopFormer", ("levit", "mobilevit")),
    "vip": ("ViP", ("mixer", "gatedmlp")),
}


def type_of(section: Any) -> str | None:
    """MODEL.TYPE of a section MODEL in lower case; None if it is no name."""
    if isinstance(section, Model):
        return section.type
    name = section.get("TYPE", "vit") if isinstance(section, dict) else None
    return name.lower() if isinstance(name, str) else None


# The section MODEL, with the keys of the family that TYPE names.
if TYPE_CHECKING:
    AnyModel = Model
else:
    AnyModel = Annotated[
        Union[tuple(Annotated[keys, Tag(name)] for name, keys in MODEL_SECTIONS.items())],  # noqa: UP007  # a list
        Discriminator(type_of),
    ]
