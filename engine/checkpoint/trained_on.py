"""The data that a checkpoint was trained on: class names, preprocessing, number of classes, folder; and its model.

A checkpoint has the entries `class_names`, the names in the order of the labels, or None if the data has no names, and
`preprocessing`, see `describe_data`. The file `classes.json` in a run's folder has both, too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from timm.data import resolve_data_config

from configs.reading.model_options import described_model
from configs.reading.weight_options import OPTIONS_ENTRY
from configs.reading.yaml_io import parse_value
from configs.schema import Data
from configs.schema.model import Model
from datasets.sources.arrays.strings import to_nfc
from datasets.sources.split import RunSplit
from engine.checkpoint.split_entry import ENTRY, read_split
from models.weights.find import find_weights
from models.weights.read import checked_archive_bytes
from models.weights.shards import read_content, read_stored
from utils.atomic_file import atomic_write
from utils.file_formats.checkpoint_folder import SHARDS
from utils.file_formats.hf_folder import read_config
from utils.file_formats.safetensors_metadata import read_metadata

CLASSES_FILE = "classes.json"
_DESCRIPTION = ("class_names", "preprocessing")
# Entry of `preprocessing` -> field of the DATA section
OPTION_OF = {
    "image_size": "image_size",
    "resize": "resize",
    "crop_pct": "crop_pct",
    "channels": "image_channels",
    "mean": "imagenet_mean",
    "std": "imagenet_std",
    "interpolation": "interpolation",
}


@dataclass(frozen=True)
class TrainedOn:
    """`class_names` and `preprocessing` are None if the checkpoint has none; `data` and `model` are its options.

    num_classes: of its options; None if they have none. split: of its data. plugins: PLUGINS of its options.
    """

    class_names: list[str] | None
    preprocessing: dict[str, Any] | None
    data: dict[str, Any]
    model: dict[str, Any]
    num_classes: int | None
    split: RunSplit | None = None
    plugins: tuple[str, ...] = ()

    def preprocessing_options(self) -> dict[str, Any]:
        """The fields of the DATA section that an evaluation must share with the training, with their values."""
        values = self.preprocessing or {}
        options = {option: values[entry] for entry, option in OPTION_OF.items() if entry in values}
        return options | {"grey_range": self.data["GREY_RANGE"]} if "GREY_RANGE" in self.data else options


def describe_data(data: Data, class_names: Sequence[str] | None) -> dict[str, Any]:
    """The entries `class_names` and `preprocessing` of a checkpoint."""
    values = {entry: getattr(data, option) for entry, option in OPTION_OF.items()}
    lists = {entry: list(value) if isinstance(value, tuple) else value for entry, value in values.items()}
    return {"class_names": None if class_names is None else list(class_names), "preprocessing": lists}


def write_classes(folder: Path, description: dict[str, Any]) -> None:
    """Writes `classes.json`; raises OSError if that fails."""
    atomic_write(folder / CLASSES_FILE, json.dumps(description, indent=2) + "\n")


def is_description(state: dict[str, Any]) -> bool:
    """Returns whether the two entries are None, or have the form that `describe_data` gives them."""
    names, preprocessing = state["class_names"], state["preprocessing"]
    has_names = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    return (names is None or has_names) and (preprocessing is None or _is_preprocessing(preprocessing))


def _is_preprocessing(values: dict[str, Any]) -> bool:
    if values.keys() | {"resize"} != OPTION_OF.keys():  # earlier checkpoints have no `resize`: it is the default
        return False
    try:
        Data.model_validate({OPTION_OF[entry].upper(): value for entry, value in values.items()})
    except ValidationError:
        return False
    return isinstance(values["mean"], list) and isinstance(values["std"], list)


def to_metadata(description: dict[str, Any], options: dict[str, Any]) -> dict[str, str]:
    """The metadata of an exported file, as JSON; `read_trained_on` reads it from a .safetensors file.

    description: as from `describe_data`. options: sections of options, from `options_to_export`.
    """
    return {entry: json.dumps(value) for entry, value in (description | {OPTIONS_ENTRY: options}).items()}


def trained_on_of(model: Model) -> TrainedOn | None:
    """The data of the weights MODEL.PRETRAINED; None without weights, or for weights of another program."""
    is_published = model.type == "timm" and model.pretrained == "timm"
    return None if is_published or not model.pretrained else read_trained_on(model.pretrained)


def read_trained_on(weights: str) -> TrainedOn | None:
    """The data of the checkpoint or export `weights`, without reading its tensors; None for another program's weights.

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
        description = {entry: content.get(entry) for entry in _DESCRIPTION}
        if not is_description(description):
            return None
        names, data, model = description["class_names"], dict(options["DATA"]), dict(options["MODEL"])
        description["class_names"] = names and list(map(to_nfc, names))  # as in the data
        number = number if type(number := model.get("NUM_CLASSES")) is int and number > 0 else None
        split, plugins = read_split(content, data), tuple(map(str, options.get("PLUGINS") or ()))
        return TrainedOn(**description, data=data, model=model, num_classes=number, split=split, plugins=plugins)
    except Exception:  # a file of another program has any content
        return None


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
    """What timm's config.json beside the weights says. Its crop modes other than `center` are not used."""
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
