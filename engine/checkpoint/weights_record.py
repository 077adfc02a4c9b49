"""The data of weights: class names, preprocessing and split, in checkpoints, exports, `run.json` and `held_out.json`.

The entry `class_names` is None if the data has no names, `split` if the data came with splits.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from configs.schema import Data, Model
from configs.schema.operating_point import UNDECIDED, Decision, OperatingPoint
from configs.schema.section import only
from configs.versions import refuse_newer, without_gone_labels
from configs.weights import (
    NO_RECORD,
    OPTIONS_ENTRY,
    PREPROCESSING,
    SAFETENSORS,
    WeightsRecord,
    data_of_size,
    described_model,
)
from configs.yaml_io import Values
from datasets.sources.class_names import names_by_number
from datasets.sources.shared_arrays import to_nfc
from datasets.sources.split import DEFAULT_VAL_FRACTION, RunSplit
from engine.checkpoint.processor import published_in
from engine.checkpoint.run_folder import AVERAGE, HELD_OUT_FILE
from models.timm_model import RESIZE, check_kwargs, preprocessing_of, published_preprocessing
from models.weights.read import WeightsFile, entries_of, map_tensor, read_weights, size_of_positions, with_tensors
from utils.errors import UserError, first_line, to_single_line
from utils.file_formats.hf_folder import (
    CONFIG,
    HUB,
    LOCAL,
    PREPROCESSOR,
    WEIGHTS,
    is_of_timm,
    model_folder,
    read_config,
)
from utils.file_formats.pickles import ArrayRecord, TensorRecord
from utils.files import atomic_write, indented_json

ENTRY = "split"
# With several labels per image, of each class: the logits of `SampleResults.thresholds`, and the same as
# probabilities, which older versions read.
THRESHOLD_LOGITS, THRESHOLDS = "threshold_logits", "thresholds"
# A point of tempered scores has an entry of its own: older versions do not divide, and must not read it.
TEMPERATURE, OPERATING_POINT, TEMPERED_POINT = "temperature", "operating_point", "tempered_operating_point"
_NO_NAME = re.compile(r"LABEL_\d+")  # transformers', without names
_NAMES_OF_CLASSES = (
    "class_names", "classes", "class_to_idx", "idx_to_class", "label_names", "id2label", "label2id", "classnames",
    "class2idx", "idx2class", "class_mapping", "label_map", "label_encoder",
)  # fmt: skip
_MAYBE_OF_CLASSES = ("target_names", "categories", "labels", "names", "vocab")  # unless they are numbers
# Entries, of which the first one decides, and what names nothing in them
_NAME_ENTRIES = dict.fromkeys(_NAMES_OF_CLASSES, _NO_NAME)
_NAME_ENTRIES |= dict.fromkeys(_MAYBE_OF_CLASSES, re.compile(r"LABEL_\d+|\d+"))
_LISTS_OF_OBJECTS = ("classes_", "items")  # of scikit-learn's LabelEncoder; of fastai's CategoryMap, and of its `L`
_MAX_EXPORTED_HASHES = 2_000_000  # 32 MB of the 100 MB that a header of .safetensors may have
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MAX_NAMES_BYTES, _MAX_NUMBERS = 10**8, 10**6  # of an array


def split_to_entry(split: RunSplit | None) -> Values | None:
    """The digest and the paths of the held-out images, and 8 bytes of each training image; about 1 MB per 100,000."""
    if split is None:
        return None
    return _held_out_entry(split, _to_tensor) | {"trained": torch.from_numpy(split.trained.view(np.int64))}


def _held_out_entry(split: RunSplit, stored: Callable[[tuple[str, ...]], Any]) -> Values:
    """stored: names -> the form in which the entry has them."""
    entry = {"digest": split.digest, "held_out": stored(split.held_out or ())}
    if split.held_out_groups:
        entry["groups"] = stored(split.held_out_groups)
    return entry


def _to_tensor(names: tuple[str, ...]) -> Tensor:
    return torch.frombuffer(bytearray("\0".join(names).encode("utf-8", "surrogateescape")), dtype=torch.uint8)


def _to_names(names: Any) -> tuple[str, ...]:
    """The names of a checkpoint, in a tensor, or of an export, in a list; raises ValueError for others."""
    if isinstance(names, Tensor):
        return tuple(names.numpy().tobytes().decode("utf-8", "surrogateescape").split("\0"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("no split")
    return tuple(names)


def exported_entry(split: RunSplit | None) -> Values:
    """The entry of weights as JSON, by its name; empty if the split is not known.

    trained: the hashes of the training images, so that an evaluation of them has the warning of a checkpoint; left out
    if they do not fit into a header of .safetensors.
    """
    if split is None or split.held_out is None:
        return {}
    if not split.held_out:
        return {ENTRY: None}
    entry = _held_out_entry(split, list)
    if len(split.trained) <= _MAX_EXPORTED_HASHES:
        entry["trained"] = split.trained.tobytes().hex()
    return {ENTRY: entry}


def read_split(content: Mapping[str, Any], data: Mapping[str, Any]) -> RunSplit:
    """The split in the content of a checkpoint, or in the metadata of exported weights, with the options `data`.

    Raises ValueError: the entry is invalid.
    """
    seed = data.get("SPLIT_SEED", 0)
    fraction = data.get("VAL_FRACTION") or DEFAULT_VAL_FRACTION
    fold = (data.get("FOLD") or 0, data["FOLDS"]) if data.get("FOLDS") else None
    rule = RunSplit(seed, fraction, (), fold=fold, groups=data.get("GROUPS"))
    if ENTRY not in content:
        return RunSplit(seed, fraction, None)
    entry = content[ENTRY]
    if entry is None:
        return rule
    try:
        digest, held_out = entry["digest"], entry["held_out"]
        if isinstance(held_out, Tensor):  # of a checkpoint
            trained = entry["trained"].numpy().view(np.uint64)
        else:  # of an export: before version 0.3 without hashes
            trained = np.frombuffer(bytes.fromhex(entry.get("trained", "")), "<u8")
        split = replace(
            rule,
            held_out=_to_names(held_out),
            held_out_groups=_to_names(entry.get("groups", [])),
            trained=trained,
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("no split") from None
    if split.digest != digest:
        raise ValueError("a damaged split")
    return split


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


def describe_data(data: Data, class_names: Sequence[str] | None) -> Values:
    """The entries `class_names` and `preprocessing`."""
    values = data.model_dump(mode="json", by_alias=True, include={key.lower() for key in _KEY_OF.values()})
    preprocessing = {entry: values[key] for entry, key in _KEY_OF.items()}
    return {"class_names": class_names and list(class_names), "preprocessing": preprocessing}


def decision_to_entries(decision: Decision) -> Values:
    """The entries of a decision; empty if nothing is decided."""
    entries: Values = {}
    if decision.thresholds is not None:
        probabilities = torch.tensor(decision.thresholds, dtype=torch.float64).sigmoid()
        entries = {THRESHOLD_LOGITS: list(decision.thresholds), THRESHOLDS: probabilities.tolist()}
    key = OPERATING_POINT
    if decision.temperature != 1:
        key = TEMPERED_POINT
        entries[TEMPERATURE] = decision.temperature
    if decision.point:
        left_out = {"name"} if decision.point.by_limit else {"name", "by_limit"}  # which earlier versions refuse
        entries[key] = decision.point.model_dump(by_alias=True, exclude=left_out) | {"name": decision.point.name}
    return entries


def read_decision(content: Mapping[str, Any]) -> Decision:
    """The decision in the content of a file that `check_description` has checked."""
    thresholds = _read_thresholds(content)
    point = content.get(TEMPERED_POINT) or content.get(OPERATING_POINT)
    return Decision(
        thresholds=tuple(thresholds) if thresholds else None,
        point=OperatingPoint(**point) if point else None,
        temperature=content.get(TEMPERATURE) or 1.0,
    )


def _read_thresholds(content: Mapping[str, Any]) -> list[float] | None:
    """The logits of the thresholds; of an older file from its probabilities, of which 1 is the one of float32."""
    if (logits := content.get(THRESHOLD_LOGITS)) or not content.get(THRESHOLDS):
        return logits
    probabilities = torch.tensor(content[THRESHOLDS], dtype=torch.float64)
    highest = 1 - 2**-25  # and above: 1 in float32
    return probabilities.clamp(torch.finfo(torch.float64).tiny, highest).logit().float().tolist()


def write_held_out(folder: Path, split: RunSplit | None) -> None:
    """Writes `held_out.json` if the run holds images out; raises OSError if that fails."""
    if split:
        atomic_write(folder / HELD_OUT_FILE, indented_json(_held_out_entry(split, list)))


class _Description(BaseModel, strict=True):
    """The form that `describe_data` gives the entries, and the thresholds of the classes."""

    class_names: Annotated[list[str], Field(min_length=1)] | None
    preprocessing: Values | None
    thresholds: list[Annotated[float, Field(ge=0, le=1)]] | None
    threshold_logits: list[Annotated[float, Field(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]] | None
    operating_point: OperatingPoint | None
    tempered_operating_point: OperatingPoint | None
    temperature: Annotated[float, Field(gt=0, le=_MAX_FLOAT)] | None


def check_description(state: Mapping[str, Any]) -> None:
    """Checks the two entries and the thresholds, each of which may be missing or None.

    Raises ValueError: a wrong value, or a key of the preprocessing that is unknown or missing; names it.
    """
    check_values(_Description, {name: state.get(name) for name in _Description.model_fields})
    values = state.get("preprocessing")
    if values is None:
        return
    check_values(Data, {_KEY_OF.get(entry, entry): value for entry, value in values.items()})
    missing = [entry for entry in _KEY_OF if entry not in values]
    if missing:
        raise ValueError(f"preprocessing: {', '.join(missing)} missing")


def check_values(model: type[BaseModel], values: Values) -> None:
    """Raises ValueError: names the first wrong value, or the first unknown key."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        problem = "is unknown" if first["type"] == "extra_forbidden" else first["msg"]
        raise ValueError(f"{name} {problem}".strip()) from None


