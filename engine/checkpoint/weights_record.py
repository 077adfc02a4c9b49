"""Reads the record of weights, and describes the data of a run for its checkpoints, `classes.json` and exports.

A checkpoint has the entry `class_names`, the names in the order of the labels, or None if the data has no names; of an
older version also `preprocessing`, see `describe_data`. The file `classes.json` in a run's folder has both.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from timm.data import resolve_data_config

from configs.reading.model_options import described_model
from configs.reading.yaml_io import parse_value
from configs.schema import Data
from configs.schema.model import Model
from configs.weights import OPTIONS_ENTRY, PREPROCESSING, WeightsRecord
from datasets.sources.arrays.strings import to_nfc
from engine.checkpoint.split_entry import ENTRY, read_split
from models.timm_model import published_preprocessing
from models.weights.find import find_weights
from models.weights.read import checked_archive_bytes
from models.weights.shards import read_content, read_stored
from utils.atomic_file import atomic_write
from utils.file_formats.checkpoint_folder import SHARDS
from utils.file_formats.hf_folder import read_config, read_metadata

CLASSES_FILE = "classes.json"
_DESCRIPTION = ("class_names", "preprocessing")
# Entry of `preprocessing` -> key of DATA
_KEY_OF = {
    "image_size": "IMAGE_SIZE",
    "resize": "RESIZE",
    "crop_pct": "CROP_PCT",
    "channels": "IMAGE_CHANNELS",
    "mean": "IMAGENET_MEAN",
    "std": "IMAGENET_STD",
    "interpolation": "INTERPOLATION",
}


def describe_data(data: Data, class_names: Sequence[str] | None) -> dict[str, Any]:
    """The entries `class_names` and `preprocessing`."""
    values = {entry: getattr(data, key.lower()) for entry, key in _KEY_OF.items()}
    lists = {entry: list(value) if isinstance(value, tuple) else value for entry, value in values.items()}
    return {"class_names": None if class_names is None else list(class_names), "preprocessing": lists}


def write_classes(folder: Path, description: dict[str, Any]) -> None:
    """Writes `classes.json`; raises OSError if that fails."""
    atomic_write(folder / CLASSES_FILE, json.dumps(description, indent=2) + "\n")


def is_description(state: dict[str, Any]) -> bool:
    """Returns whether the two entries are None, or have the form that `describe_data` gives them."""
    names, preprocessing = map(state.get, _DESCRIPTION)
    has_names = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    return (names is None or has_names) and (preprocessing is None or _is_preprocessing(preprocessing))


def _is_preprocessing(values: dict[str, Any]) -> bool:
    if values.keys() | {"resize"} != _KEY_OF.keys():  # early checkpoints have no `resize`: it is the default
        return False
    try:
        Data.model_validate({_KEY_OF[entry]: value for entry, value in values.items()})
    except ValidationError:
        return False
    return isinstance(values["mean"], list) and isinstance(values["std"], list)


def to_metadata(description: dict[str, Any], options: dict[str, Any]) -> dict[str, str]:
    """The metadata of an exported file, as JSON; `read_record` reads it from a .safetensors file.

    description: as from `describe_data`. options: sections of options, from `options_to_export`.
    """
    return {entry: json.dumps(value) for entry, value in (description | {OPTIONS_ENTRY: options}).items()}


def weights_record(model: Model) -> WeightsRecord | None:
    """The record of the weights MODEL.PRETRAINED: as `read_record`, else timm's `pretrained_cfg` of MODEL.NAME.

    None without weights, and for weights that state nothing.
    """
    is_published = model.type == "timm" and model.pretrained == "timm"
    if not model.pretrained:
        return None
    if (record := None if is_published else read_record(model.pretrained)) or model.type != "timm":
        return record
    values, source = published_preprocessing(model.name)
    return WeightsRecord(source, {}, {field.upper(): value for field, value in values.items()})


def read_record(weights: str) -> WeightsRecord | None:
    """The record in a checkpoint or export, without reading its tensors; None for another program's weights.

    For weights beside timm's config.json: its preprocessing, classes and model. Does not report a damaged file: reading
    its tensors does.

    Raises:
        UserError: no such file, or a damaged archive.
    """
    path = find_weights(weights)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return None
    if reader is _read_checkpoint:
        checked_archive_bytes(path)
    try:
        content, options = reader(path)
        return record_of(content, options) if is_description(content) else None
    except Exception:  # a file of another program has any content
        return None


def record_of(content: dict[str, Any], options: Any) -> WeightsRecord:
    """The record in the entries and the options of a checkpoint.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the content is wrong.
    """
    names, model = content.get("class_names"), dict(options["MODEL"])
    described = {_KEY_OF[entry]: value for entry, value in (content.get("preprocessing") or {}).items()}
    data = options["DATA"] | described
    Data.model_validate({key: data[key] for key in PREPROCESSING if key in data})
    return WeightsRecord(
        source="the checkpoint",
        model=model,
        data=data,
        class_names=names and list(map(to_nfc, names)),  # as in the data
        num_classes=number if type(number := model.get("NUM_CLASSES")) is int and number > 0 else None,
        split=read_split(content, data),
        plugins=tuple(map(str, options.get("PLUGINS") or ())),
    )


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], Any]:
    """The entries, and the options."""
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state, parse_value(state["options"])


def _read_safetensors(path: Path) -> tuple[dict[str, Any], Any]:
    metadata = read_metadata(path)
    if OPTIONS_ENTRY not in metadata:
        return _read_config(path)
    entries = [*_DESCRIPTION, ENTRY] if ENTRY in metadata else _DESCRIPTION
    return {entry: json.loads(metadata[entry]) for entry in entries}, json.loads(metadata[OPTIONS_ENTRY])


def _read_shards(folder: Path) -> tuple[dict[str, Any], Any]:
    content = read_content(folder)
    split = {ENTRY: read_stored(content[ENTRY])} if ENTRY in content else {}
    return content | split, parse_value(content["options"])


def _read_config(path: Path) -> tuple[dict[str, Any], Any]:
    """The content of timm's config.json beside the weights. Its crop modes other than `center` are not used."""
    config = read_config(path.parent)
    values = resolve_data_config(pretrained_cfg=config["pretrained_cfg"])
    channels, *_, width = values["input_size"]
    preprocessing = {"image_size": width, "channels": channels, "interpolation": values["interpolation"]}
    preprocessing |= {entry: list(map(float, values[entry])) for entry in ("mean", "std")}
    preprocessing["crop_pct"] = float(values["crop_pct"])
    names = config.get("label_names")  # a dict of timm's may leave labels out
    description = {"class_names": names if isinstance(names, list) else None, "preprocessing": preprocessing}
    return description, {"DATA": {}, "MODEL": described_model(config)}


_READERS = {SHARDS: _read_shards, ".pth": _read_checkpoint, ".pt": _read_checkpoint}
_READERS |= {".safetensors": _read_safetensors, ".bin": _read_config}
