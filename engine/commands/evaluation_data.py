"""The data of an evaluation: its samples, with the class names and the preprocessing of the checkpoint."""

import numpy as np
from pydantic import ValidationError

from configs.schema import Config, Data
from datasets.registry import UNSPLIT, read_samples, resolve_grey_range
from datasets.sources.class_names import number_of_classes
from datasets.sources.image_checks import check_images
from datasets.sources.samples import Samples
from engine.checkpoint.trained_on import TrainedOn, read_trained_on, resolve_path
from utils.distributed import ProcessContext
from utils.errors import UserError


def read_evaluation_data(config: Config, context: ProcessContext) -> tuple[Config, Samples, list[str]]:
    """Reads the samples to evaluate the weights `MODEL.PRETRAINED` on.

    Labels follow the class names of the checkpoint, and options that the user did not write follow its preprocessing
    and its number of classes. Every rank must call it.

    Returns:
        the completed options, the samples, and lines for the log.
    Raises:
        UserError: as `read_samples` and `check_images`; no such weights; a preprocessing that contradicts the options.
    """
    downloaded = config.model.type == "timm" and config.model.pretrained == "timm"
    trained_on = None if downloaded else read_trained_on(config.model.pretrained)
    data, notes = _with_values_of(trained_on, config.data) if trained_on else (config.data, [])
    num_classes = config.model.num_classes
    if num_classes is None and trained_on:
        num_classes = trained_on.num_classes
    holds_out = _is_trained_on(data, trained_on) or _asks_for_split(data, trained_on)
    (samples,) = read_samples(
        data,
        num_classes,
        context,
        "val" if holds_out else "all",
        class_names=trained_on.class_names if trained_on else None,
    )
    data = resolve_grey_range(data, [samples], context)
    check_images([samples], data, context, config.timeout_seconds)
    if num_classes is None:
        num_classes = number_of_classes(data.dataset, [samples])
    present = len(np.unique(samples.targets))
    notes += [f"Data: {note}" for note in samples.notes]
    notes.append(f"Data: {len(samples)} images of {present} of {num_classes} classes")
    if holds_out and data.dataset in UNSPLIT:
        notes[-1] += ": the validation split"
    train = config.train.with_short_warmup()
    config = config.model_copy(update={"data": data, "train": train}).with_model(num_classes=num_classes)
    return config, samples, notes


def _is_trained_on(data: Data, trained_on: TrainedOn | None) -> bool:
    """Whether the data are those of the training, so that only images that were held out may count."""
    if trained_on is None or trained_on.data.get("DATASET") != data.dataset:
        return False
    return resolve_path(trained_on.data.get("DATA_PATH")) == resolve_path(data.data_path)


def _asks_for_split(data: Data, trained_on: TrainedOn | None) -> bool:
    """Whether the user set VAL_FRACTION for this evaluation: not only for the training, whose config.yaml has it."""
    trained = trained_on.data.get("VAL_FRACTION") if trained_on else None
    return data.val_fraction not in (None, trained)


def _with_values_of(trained_on: TrainedOn, data: Data) -> tuple[Data, list[str]]:
    """The options with the checkpoint's preprocessing, except for those that the user wrote, and warnings.

    For the data of the training, the split is that of the training, too.
    """
    changes, warnings = {}, []
    if _is_trained_on(data, trained_on):
        changes = {
            option: trained_on.data[option.upper()]
            for option in ("val_fraction", "split_seed")
            if option not in data.model_fields_set and option.upper() in trained_on.data
        }
    for option, value in trained_on.preprocessing_options().items():
        trained, now = tuple(value) if isinstance(value, list) else value, getattr(data, option)
        if trained == now:
            continue
        if option in data.model_fields_set and now != "auto":
            warnings.append(f"Warning: DATA.{option.upper()} is {now}, but the checkpoint was trained with {trained}")
        else:
            changes[option] = trained
    values = dict(data) | changes
    try:
        return Data.model_validate({name.upper(): value for name, value in values.items()}), warnings
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"DATA.{problem}, with the checkpoint's values of the other keys; write all of them") from None
