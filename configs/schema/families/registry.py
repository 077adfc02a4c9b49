"""The families of MODEL.TYPE: families that timm builds, and families of PaddleViT that timm lacks."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from configs.schema.families import plain, staged
from configs.schema.families.family import Family, TimmModel, TransformersModel, ViT
from configs.schema.model import Model

_FOUND: list[Any] = [one for module in (plain, staged) for one in vars(module).values() if hasattr(one, "family")]
_SECTIONS = dict(sorted((section.model_fields["type"].default, section) for section in _FOUND))
FAMILIES: dict[str, Family] = {name: section.family for name, section in _SECTIONS.items()}
MODEL_SECTIONS: dict[str, type[Model]]
MODEL_SECTIONS = {"vit": ViT, "timm": TimmModel, "transformers": TransformersModel, **_SECTIONS}


def _type_of(section: Any) -> str | None:
    """MODEL.TYPE of a section MODEL in lower case; None, which is an error of pydantic, if it is no section."""
    if isinstance(section, Model):
        return section.type
    return str(section.get("TYPE", "vit")).lower() if isinstance(section, dict) else None


# The section MODEL, with the keys of the family that TYPE names.
if TYPE_CHECKING:
    AnyModel = Model
else:
    AnyModel = Annotated[
        Union[tuple(Annotated[keys, Tag(name)] for name, keys in MODEL_SECTIONS.items())],  # noqa: UP007  # a list
        Discriminator(_type_of),
    ]
