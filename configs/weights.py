"""Where weights are, the options that travel with them, and the options of a run that follow them. Without torch."""

import json
import os
import shlex
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from pydantic import ValidationError

from configs.schema import Config, Data, Model
from configs.schema.data import properties_of
from configs.schema.families.family import OWN_KEYS, TimmModel
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FREEZE_BACKBONE
from configs.schema.operating_point import UNDECIDED, Decision
from configs.schema.section import as_tuple, only, without
from configs.schema.train import WEIGHTS_EXTENSIONS
from configs.versions import WRITTEN_BY, is_gone_value
from configs.yaml_io import Values, format_value, shorten
from utils.errors import Unavailable, UserError, error_from
from utils.file_formats.hf_folder import CONFIG, SHARDS, WEIGHTS, is_of_timm, read_metadata, weight_file
from utils.files import open_regular_file, read_json, without_none
from utils.notes import Note

PADDLE = ".pdparams"
SAFETENSORS = ".safetensors"
TORCH = ".pth"
NPZ = ".npz"
_OLD_TORCH = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # in the first pickle of torch before 1.6
OPTIONS_ENTRY = "options"  # of the metadata of a .safetensors file: JSON of the sections MODEL and DATA
# Keys of DATA
_READING = ("CLASS_FOLDERS", "LABELS", "COLUMNS", "ENCODING", "MULTI_LABEL")
PLACE = ("DATASET", "DATA_PATH", "KWARGS", "IMAGE_ROOT", *_READING)
SPLIT = ("VAL_FRACTION", "FOLDS", "FOLD", "SPLIT_SEED", "GROUPS")
NORMALIZATION = ("IMAGENET_MEAN", "IMAGENET_STD")
# Weights carry these to an evaluation. Exports describe those in `_KEY_OF` of engine/checkpoint/weights_record.py.
PREPROCESSING = ("IMAGE_SIZE", "IMAGE_CHANNELS", "GREY_RANGE", "RESIZE", "CROP_PCT", "INTERPOLATION", *NORMALIZATION)
_OF_THE_RUN = ("NUM_CLASSES", "PRETRAINED", "WEIGHTS_ENTRY", "RESUME", "LORA")  # keys of MODEL
# Keys of transformers' config.json that do not describe the model
_OF_THE_FOLDER = {"_name_or_path", "auto_map", "dtype", "id2label", "label2id", "torch_dtype", "transformers_version"}
OF_EVERY_MODEL = {*(field.alias for field in Model.model_fields.values()), FREEZE_BACKBONE} - {"TYPE", "NAME"}


def find_weights(path: str) -> Path:
    """The weight file at `path`, or at `path` with an extension added.

    .pdparams first, because PaddleViT's users omit it. Of a folder with config.json, and of `hf-hub:ORG/NAME`, the
    weights that timm or transformers saved; of a folder with the index of several files, the index.
    Raises UserError: no such file; names the extensions that were tried; a folder of another form. Or as `weight_file`.
    """
    path = weight_file(path)
    _refuse_parts(Path(path))
    for candidate in (path, *(f"{path}{extension}" for extension in WEIGHTS_EXTENSIONS), os.path.join(path, SHARDS)):
        if os.path.isfile(candidate):
            return Path(candidate)
    if os.path.isdir(path):
        files = [one for end in WEIGHTS_EXTENSIONS for one in sorted(Path(path).glob(f"*{end}"))]
        fix = "name the file of weights, or the folder in it"
        if files:
            fix = f"give a file in it, such as {shlex.quote(str(min(files, key=lambda one: one.stem != 'best')))}"
        raise UserError(f"{path}: is a folder; {fix}")
    raise Unavailable(f"{path}: no such file, also with {', '.join(WEIGHTS_EXTENSIONS)} added; check the path")


def _refuse_parts(path: Path) -> None:
    """Raises UserError for a folder that torch.distributed.checkpoint or peft wrote, and for a file in it."""
    folder = path
    if path.suffix == ".distcp" or path.stem == "adapter_model":
        folder = path.parent
    if os.path.isfile(folder / ".metadata"):
        program = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {shlex.quote(str(folder))}"
        raise UserError(f"{path}: is of torch.distributed.checkpoint; give what this writes: {program} weights.pth")
    if os.path.isfile(folder / "adapter_config.json"):
        fix = "give the state_dict of peft's model.merge_and_unload(), or best.pth of the run"
        raise UserError(f"{path}: is an adapter without the weights that it belongs to; {fix}")


