"""The model family that MODEL.TYPE names, and the flag -model: the architecture of a recipe, or a timm model."""

from pathlib import Path
from typing import Any, NoReturn

from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import shorten
from configs.schema.config import model_type
from configs.schema.families.registry import MODEL_SECTIONS, NOT_IN_TIMM
from configs.schema.families.vit import OWN_KEYS, ViT
from configs.schema.model import Model
from configs.schema.section import MAX_NAME_CHARS
from utils.errors import UserError, did_you_mean
from utils.file_formats.hf_folder import CONFIG, HUB, LOCAL, model_folder, read_config

_RECIPES = Path(__file__).parents[1]
_COMMON = {field.alias for field in Model.model_fields.values()} - {"TYPE", "NAME"}
_OF_THE_RUN = ("NUM_CLASSES", "PRETRAINED", "RESUME", "LORA")


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
    """The section MODEL without the keys that belong to a run: classes, paths of weights, adapters."""
    return {key: value for key, value in model.items() if key not in _OF_THE_RUN}


def model_follows_source(layers: OptionLayers) -> list[str]:
    """MODEL.NAME hf-hub:ORG/NAME or local-dir:FOLDER becomes the model that the source's config.json describes.

    The given MODEL.KWARGS have priority; `MODEL.PRETRAINED: timm` becomes the source. Returns a line for the log. The
    run does not need the source again: its options describe the model.

    Raises:
        UserError: no such folder or repository, or one without a model of timm's.
    """
    model: Any = layers.values.get("MODEL")
    source = model.get("NAME") if model_type(layers.values) == "timm" else None
    if not isinstance(source, str) or not source.startswith((HUB, LOCAL)):
        return []
    folder = model_folder(source, f"-model={LOCAL}FOLDER")
    described = described_model(read_config(folder))
    kwargs, given = described["KWARGS"], model.get("KWARGS")
    model["NAME"], model["KWARGS"] = described["NAME"], kwargs | given if isinstance(given, dict) else given or kwargs
    if model.get("PRETRAINED") == "timm":
        model["PRETRAINED"] = source.removeprefix(LOCAL)
    return [f"Model: {source} is {described['NAME']} with MODEL.KWARGS {kwargs} ({folder / CONFIG})"]


def described_model(config: dict[str, Any]) -> dict[str, Any]:
    """The section MODEL of a config.json that timm wrote."""
    arguments = {"global_pool": config["pretrained_cfg"].get("global_pool")} | config["model_args"]
    kwargs = {key: value for key, value in arguments.items() if value is not None and key not in OWN_KEYS}
    return {"TYPE": "timm", "NAME": config["architecture"], "KWARGS": kwargs, "NUM_CLASSES": config.get("num_classes")}


def read_family(layers: OptionLayers) -> str:
    """The name of the family, a key of `MODEL_SECTIONS`.

    Raises:
        UserError: no such family, or one that timm does not have.
    """
    model = layers.values.get("MODEL")
    if model is not None and not isinstance(model, dict):
        raise UserError(f"{layers.origin(('MODEL',))}MODEL is {shorten(model)}: must be a section of keys")
    name = (model or {}).get("TYPE", ViT.model_fields["type"].default)
    origin = layers.origin(("MODEL", "TYPE"))
    if not isinstance(name, str):
        raise UserError(f"{origin}MODEL.TYPE is {shorten(name)}: give one of {', '.join(MODEL_SECTIONS)}")
    if name.lower() not in MODEL_SECTIONS:
        _refuse(name, origin)
    return name.lower()


def _refuse(name: str, origin: str) -> NoReturn:
    if name.lower() in NOT_IN_TIMM:
        title, nearest = NOT_IN_TIMM[name.lower()]
        raise UserError(f"{origin}MODEL.TYPE {name}: timm has no {title}; the nearest families: {', '.join(nearest)}")
    if name.lower() == "regnet":  # whose YAML file was not verified
        timms = "MODEL.TYPE=timm MODEL.NAME=regnety_160"
        raise UserError(f"{origin}MODEL.TYPE {name}: use -opts {timms}, which reads PaddleViT's weights of it")
    hint = did_you_mean(name.lower(), MODEL_SECTIONS)
    known = ", ".join(MODEL_SECTIONS)
    raise UserError(f"{origin}MODEL.TYPE: unknown family {name[:80]}{hint} (known: {known})")
