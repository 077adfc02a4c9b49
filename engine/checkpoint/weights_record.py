"""The data of weights: class names, preprocessing and split, in checkpoints, exports, `run.json` and `held_out.json`.

The entry `class_names` is None if the data has no names, `split` if the data came with splits; checkpoints of older
versions have no `split`, and the preprocessing in an entry of its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from configs.schema import Data
from configs.schema.model import Model
from configs.weights import (
    OPTIONS_ENTRY,
    PREPROCESSING,
    SAFETENSORS,
    TORCH,
    WeightsRecord,
    described_model,
    find_weights,
    format_of,
)
from configs.yaml_io import parse_value
from datasets.sources.names import names_by_number
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.split import DEFAULT_VAL_FRACTION, RunSplit
from engine.checkpoint.run_folder import FOLD_RULE, HELD_OUT_FILE
from models.timm_model import preprocessing_of, published_preprocessing
from models.transformers_model import published_config
from models.weights.read import Weights, has_backing_storage, read_weights
from utils.errors import UserError
from utils.file_formats.hf_folder import (
    CONFIG,
    PREPROCESSOR,
    SHARDS,
    WEIGHTS,
    is_of_timm,
    read_config,
    read_metadata,
)
from utils.file_formats.pickles import ArrayRecord, Inert, checked_archive_bytes
from utils.files import atomic_write, read_json

ENTRY = "split"
# With several labels per image, of each class: the logits of `SampleResults.thresholds`, and the same as
# probabilities, which older versions read.
THRESHOLD_LOGITS, THRESHOLDS = "threshold_logits", "thresholds"
_NAME_ENTRIES = (  # the first one decides
    "class_names", "classes", "class_to_idx", "idx_to_class", "label_names", "id2label", "label2id", "classnames",
    "class2idx", "idx2class", "class_mapping", "label_map", "label_encoder",
)  # fmt: skip
_MAYBE_NAMES = ("target_names", "categories", "labels", "names", "vocab")  # unless they are numbers
_LISTS_OF_OBJECTS = ("classes_", "items")  # of scikit-learn's LabelEncoder; of fastai's CategoryMap, and of its `L`
_NO_NAME = re.compile(r"LABEL_\d+")  # transformers', without names
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MAX_NAMES_BYTES, _MAX_NUMBERS = 10**7, 10**4  # of an array


def split_to_entry(split: RunSplit | None) -> dict[str, Any] | None:
    """The digest and the paths of the held-out images, and 8 bytes of each training image; about 1 MB per 100,000."""
    if split is None:
        return None
    trained = torch.from_numpy(split.trained.view(np.int64))
    groups = {"groups": _to_tensor(split.held_out_groups)} if split.held_out_groups else {}
    held_out = _to_tensor(split.held_out or ())
    return {"digest": split.digest, "held_out": held_out, "trained": trained, FOLD_RULE: split.fold_rule, **groups}


def _to_tensor(names: tuple[str, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray("\0".join(names).encode("utf-8", "surrogateescape")), dtype=torch.uint8)


def _to_names(tensor: torch.Tensor) -> tuple[str, ...]:
    return tuple(bytes(_checked(tensor, torch.uint8).numpy()).decode("utf-8", "surrogateescape").split("\0"))


def _checked(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype != dtype or not has_backing_storage(tensor, tensor.untyped_storage().nbytes()):
        raise ValueError("other tensors")
    return tensor


def exported_entry(split: RunSplit | None) -> dict[str, Any]:
    """The entry of weights without their training images, by its name; empty if the split is not known."""
    if split is None or split.held_out is None:
        return {}
    if not split.held_out:
        return {ENTRY: None}
    groups = {"groups": list(split.held_out_groups)} if split.held_out_groups else {}
    entry = {"digest": split.digest, "held_out": list(split.held_out), FOLD_RULE: split.fold_rule, **groups}
    return {ENTRY: entry}


def read_split(content: Mapping[str, Any], data: Mapping[str, Any]) -> RunSplit:
    """The split in the content of a checkpoint, or in the metadata of exported weights, with the options `data`.

    Raises ValueError: the entry is invalid.
    """
    seed, fraction = data.get("SPLIT_SEED", 0), data.get("VAL_FRACTION") or DEFAULT_VAL_FRACTION
    fold = (data.get("FOLD") or 0, data["FOLDS"]) if data.get("FOLDS") else None
    rule = RunSplit(seed, fraction, (), fold=fold, groups=data.get("GROUPS"))
    if ENTRY not in content:
        return RunSplit(seed, fraction, None)
    entry = content[ENTRY]
    if isinstance(entry, Mapping):
        rule = replace(rule, fold_rule=entry.get(FOLD_RULE, 1))
    match entry:
        case None:
            return rule
        case {"digest": digest, "held_out": list(held_out)}:
            split = replace(rule, held_out=tuple(held_out), held_out_groups=tuple(entry.get("groups", ())))
        case {"digest": digest, "held_out": torch.Tensor() as text, "trained": torch.Tensor() as trained}:
            split = replace(
                rule,
                held_out=_to_names(text),
                held_out_groups=_to_names(entry["groups"]) if "groups" in entry else (),
                trained=_checked(trained, torch.int64).numpy().view(np.uint64),
            )
        case _:
            raise ValueError("no split")
    if (
        not all(isinstance(name, str) for name in (*(split.held_out or ()), *split.held_out_groups))
        or split.digest != digest
        or type(split.fold_rule) is not int
    ):
        raise ValueError("a damaged split")
    return split


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


def thresholds_to_entries(logits: Sequence[float] | None) -> dict[str, list[float]]:
    """The entries of thresholds (classes,); empty for None."""
    if logits is None:
        return {}
    probabilities: list[float] = torch.tensor(logits, dtype=torch.float64).sigmoid().tolist()
    return {THRESHOLD_LOGITS: list(logits), THRESHOLDS: probabilities}


def read_thresholds(content: Mapping[str, Any]) -> list[float] | None:
    """The logits of the thresholds; of an older file from its probabilities, of which 1 is the one of float32."""
    if (logits := content.get(THRESHOLD_LOGITS)) or not content.get(THRESHOLDS):
        return logits
    probabilities = torch.tensor(content[THRESHOLDS], dtype=torch.float64)
    highest = 1 - 2**-25  # and above: 1 in float32
    converted: list[float] = probabilities.clamp(torch.finfo(torch.float64).tiny, highest).logit().float().tolist()
    return converted


def write_held_out(folder: Path, split: RunSplit | None) -> None:
    """Writes `held_out.json` if the run holds images out; raises OSError if that fails."""
    if split:
        atomic_write(folder / HELD_OUT_FILE, json.dumps(exported_entry(split)[ENTRY], indent=2) + "\n")


def is_description(state: dict[str, Any]) -> bool:
    """Returns whether the two entries and the thresholds are None, or have the form that this module gives them."""
    names, values = map(state.get, _DESCRIPTION)
    has_names = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    for entry, lowest, highest in ((THRESHOLDS, 0, 1), (THRESHOLD_LOGITS, -_MAX_FLOAT, _MAX_FLOAT)):
        numbers = state.get(entry) or []
        if not isinstance(numbers, list) or not all(type(x) is float and lowest <= x <= highest for x in numbers):
            return False
    if values is not None:
        try:
            Data.model_validate({_KEY_OF[entry]: value for entry, value in values.items()})
        except (ValidationError, KeyError):
            return False
        if values.keys() != _KEY_OF.keys() or not all(isinstance(values[key], list) for key in ("mean", "std")):
            return False
    return names is None or has_names


def to_metadata(description: dict[str, Any], options: dict[str, Any]) -> dict[str, str]:
    """The metadata of an exported file, as JSON; `read_record` reads it from a .safetensors file.

    description: as from `describe_data`. options: sections of options, from `options_to_export`.
    """
    return {entry: json.dumps(value) for entry, value in (description | {OPTIONS_ENTRY: options}).items()}


def weights_record(model: Model) -> WeightsRecord | None:
    """The record of the weights MODEL.PRETRAINED: as `read_record`, else timm's `pretrained_cfg` of MODEL.NAME.

    With the class names and the image size that other programs write beside the weights. None without weights, and for
    weights that state nothing.
    """
    is_published = model.type == "timm" and model.pretrained == "timm"
    if not model.pretrained:
        return None
    if record := None if is_published else read_record(model.pretrained):
        return record
    weights = Weights({})
    if not is_published:
        with suppress(Exception):  # a damaged file has any content: reading its tensors reports it
            weights = read_weights(model.pretrained)
    data, evaluation, source = published_preprocessing(model.name) if model.type == "timm" else ({}, {}, "")
    size = names = None
    for stated in (weights.size_of_positions(data.get("IMAGE_SIZE")), weights.trained_size):  # the last one decides
        with suppress(ValidationError):
            size = Data.model_validate({"IMAGE_SIZE": stated}).image_size
    meta = _entries_of(weights.content.get("meta"))  # of mmengine
    others = map(_entries_of, map(weights.content.get, ("config", "datamodule_hyper_parameters")))
    places = [*others, meta, _entries_of(meta.get("dataset_meta")), weights.arguments, weights.content]
    entries = {str(key).lower(): value for place in places for key, value in place.items()}  # the last place decides
    for key in (*_NAME_ENTRIES, *_MAYBE_NAMES):
        with suppress(Exception):  # a damaged array
            by_number = names_by_number(_plain(entries.get(key))) or {}
            stated = [to_nfc(by_number[output]) for output in range(len(by_number))]  # KeyError: some have no name
            is_named = not (key in _MAYBE_NAMES and all(map(str.isdecimal, stated)))
            if stated and is_named and not all(map(_NO_NAME.fullmatch, stated)):
                names = stated
                break
    if size and size != data.get("IMAGE_SIZE"):
        data, evaluation = data | {"IMAGE_SIZE": size}, {key: evaluation[key] for key in evaluation if key == "RESIZE"}
        source = f"{source}, with the image size of the file" if source else "the file"
    elif source and not is_published:
        source += " (the file names none)"
    if model.type != "timm" and not (names or data):
        return None
    return WeightsRecord(source, {}, data, names, evaluation=evaluation, built_for=weights.trained_size)


def _entries_of(content: Any) -> Mapping[Any, Any]:
    """The entries of a dict, or of an object of another program; none of anything else."""
    content = content.entries | content.attributes if isinstance(content, Inert) else content
    return content if isinstance(content, dict) else {}


def _plain(content: Any) -> Any:
    """Lists, dicts, texts and numbers in place of numpy's and torch's, and of objects; else the content itself.

    Objects: dicts of other classes, scikit-learn's LabelEncoder, fastai's CategoryMap of an `L`.
    Raises an exception of any type for a damaged array, and for one that takes more memory than names do.
    """
    if isinstance(content, Inert) and (name := next(filter(content.attributes.__contains__, _LISTS_OF_OBJECTS), None)):
        return _plain(content.attributes[name])
    if isinstance(content, torch.Tensor) and content.numel() < _MAX_NUMBERS:
        return content.tolist()
    if isinstance(content, ArrayRecord):
        if len(content.content) > _MAX_NAMES_BYTES or (content.shape and content.dtype.code[0] not in "UO"):
            raise ValueError("no names")
        return content.content if isinstance(content.content, list) else content.array().tolist()
    if entries := _entries_of(content):
        return {_plain(key): _plain(value) for key, value in entries.items()}
    return list(map(_plain, content)) if isinstance(content, list | tuple) else content


def read_record(weights: str) -> WeightsRecord | None:
    """The record in a checkpoint or export, without reading its tensors; None for another program's weights.

    For weights beside the config.json of timm or transformers: its preprocessing, classes and model. Does not report a
    damaged file: reading its tensors does.
    Raises UserError: no such file, a damaged archive, or a folder of transformers whose .json files cannot be read.
    """
    path = find_weights(weights)
    kind = format_of(path)
    if kind == TORCH:
        checked_archive_bytes(path)
    try:
        metadata = read_metadata(path) if kind == SAFETENSORS else {}
        if path.name == WEIGHTS[1] or (kind == SAFETENSORS and OPTIONS_ENTRY not in metadata):
            return _record_of_config(path)
        if kind == SAFETENSORS:
            optional = (name for name in (ENTRY, THRESHOLDS, THRESHOLD_LOGITS) if name in metadata)
            entries = (*_DESCRIPTION, OPTIONS_ENTRY, *optional)
            content = {entry: json.loads(metadata[entry]) for entry in entries}
            return record_of(content, content[OPTIONS_ENTRY]) if is_description(content) else None
        if kind != TORCH:
            return None
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return record_of(content, parse_value(content["options"])) if is_description(content) else None
    except Exception as error:  # a file of another program has any content
        if path.name not in (WEIGHTS[0], SHARDS) or is_of_timm(read_json(path.with_name(CONFIG))):
            return None
        if isinstance(error, UserError):
            raise
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        problem = (
            f"{path.parent}: {CONFIG} or {PREPROCESSOR} is missing, damaged, or of a newer transformers ({reason})"
        )
        raise UserError(f"{problem}; update the package, or download the whole folder again") from error


def record_of(content: dict[str, Any], options: Any) -> WeightsRecord:
    """The record in the entries and the options of a checkpoint.

    Raises ValueError, TypeError, KeyError, AttributeError: the content is wrong.
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
        num_classes=_count(model.get("NUM_CLASSES")),
        split=read_split(content, data),
        plugins=tuple(map(str, options.get("PLUGINS") or ())),
        thresholds=read_thresholds(content),
    )