def weights_format(file: Path) -> str:
    """The format of a weight file, by its first bytes: PADDLE, SAFETENSORS, TORCH, NPZ, or '' if it is unknown.

    A file that ends with .pdparams is PADDLE, so that torch never reads it; a pickle with another ending is not, for
    the layout of its arrays is unknown.
    Raises UserError: it cannot be read, or is a pointer of Git LFS.
    """
    if file.name == SHARDS:
        return SAFETENSORS
    if file.suffix.lower() == PADDLE:
        return PADDLE
    try:
        with open_regular_file(file) as stream:
            head = stream.read(300)
    except OSError as error:
        raise error_from(error, f"{file}: cannot be read: {error.strerror}") from None
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{file}: is a pointer of Git LFS, not the weights; get them with: git lfs pull")
    if head.startswith(b"PK"):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]  # the name of the first file in the archive
        if first.endswith(b".npy"):
            return NPZ
        return TORCH if _may_be_of_torch(file) else ""
    if head.startswith(b"\x80") and _OLD_TORCH in head[:40]:
        return TORCH
    if head[8:9] == b"{":  # after the size of the header, 8 bytes
        return SAFETENSORS
    return ""


def _may_be_of_torch(archive: Path) -> bool:
    """Whether it has the member that torch reads; True for a damaged archive, which its reader explains."""
    with suppress(Exception), ZipFile(archive) as members:  # of many types
        return any(name.endswith("/data.pkl") for name in members.namelist())
    return True


@dataclass(frozen=True)
class Header:
    """What a weight file states beside the elements of its tensors; the file is read once for it, without torch.

    content: of TORCH and PADDLE, the content of the file, with records of its tensors, which stay on the disk; of
    SAFETENSORS, the metadata. is_of_transformers: beside its config.json.
    """

    file: Path
    kind: str
    content: Any = field(default_factory=dict)
    is_of_transformers: bool = False

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Converts the exceptions of a damaged file into one line."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the libraries raise almost any type for a damaged file
            reason = getattr(error, "strerror", None) or type(error).__name__
            problem = f"{self.file}: is damaged or not a {self.kind} file ({reason})"
            raise error_from(error, f"{problem}; download it again or give another") from error


def open_weights(path: str | Path) -> Header:
    """The header of the weight file at `path`.

    Raises UserError: as `find_weights`; an unknown format, a damaged file, or a pickled model.
    """
    file = find_weights(str(path))
    header = Header(file, weights_format(file))
    if not header.kind:
        known = ", ".join(WEIGHTS_EXTENSIONS)
        raise UserError(f"{file}: is no file of weights of a known format, or damaged; give one: {known}")
    if header.kind == SAFETENSORS:
        beside = read_json(file.with_name(CONFIG)) if file.name in (*WEIGHTS, SHARDS) else {}
        return replace(header, content=read_metadata(file), is_of_transformers=not is_of_timm(beside))
    if header.kind == NPZ:
        return header
    from utils.file_formats.pickles import read_pickle  # imported late: numpy

    with header.explained():
        return replace(header, content=read_pickle(file, is_plain=header.kind == PADDLE))


def read_entries(checkpoint: Path) -> Values:
    """The entries of a checkpoint, with records of its tensors; empty if it cannot be read.

    The tensors are not verified: for its position, its best evaluation and its options.
    """
    from utils.file_formats.pickles import read_pickle

    with suppress(Exception):  # the libraries raise almost any type for a damaged file
        return dict(read_pickle(checkpoint))
    return {}


