"""The first changes to the layers of options: model and data set that other options name, old keys, and presets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from configs.data_sets import properties_of
from configs.reading.option_layers import OptionLayers, flatten, paths
from configs.reading.yaml_io import format_value, shorten
from configs.schema import Data, Model
from configs.schema.compute import PRESETS
from configs.schema.config import known_keys, model_type
from configs.schema.families.family import OWN_KEYS
from configs.schema.families.registry import MODEL_SECTIONS, NOT_IN_TIMM
from configs.schema.section import MAX_NAME_CHARS
from utils.errors import UserError, did_you_mean
from utils.file_formats.hf_folder import CONFIG, HUB, LOCAL, model_folder, read_config

_RECIPES = Path(__file__).parents[1]
_COMMON = {field.alias for field in Model.model_fields.values()} - {"TYPE", "NAME"}
_OF_THE_RUN = ("NUM_CLASSES", "PRETRAINED", "WEIGHTS_ENTRY", "RESUME", "LORA")
# Keys of PaddleViT's earlier YAML files and their present names.
_RENAMED = {
    "DISTILL": "DISTILLED", "DROP_PATH": "DROPPATH", "EMBED_DIMS": "EMBED_DIM", "HEADS": "NUM_HEADS",
    "HIDDEN_SIZE": "EMBED_DIM", "NUM_LAYERS": "DEPTH", "RANDAUGMENT": "RAND_AUGMENT", "STAGE_DEPTHS": "STAGE_DEPTH",
}  # fmt: skip
# Of PaddleViT's launcher, of BEiT's tokenizer, of MAE's pre-training; the place of the average; erasing per image.
_UNUSED = (
    "DATA.SECOND_IMAGE_SIZE", "LOCAL_RANK", "NGPUS", "TAG", "THROUGHPUT_MODE", "TRAIN.LR_SCHEDULER.MILESTONES",
    "TRAIN.MODEL_EMA_FORCE_CPU", "TRAIN.NORMALIZE_TARGET", "TRAIN.RANDOM_ERASE_SPLIT",
)  # fmt: skip
# Unknown keys if they are on.
_UNUSED_IF_OFF = (
    "MODEL.ATTN_HEAD_SIZE", "MODEL.DISTILL", "MODEL.RESUME_EMA", "MODEL.TRANS.HYBRID", "MODEL.TRANS.PATCH_GRID",
    "TRAIN.MULTI_SCALE_SAMPLER_DDP",
)  # fmt: skip
# Keys of earlier versions, with the defaults that the config.yaml of their runs has. Other values are unknown keys.
REMOVED = {
    "LOSS.SUM_CLASSES": False, "PARALLEL.FP16_ALLREDUCE": False, "PARALLEL.FUSE_ALL_REDUCE_OPS": False,
    "PARALLEL.OFFLOAD": False, "PARALLEL.REDUCE_DTYPE": "float32", "TRAIN.BLUR_PROB": 0, "TRAIN.CLIP_MODE": "norm",
    "TRAIN.GRAYSCALE_PROB": 0, "TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS": 0, "TRAIN.MODEL_EMA_FORCE_CPU": False,
    "TRAIN.RANDOM_ERASE_SPLIT": False, "TRAIN.RESTART_SCHEDULE": False,
}  # fmt: skip
_OF_STEP_DECAY = ("TRAIN.LR_SCHEDULER.DECAY_EPOCHS", "TRAIN.LR_SCHEDULER.DECAY_RATE")


def set_model(layers: OptionLayers, name: str) -> None:
    """Replaces the architecture by the one of `model_sections`; the number of classes and the weights stay."""
    named, model = model_sections(name)["MODEL"], layers.values.get("MODEL")
    if isinstance(model, dict):
        for key in model.keys() - _COMMON:  # of another family: they may not apply to the new one
            del model[key]
    for key, value in named.items():
        layers.add_key(f"MODEL.{key}", value, f"-model {name}")


def model_sections(name: str) -> dict[str, dict[str, Any]]:
    """The section MODEL, without classes and weights, and the section DATA of the recipe `name`.

    Without such a recipe, MODEL is timm's model of this name, and DATA is empty. Raises UserError as `read_yaml`.
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

    The given MODEL.KWARGS have priority; `MODEL.PRETRAINED: timm` becomes the source. The run does not need the source
    again: its options describe the model. Raises UserError for a source without a model of timm's.
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