def to_metadata(description: Values, options: Values) -> dict[str, str]:
    """The metadata of an exported file, as JSON; `read_record` reads it from a .safetensors file.

    description: as from `describe_data`. options: sections of options, from `options_to_export`.
    """
    return {entry: json.dumps(value) for entry, value in (description | {OPTIONS_ENTRY: options}).items()}


def weights_record(model: Model, weights: WeightsFile | None = None, source: str = "") -> WeightsRecord:
    """The record of the weights MODEL.PRETRAINED: as `record_in`, else of the model.

    Of the model: the config.json of `source`, as -model names it, or timm's `pretrained_cfg` of MODEL.NAME; with what
    other programs write beside the weights: class names, preprocessing, arguments. NO_RECORD without weights. Raises
    UserError as `read_weights`, and for arguments that timm's model does not have.
    """
    if not model.pretrained:
        return NO_RECORD
    published = NO_RECORD
    if source.startswith((*HUB, LOCAL)):
        beside = _record_in_folder(model_folder(source, f"-model={LOCAL}FOLDER"), model.type == "transformers")
        if beside:  # for weights of another file
            published = replace(beside, model={}, sources=dict.fromkeys(beside.data | beside.evaluation, beside.source))
    elif model.type == "timm":
        data, evaluation, source = published_preprocessing(model.name)
        published = WeightsRecord(source, {}, data, evaluation=evaluation)
        if model.pretrained == "timm":
            return published
    weights = weights or read_weights(model.pretrained)
    own = record_in(weights)
    return own or replace(_record_beside(published, weights), kwargs=_arguments_of(weights, model))