@dataclass(frozen=True)
class WeightsRecord:
    """What is known about weights: preprocessing, head, class names and data of their training.

    source: of the values, for the log. sources: of keys of DATA with another source. model: keys of MODEL; empty for
    weights that timm publishes. data: keys of DATA.
    class_names: in the order of the labels. split: a `RunSplit`. plugins: PLUGINS. evaluation: published keys of DATA
    that replace the keys in `data` in an evaluation; runs of this program have none. output_names: for a reader, also
    if names of some classes are missing; None if there are none. built_for: the image size with which timm built the
    model, if it is another one. decision: see there. kwargs: keys of MODEL.KWARGS that the file of another program
    states. gone_labels: the option that is gone and gave the run its labels, and what replaces it.
    """

    source: str
    model: Values
    data: Values
    class_names: list[str] | None = None
    num_classes: int | None = None
    split: Any = None
    plugins: tuple[str, ...] = ()
    evaluation: Values = field(default_factory=dict)
    output_names: list[str] | None = None
    built_for: Any = None
    decision: Decision = UNDECIDED
    sources: dict[str, str] = field(default_factory=dict)
    kwargs: Values = field(default_factory=dict)
    gone_labels: str = ""

    @property
    def is_own(self) -> bool:
        """Returns whether the weights are of a run of this program."""
        return "DATASET" in self.data

    @property
    def preprocessing(self) -> Values:
        """The keys of DATA that an evaluation must share with the training."""
        return only(self.data, PREPROCESSING)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images of these weights; None if they do not state it."""
        size = self.built_for
        if self.model and not size:
            size = self.data.get("IMAGE_SIZE")
        data = data_of_size(size)
        return data.input_size if data else None

    def source_of(self, key: str) -> str:
        return self.sources.get(key, self.source)

    def is_of(self, data: Data) -> bool:
        """Returns whether these data were the training data: only images that were held out may count then."""
        then = self.data.get("DATA_PATH")
        if (self.data.get("DATASET"), self.data.get("KWARGS")) != (data.dataset, data.kwargs):
            return False
        return isinstance(then, str) and "\0" not in then and os.path.realpath(then) == os.path.realpath(data.data_path)


NO_RECORD = WeightsRecord("", {}, {})


def data_of_size(stated: Any) -> Data | None:
    """DATA with an image size that a file states; None if it is none."""
    try:
        return Data.model_validate({"IMAGE_SIZE": stated})
    except ValidationError:
        return None


@dataclass(frozen=True)
class Followed:
    """Options that follow weights.

    notes: lines for the log. sources: of the preprocessing, 'SOURCE: IMAGE_SIZE, ...; default: INTERPOLATION'.
    differing: a warning for each key of the preprocessing whose given value differs from the weights.
    """

    options: Config
    notes: list[Note]
    sources: str
    differing: dict[str, Note]


def follow_weights(
    options: Config,
    given: Collection[str],
    record: WeightsRecord,
    evaluates: bool = False,
    as_published: bool = True,
) -> Followed:
    """Lets options that are not given follow the weights: the preprocessing; in an evaluation also model and split.

    given: the dotted keys that the user wrote. as_published: an evaluation has the published test preprocessing.
    Raises UserError: the weights describe no model of this version; their preprocessing contradicts the given one.
    """
    notes = []
    of_data = keys_in_section("DATA", given)
    of_model = keys_in_section("MODEL", given)
    model = options.model
    data = options.data
    if record.kwargs and isinstance(model, TimmModel):
        stated = ", ".join(f"{key} {value}" for key, value in record.kwargs.items())
        notes.append(Note("screen", f"Model: {stated} (MODEL.KWARGS), of the file"))
        model = model.changed(kwargs=record.kwargs | (model.kwargs or {}))
    if evaluates and record.model:
        if of_model <= OF_EVERY_MODEL:
            model = model_follows_weights(record, model, of_model)
            notes.append(Note("log", f"Model: {model.name}, as the checkpoint describes it"))
        if model.num_classes is None:
            model = model.changed(num_classes=record.num_classes)
        data = split_follows_weights(record, data, of_data)
    options = options.changed(model=model, data=data)
    return preprocessing_follows_weights(record, options, of_data, notes, evaluates and as_published)


def keys_in_section(section: str, given: Collection[str]) -> set[str]:
    """The keys of a section among dotted keys."""
    return {key.removeprefix(f"{section}.") for key in given if key.startswith(f"{section}.")}


def model_follows_weights(record: WeightsRecord, model: Model, given: Collection[str]) -> Model:
    """In an evaluation, MODEL is the section of the training, unless a key of the architecture is given."""
    kept = {"PRETRAINED", "RESUME", *given} - {FREEZE_BACKBONE}
    values = architecture(record.model) | {key: getattr(model, key.lower()) for key in kept}
    try:
        return MODEL_SECTIONS[values["TYPE"]].model_validate(values)
    except (KeyError, TypeError, ValidationError):
        raise UserError(
            f"{model.pretrained}: its options describe no model of this version; give the model with -cfg"
        ) from None


def split_follows_weights(record: WeightsRecord, data: Data, given: Set[str]) -> Data:
    """In an evaluation of the training data, the split is the training's; DATA.MULTI_LABEL is the training's, too."""
    changes = {}
    if record.is_of(data):
        keys = {"SPLIT_SEED"} - given
        if given.isdisjoint(("VAL_FRACTION", "FOLDS")):
            keys |= {"VAL_FRACTION", "FOLDS", "FOLD"}
        changes = {key.lower(): record.data[key] for key in keys if key in record.data}
    if properties_of(data.dataset).multi_label and "MULTI_LABEL" not in given:
        changes["multi_label"] = record.data.get("MULTI_LABEL") is True
    return data.changed(**changes)


def prediction_needs_no_labels(
    options: Config, given: Collection[str], record: WeightsRecord, has_path: bool
) -> Config:
    """In a prediction, unusable images are skipped; images of a path have labels of the training's number and kind.

    given: the dotted keys of given options: DATA.MULTI_LABEL=false among them gives one label.
    """
    changes: Values = {"on_bad_image": "skip"}
    options = options.changed(eval=options.eval.changed(save_logits=False))
    if has_path:
        options = options.with_model(num_classes=options.model.num_logits)
        has_one_label = "DATA.MULTI_LABEL" in given and not options.data.multi_label
        if record.data.get("MULTI_LABEL") is True and not has_one_label:
            changes |= {"dataset": record.data.get("DATASET", "csv"), "multi_label": True}
    return options.with_data(**changes)


def preprocessing_follows_weights(
    record: WeightsRecord, options: Config, given: Collection[str], notes: list[Note], as_published: bool
) -> Followed:
    """Keys of the preprocessing that are not given follow the checkpoint or the weights; with
    -cfg=configs/programs/timm.yaml and no weights, timm's published configuration of the model.

    as_published: with the published test size, test crop and crop mode. DATA.RESIZE squash and pad have a CROP_PCT in
    this case only: a run of this program shows the whole image.
    """
    test = record.evaluation if as_published else {}
    trained = {key: as_tuple(value) for key, value in (record.preprocessing | test).items()}
    now = options.data.model_dump(by_alias=True)
    taken = trained.keys() - given
    data = _with_preprocessing(now | {key: trained[key] for key in taken}, record)
    may_crop = "CROP_PCT" in given or test.get("RESIZE") == data.resize
    shows_published = as_published and not record.is_own and may_crop
    if data.resize != "crop" and not shows_published:
        data = data.changed(crop_pct=1.0)
    differing = {}
    stated = []
    for key, value in trained.items():
        if now[key] == value:
            continue
        if key in given:
            text = f"DATA.{key} is {format_value(now[key])}, but {record.source_of(key)} has {format_value(value)}"
            differing[key] = Note("warning", f"other pixels than the weights expect: {text}")
        elif key in record.sources:
            stated.append(f"{key} {format_value(value)}")
    if stated:
        source = next(iter(record.sources.values()))
        notes.append(Note("screen", f"Preprocessing of {source}: {', '.join(stated)}"))
    sources = dict.fromkeys(given, "options") | {key: record.source_of(key) for key in taken}
    return Followed(options.changed(data=data), notes, _describe_sources(sources), differing)


def _describe_sources(sources: dict[str, str]) -> str:
    """The keys of the preprocessing by their source."""
    by_source: dict[str, list[str]] = {}
    for key in PREPROCESSING:
        by_source.setdefault(sources.get(key, "default"), []).append(key)
    return "; ".join(f"{source}: {', '.join(of_source)}" for source, of_source in by_source.items())


def _with_preprocessing(values: Values, record: WeightsRecord) -> Data:
    """Raises UserError: a key that the weights state is invalid, or contradicts the given ones."""
    try:
        return Data.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(map(str, first["loc"][:1]))  # "" of a contradiction between keys
        problem = first["msg"].removeprefix("Value error, ")
        source = record.source_of(key)
        if key:
            value = shorten(values[key])
            raise UserError(f"DATA.{key} is {value} in {source}: {problem}; set DATA.{key}") from None
        raise UserError(f"DATA.{problem}, with the values of {source}; write all of these keys") from None


def options_to_export(options: Values) -> Values:
    """The part of the options of a run that travels with its weights; of plugins, the names and the hashes."""
    model = architecture(options["MODEL"]) | {"NUM_CLASSES": options["MODEL"].get("NUM_CLASSES")}
    data = {key: value for key, value in options["DATA"].items() if key in (*PLACE, *SPLIT, *PREPROCESSING)}
    plugins = [os.path.basename(entry) for entry in options.get("PLUGINS") or ()]
    exported = {"MODEL": model, "DATA": data, "PLUGINS": plugins or None, WRITTEN_BY: options.get(WRITTEN_BY)}
    return without_none(exported)


def weight_options(weights: str) -> Values:
    """The options in the metadata of `weights`; {} for a file of another program, or a damaged one."""
    weights = weight_file(weights)
    try:
        return options_to_export(json.loads(read_metadata(weights)[OPTIONS_ENTRY]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def architecture(model: Values) -> Values:
    """The section MODEL without the keys that belong to a run: classes, paths of weights, adapters."""
    own = without(model, _OF_THE_RUN)
    return {key: value for key, value in own.items() if not is_gone_value(f"MODEL.{key}", value)}


def described_model(config: Values) -> Values:
    """The section MODEL of a config.json that timm or transformers wrote."""
    if not is_of_timm(config):
        name = (config.get("architectures") or [config["model_type"]])[0]
        return {"TYPE": "transformers", "NAME": name, "KWARGS": without(config, _OF_THE_FOLDER)}
    arguments = {"global_pool": config["pretrained_cfg"].get("global_pool")} | config["model_args"]
    kwargs = without(without_none(arguments), OWN_KEYS)
    return {"TYPE": "timm", "NAME": config["architecture"], "KWARGS": kwargs, "NUM_CLASSES": config.get("num_classes")}


WEIGHT_RULES = (model_follows_weights, split_follows_weights, prediction_needs_no_labels, preprocessing_follows_weights)