def check_family(layers: OptionLayers) -> None:
    """Raises UserError if MODEL.TYPE names no family, or one that timm does not have."""
    model, origin = layers.values.get("MODEL"), layers.origin(("MODEL", "TYPE"))
    if model is not None and not isinstance(model, dict):
        raise UserError(f"{layers.origin(('MODEL',))}MODEL is {shorten(model)}: must be a section of keys")
    name, known = (model or {}).get("TYPE", "vit"), ", ".join(MODEL_SECTIONS)
    if not isinstance(name, str):
        raise UserError(f"{origin}MODEL.TYPE is {shorten(name)}: give one of {known}")
    if (family := name.lower()) in MODEL_SECTIONS:
        return
    if family in NOT_IN_TIMM:
        title, nearest = NOT_IN_TIMM[family]
        raise UserError(f"{origin}MODEL.TYPE {name}: timm has no {title}; the nearest families: {', '.join(nearest)}")
    if family == "regnet":  # whose YAML file was not verified
        timms = "MODEL.TYPE=timm MODEL.NAME=regnety_160"
        raise UserError(f"{origin}MODEL.TYPE {name}: use -opts {timms}, which reads PaddleViT's weights of it")
    hint = did_you_mean(family, MODEL_SECTIONS)
    raise UserError(f"{origin}MODEL.TYPE: unknown family {name[:80]}{hint} (known: {known})")


def data_set_follows_path(layers: OptionLayers) -> list[str]:
    """DATA.DATASET without files, such as the digits of a recipe, gives way to a DATA_PATH of a higher layer.

    `recognize_dataset` then finds out which data set the path is. Raises UserError if the command line gives both: one
    of them would be ignored.
    """
    data = layers.values.get("DATA")
    if not isinstance(data, dict) or properties_of(str(data.get("DATASET"))).has_files:
        return []
    name, path = (layers.origins.get(("DATA", key), "") for key in ("DATASET", "DATA_PATH"))
    if name.startswith("-") and path.startswith("-"):
        raise UserError(f"DATA.DATASET {data['DATASET']} ({name}) does not use DATA.DATA_PATH ({path}); remove one")
    if layers.level("DATA.DATA_PATH") <= layers.level("DATA.DATASET"):
        return []
    note = f"DATA.DATASET: {data['DATASET']} ({name}) is replaced by the data of {path}: {data['DATA_PATH']}"
    layers.add_key("DATA.DATASET", Data.model_fields["dataset"].default, path)
    return [note]


def replace_old_keys(layers: OptionLayers) -> list[str]:
    """Old keys get their present name, or are removed if they have no effect; of both names, the higher layer wins."""
    known, values = known_keys(model_type(layers.values)), dict(paths(layers.values))
    is_cosine = values.get(("TRAIN", "LR_SCHEDULER", "NAME")) == "warmupcosine"  # PaddleViT's name
    unused, renamed = [], []
    for path, value in values.items():
        key = ".".join(path)
        present = _present_name(key, known)
        if key in REMOVED and value == REMOVED[key]:
            _remove(layers.values, path)
            continue
        if (isinstance(value, dict) and value) or (key in known and not (is_cosine and key in _OF_STEP_DECAY)):
            continue
        is_off = key in _UNUSED_IF_OFF and present not in known and value in (None, False, "")
        if key in known or key in _UNUSED or is_off:
            unused.append(key)
        elif present != key:
            renamed.append(f"{key} -> {present}")
            if layers.level(key) > layers.level(present):
                layers.add_key(present, value, layers.origin(path).removesuffix(": "))
        else:
            continue
        _remove(layers.values, path)
    parts = [f"without effect: {', '.join(unused)}"] if unused else []
    parts += [f"renamed: {', '.join(renamed)}"] if renamed else []
    return [f"Warning: old keys; {'; '.join(parts)}"] if parts else []


def _present_name(key: str, known: Sequence[str]) -> str:
    """The key itself if it has no other name."""
    moved = key if "MODEL.TRANS" in known else key.replace("MODEL.TRANS.", "MODEL.")
    section, dot, leaf = moved.rpartition(".")
    renamed = section + dot + _RENAMED.get(leaf, leaf)
    return renamed if renamed in known and moved not in known else moved


def _remove(values: dict[str, Any], path: tuple[str, ...]) -> None:
    """Removes the key, and the sections that it leaves empty."""
    above = values
    for name in path[:-1]:
        above = above[name]
    del above[path[-1]]
    if not above and len(path) > 1:
        _remove(values, path[:-1])


def precision_follows_preset(layers: OptionLayers) -> list[str]:
    """AMP.PRESET gives other keys of AMP; a key wins if the layer of PRESET, or a higher one, gives it."""
    name, level = str(dict(flatten(layers.values)).get("AMP.PRESET")), layers.level("AMP.PRESET")
    values = {key: value for key, value in PRESETS.get(name, {}).items() if layers.level(f"AMP.{key}") < level}
    if not values:  # or an unknown name, which the check of the options reports
        return []
    layers.add({"AMP": values}, f"AMP.PRESET {name}")
    return [f"AMP.PRESET {name}: {', '.join(f'{key} {format_value(value)}' for key, value in values.items())}"]


# Each changes the layers, and returns lines for the log.
LAYER_RULES: tuple[Callable[[OptionLayers], list[str]], ...] = (
    data_set_follows_path,
    model_follows_source,
    replace_old_keys,
    precision_follows_preset,
)