def _arguments_of(weights: WeightsFile, model: Model) -> Values:
    """The arguments of timm's model that the file states. MODEL.KWARGS={}: none. Raises UserError: an unknown one, also
    of MODEL.TYPE vit.
    """
    kwargs = weights.network_arguments(model.name) if model.type in ("timm", "vit") else {}
    if model.type == "vit":
        if all(getattr(model, name, None) == value for name, value in kwargs.items()):
            return {}
        raise UserError(
            f"{weights.file}: is of another network than this MODEL; "
            f"give -model={model.name} -opts {shlex.quote(f'MODEL.KWARGS={json.dumps(kwargs)}')}"
        )
    if not kwargs or getattr(model, "kwargs", None) == {}:
        return {}
    try:
        check_kwargs(model.name.partition(".")[0], kwargs)
    except UserError as error:
        raise UserError(
            f"{weights.file}: its args cannot be followed: {error}; "
            f"-model={model.name} -opts MODEL.KWARGS={{}} reads it without its arguments"
        ) from None
    return kwargs


# Arguments of timm's train.py and of DeiT, beside the size of the images -> key of DATA
_OF_ARGUMENTS = {
    "in_chans": "IMAGE_CHANNELS",
    "mean": "IMAGENET_MEAN",
    "std": "IMAGENET_STD",
    "crop_pct": "CROP_PCT",
    "eval_crop_ratio": "CROP_PCT",
    "interpolation": "INTERPOLATION",
}