def _record_of_config(path: Path) -> WeightsRecord:
    """The record in the config.json of timm or transformers beside the weights."""
    config = read_config(path.parent)
    published = config["pretrained_cfg"] if is_of_timm(config) else published_config(path.parent)
    data, evaluation = preprocessing_of(published) if published else ({}, {})
    model, entries = described_model(config), published | config  # older versions: all in one, `labels`
    stated = entries.get("label_names") or entries.get("labels") or entries.get("id2label")
    names = names_by_number(stated) or {}  # may leave outputs out
    outputs, texts = range(_count(entries.get("num_classes")) or len(names)), entries.get("label_descriptions")
    texts = texts if isinstance(texts, dict) else {}
    names = {} if all(map(_NO_NAME.fullmatch, names.values())) else names
    is_complete = bool(names) and sorted(names) == list(outputs)
    return WeightsRecord(
        source=str(path.parent / CONFIG),
        model=model,
        data=data | {"IMAGE_CHANNELS": published.get("input_size", [3])[0]},
        evaluation=evaluation,
        built_for=config.get("model_args", {}).get("img_size"),
        class_names=[to_nfc(names[output]) for output in outputs] if is_complete else None,
        output_names=[str(texts.get(name := names.get(i, str(i)), name)) for i in outputs] if names else None,
        num_classes=_count(model.get("NUM_CLASSES")),
    )


def _count(number: Any) -> int | None:
    return number if type(number) is int and number > 0 else None
