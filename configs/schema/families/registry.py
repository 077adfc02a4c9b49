"""The families of MODEL.TYPE: families that timm builds, and families of PaddleViT that timm lacks."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from configs.schema.families import plain, staged
from configs.schema.families.family import Family, TimmModel, TransformersModel, ViT
from configs.schema.model import Model

_FOUND = [one for module in (plain, staged) for one in vars(module).values() if isinstance(one, Family)]
FAMILIES: dict[str, Family] = {one.type: one for one in sorted(_FOUND, key=lambda family: family.type)}

MODEL_SECTIONS: dict[str, type[Model]] = {
    "vit": ViT,
    "timm": TimmModel,
    "transformers": TransformersModel,
    **{name: family.keys for name, family in FAMILIES.items()},
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