def _record_beside(published: WeightsRecord, weights: WeightsFile) -> WeightsRecord:
    """The record of another program's weights: the published values, with the class names and the preprocessing that
    the file states.
    """
    own = published.data.get("IMAGE_SIZE")
    of_tensors = size_of_positions(weights.tensors.states.values(), own)
    sized = data_of_size(weights.trained_size) or data_of_size(of_tensors)
    arguments = weights.program_arguments
    stated = {key: arguments[name] for name, key in _OF_ARGUMENTS.items() if name in arguments}
    match arguments.get("input_size"):
        case [1, _, _]:  # as timm's train.py, where in_chans is not given
            stated.setdefault("IMAGE_CHANNELS", 1)
    if sized and sized.image_size != own:
        stated["IMAGE_SIZE"] = sized.image_size
    evaluation = {key: published.evaluation[key] for key in published.evaluation.keys() & {"RESIZE"}}
    sources = published.sources | dict.fromkeys(stated, "the file")
    if mode := str(arguments.get("crop_mode", "")):
        evaluation["RESIZE"] = RESIZE.get(mode, mode)
        sources["RESIZE"] = "the file"
    names = _stated_names(weights) or published.class_names
    record = replace(published, class_names=names, built_for=weights.trained_size)
    if stated or mode:
        return replace(record, data=record.data | stated, evaluation=evaluation, sources=sources)
    return record


def _stated_names(weights: WeightsFile) -> list[str] | None:
    """The class names that another program writes beside the weights."""
    content = weights.entries
    meta = entries_of(content.get("meta"))  # of mmengine
    others = [entries_of(content.get(name)) for name in ("config", "datamodule_hyper_parameters", "model_init_args")]
    entries = Values()
    for place in (*others, meta, entries_of(meta.get("dataset_meta")), weights.arguments, content):
        entries |= {str(key).lower(): value for key, value in place.items()}  # the last place decides
    for key, no_name in _NAME_ENTRIES.items():
        with suppress(Exception):  # a damaged array
            by_number = names_by_number(_plain(entries.get(key)))
            names = [to_nfc(by_number[output]) for output in range(len(by_number))]  # KeyError: some have no name
            if not all(map(no_name.fullmatch, names)):
                return names
    return None


def _plain(content: Any) -> Any:
    """Lists, dicts, texts and numbers in place of arrays, tensors and objects; else the content itself.

    Objects: dicts of other classes, scikit-learn's LabelEncoder, fastai's CategoryMap of an `L`.
    Raises an exception of any type for a damaged array, and for one that takes more memory than names do.
    """
    entries, attributes = entries_of(content), getattr(content, "attributes", {})
    for name in _LISTS_OF_OBJECTS:
        if name in attributes:
            return _plain(attributes[name])
    if entries:
        return {_plain(key): _plain(value) for key, value in entries.items()}
    if isinstance(content, list | tuple):
        return list(map(_plain, content))
    if isinstance(content, TensorRecord) and math.prod(content.shape) < _MAX_NUMBERS:
        return map_tensor(content).tolist()
    if isinstance(content, ArrayRecord):
        if len(content.content) > _MAX_NAMES_BYTES or (content.shape and content.dtype.code[0] not in "UO"):
            raise ValueError("no names")
        return content.content if isinstance(content.content, list) else content.array().tolist()
    return content


def record_in(weights: WeightsFile) -> WeightsRecord | None:
    """The record in a checkpoint or export, without reading its tensors; None for another program's weights.

    For weights beside the config.json of timm or transformers: its preprocessing, classes and model.
    Raises UserError: a wrong value, or a key of the preprocessing that this version does not know; a folder of
    transformers whose .json files cannot be read.
    """
    if weights.own_options:
        return _own_record(weights)
    has_config = weights.kind == SAFETENSORS or weights.file.name == WEIGHTS[1]
    if not has_config or weights.of_open_clip:
        return None
    return _record_in_folder(weights.file.parent, weights.is_of_transformers)


