"""The options and the class names of an evaluation that follow its weights."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import get_pretrained_cfg

from configs.data_sets import DATA_SETS
from configs.reading.model_options import architecture
from configs.schema import Config, Data, Model
from configs.schema.families.registry import MODEL_SECTIONS
from datasets.sources.samples import Samples
from engine.checkpoint.trained_on import TrainedOn
from utils.errors import UserError

_OF_EVERY_MODEL = {field.alias for field in Model.model_fields.values()} - {"TYPE", "NAME"}


def with_checkpoint_options(trained_on: TrainedOn, config: Config, given: dict[str, Any]) -> tuple[Config, list[str]]:
    """The options with the architecture, the classes and the split of the checkpoint, and lines for the log.

    given: the options of the user, by section; they have priority over the checkpoint.

    Raises:
        UserError: the checkpoint describes no model.
    """
    data, notes = _with_split_of(trained_on, config.data, given.get("DATA", {})), list[str]()
    model = config.model
    if given.get("MODEL", {}).keys() <= _OF_EVERY_MODEL:
        model = _with_architecture_of(trained_on, model, given.get("MODEL", {}))
        notes.append(f"Model: {model.name}, as the checkpoint describes it")
    if model.num_classes is None:
        model = model.model_copy(update={"num_classes": trained_on.num_classes})
    return config.model_copy(update={"data": data, "model": model}), notes


def _with_architecture_of(trained_on: TrainedOn, model: Model, given: dict[str, Any]) -> Model:
    kept = {"PRETRAINED", "RESUME", *given}
    values = architecture(trained_on.model) | {key: getattr(model, key.lower()) for key in kept}
    try:
        return MODEL_SECTIONS[values["TYPE"]].model_validate(values)
    except (KeyError, TypeError, ValidationError):
        raise UserError(
            f"{model.pretrained}: its options describe no model of this version; give the model with -cfg"
        ) from None


def _with_split_of(trained_on: TrainedOn, data: Data, given: dict[str, Any]) -> Data:
    """DATA with the split of the training, if it is the training data. A table has DATA.MULTI_LABEL of the training."""
    changes: dict[str, Any] = {}
    if is_training_data(data, trained_on):
        keys = {"SPLIT_SEED"} - given.keys()
        keys |= set() if {"VAL_FRACTION", "FOLDS"} & given.keys() else {"VAL_FRACTION", "FOLDS", "FOLD"}
        changes = {key.lower(): trained_on.data[key] for key in keys if key in trained_on.data}
    if DATA_SETS[data.dataset].multi_label and "MULTI_LABEL" not in given:
        changes["multi_label"] = trained_on.data.get("MULTI_LABEL") is True
    return data.model_copy(update=changes)


def is_training_data(data: Data, trained_on: TrainedOn) -> bool:
    """Returns whether the checkpoint was trained on these data: only images that were held out may count then."""
    if trained_on.data.get("DATASET") != data.dataset:
        return False
    return _resolved(trained_on.data.get("DATA_PATH")) == _resolved(data.data_path)


def _resolved(path: Any) -> str | None:
    """The path of a data folder with links resolved, None if it is not a path."""
    try:
        return str(Path(path).resolve())
    except (TypeError, ValueError, OSError, RuntimeError):
        return None


def name_classes(samples: Samples, trained_on: TrainedOn | None, model: Model) -> str:
    """Gives the samples the class names of the model; returns a line for the log.

    The checkpoint names the classes, else the data. Weights that timm publishes for ImageNet-1k have the
    descriptions that timm ships. Other weights with 1000 classes may be of any data: their names are the labels.
    """
    if trained_on and trained_on.class_names:
        names, source = trained_on.class_names, "from the checkpoint"
    elif samples.has_class_names:
        names, source = samples.class_names, "from the data, in their order"
    elif subset := _imagenet_subset(model):
        info = ImageNetInfo(subset)
        names, source = [info.index_to_description(label) for label in range(info.num_classes())], f"timm's of {subset}"
    else:
        return "Class names: the labels, since the weights have no names"
    samples.class_names, samples.has_class_names = names, True
    return f"Class names: {source}"


def _imagenet_subset(model: Model) -> str | None:
    """timm's name of the part of ImageNet on which a published model of timm's was trained; None for other models."""
    if model.type != "timm" or model.pretrained != "timm":
        return None
    published = get_pretrained_cfg(model.name)
    if published is None or published.num_classes != model.num_classes:
        return None
    return infer_imagenet_subset(published)
