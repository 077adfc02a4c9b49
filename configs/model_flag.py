"""The flag -model: the architecture of a recipe, or a timm model."""

from pathlib import Path
from typing import Any

from configs.layers import OptionLayers
from configs.schema.config import MAX_NAME_CHARS
from configs.schema.model import VIT_KEYS

_RECIPES = Path(__file__).parent
# Keys of another model: a recipe may have written them before, and they may not apply to the new one.
_ARCHITECTURE = ("TYPE", "NAME", *VIT_KEYS)
_OF_THE_RUN = ("NUM_CLASSES", "PRETRAINED", "RESUME")


def set_model(layers: OptionLayers, name: str) -> None:
    """Replaces the architecture: by the MODEL section of the recipe `name`, else by timm's model of this name.

    The number of classes and the weights stay.

    Raises:
        UserError: the recipe cannot be read.
    """
    model = layers.values.get("MODEL")
    if isinstance(model, dict):
        for key in _ARCHITECTURE:
            model.pop(key, None)
        if model.get("PRETRAINED") == "timm" and _section(name).get("TYPE") != "timm":
            del model["PRETRAINED"]  # timm's weights are those of timm's models
    for key, value in _section(name).items():
        layers.add_key(f"MODEL.{key}", value, f"-model {name}")


def _section(name: str) -> dict[str, Any]:
    file = _RECIPES / f"{name}.yaml"
    if "/" in name or len(name) > MAX_NAME_CHARS or not file.is_file():
        return {"TYPE": "timm", "NAME": name}
    recipe = OptionLayers()
    recipe.add_recipe(file)
    section = recipe.values.get("MODEL", {})
    return {key: value for key, value in section.items() if key not in _OF_THE_RUN}