def _own_record(weights: WeightsFile) -> WeightsRecord:
    """As `record_in` a checkpoint or export."""
    refuse_newer(weights.own_options, weights.file)
    content = dict(weights.entries)
    try:
        if weights.kind == SAFETENSORS:
            own = {*_Description.model_fields, ENTRY}
            content = {entry: json.loads(content[entry]) for entry in content.keys() & own}
        elif ENTRY in content:
            content[ENTRY] = with_tensors(content[ENTRY])
        check_description(content)
        return record_of(content, weights.own_options)
    except Exception as error:  # a damaged file has any content
        raise UserError(
            f"{weights.file}: its description of the weights is wrong: {to_single_line(str(error))}; "
            "read it with the version that wrote it, or give another file"
        ) from error


def _record_in_folder(folder: Path, is_of_transformers: bool) -> WeightsRecord | None:
    """As `record_in` of weights beside a config.json."""
    try:
        return _record_of_config(folder)
    except Exception as error:  # a file of another program has any content
        if not is_of_transformers:
            return None
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{folder}: {CONFIG} or {PREPROCESSOR} is missing, damaged, or of a newer transformers"
            f" ({first_line(error)}); save model and image processor there again"
        ) from error


def read_record(path: str) -> WeightsRecord | None:
    """As `record_in` the file at `path`. Raises UserError as `read_weights`, too."""
    return record_in(read_weights(path))


def record_of(content: Values, options: Any) -> WeightsRecord:
    """The record in the entries and the options of a checkpoint.

    Raises ValueError, TypeError, KeyError, AttributeError: the content is wrong.
    """
    names, model = content.get("class_names"), dict(options["MODEL"])
    described = {_KEY_OF[entry]: value for entry, value in (content.get("preprocessing") or {}).items()}
    of_run, gone_labels = without_gone_labels(options["DATA"])
    data = of_run | described
    check_values(Data, only(data, PREPROCESSING))
    tta = entries_of(options.get("EVAL")).get("TTA", "none")
    entries = (None, AVERAGE, "average") if content.get(AVERAGE) else UNDECIDED.entries
    return WeightsRecord(
        source="the checkpoint",
        model=model,
        data=data,
        class_names=names and list(map(to_nfc, names)),  # as in the data
        num_classes=_count(model.get("NUM_CLASSES")),
        split=read_split(content, data),
        plugins=tuple(map(str, options.get("PLUGINS") or ())),
        decision=read_decision(content)._replace(tta=tta, entries=entries),
        gone_labels=gone_labels,
    )


def _record_of_config(folder: Path) -> WeightsRecord:
    """The record in the config.json of timm or transformers."""
    config = read_config(folder)
    published = config["pretrained_cfg"] if is_of_timm(config) else published_in(folder)
    data, evaluation = preprocessing_of(published) if published else ({}, {})
    model = described_model(config)
    class_names, output_names = _names_of_config(published | config)  # older versions: all in one, `labels`
    is_multi_label = config.get("problem_type") == "multi_label_classification"
    return WeightsRecord(
        source=str(folder / CONFIG),
        model=model,
        data=data | {"IMAGE_CHANNELS": published.get("input_size", [3])[0], "MULTI_LABEL": is_multi_label},
        evaluation=evaluation,
        built_for=config.get("model_args", {}).get("img_size"),
        class_names=class_names,
        output_names=output_names,
        num_classes=_count(model.get("NUM_CLASSES")),
    )


def _names_of_config(entries: Mapping[str, Any]) -> tuple[list[str] | None, list[str] | None]:
    """The names of all classes, None if some have none; and the names for a reader."""
    stated = next(filter(None, map(entries.get, ("label_names", "labels", "id2label"))), None)
    names = names_by_number(stated)  # may leave outputs out
    if all(map(_NO_NAME.fullmatch, names.values())):
        return None, None
    outputs = range(_count(entries.get("num_classes")) or len(names))
    stated_names = [names.get(output, str(output)) for output in outputs]
    texts = entries_of(entries.get("label_descriptions"))
    is_complete = sorted(names) == list(outputs)
    class_names = list(map(to_nfc, stated_names)) if is_complete else None
    return class_names, [str(texts.get(name, name)) for name in stated_names]


def _count(number: Any) -> int | None:
    return number if type(number) is int and number > 0 else None
