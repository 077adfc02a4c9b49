"""The flag -model: the architecture of a recipe, or a timm model."""

from pathlib import Path
from typing import Any

from configs.reading.option_layers import OptionLayers
from configs.schema.model import Model
from configs.schema.section import MAX_NAME_CHARS

_RECIPES = Path(__file__).parents[1]
_COMMON = {field.alias for field in Model.model_fields.values()} - {"TYPE", "NAME"}
_OF_THE_RUN = ("NUM_CLASSES", "PRETRAINED", "RESUME")


def set_model(layers: OptionLayers, name: str) -> None:
    """Replaces the architecture: by the MODEL section of the recipe `name`, else by timm's model of this name.

    The number of classes and the weights stay.

    Raises:
        UserError: the recipe cannot be read.
    """
    named = model_sections(name)["MODEL"]
    model = layers.values.get("MODEL")
    if isinstance(model, dict):
        for key in model.keys() - _COMMON:  # of another family: they may not apply to the new one
            del model[key]
        if model.get("PRETRAINED") == "timm" and named.get("TYPE") != "timm":
            del model["PRETRAINED"]  # timm's weights fit timm's models only
    for key, value in named.items():
        layers.add_key(f"MODEL.{key}", value, f"-model {name}")


def model_sections(name: str) -> dict[str, dict[str, Any]]:
    """The section MODEL, without classes and weights, and the section DATA of the recipe `name`.

    If there is no such recipe, MODEL is timm's model of this name, and DATA is empty.

    Raises:
        UserError: the recipe cannot be read.
    """
    file = _RECIPES / f"{name}.yaml"
    if "/" in name or len(name) > MAX_NAME_CHARS or not file.is_file():
        return {"MODEL": {"TYPE": "timm", "NAME": name}, "DATA": {}}
    recipe = OptionLayers()
    recipe.add_recipe(file)
    return {"MODEL": architecture(recipe.values.get("MODEL", {})), "DATA": recipe.values.get("DATA", {})}


def architecture(model: dict[str, Any]) -> dict[str, Any]:
    """The section MODEL without the keys that belong to a run: the number of classes, and paths of weights."""
    return {key: value for key, value in model.items() if key not in _OF_THE_RUN}
