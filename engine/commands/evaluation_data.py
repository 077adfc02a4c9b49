"""The data of an evaluation: its samples, with the class names and the preprocessing of the checkpoint."""

import numpy as np
from pydantic import ValidationError

from configs.reading.prediction import Prediction, Split
from configs.schema import Config, Data
from datasets.registry import UNSPLIT, has_splits, read_samples, read_unlabelled, resolve_grey_range
from datasets.sources.class_names import number_of_classes
from datasets.sources.image_checks import check_images
from datasets.sources.samples import Samples
from engine.checkpoint.trained_on import TrainedOn, read_trained_on, resolve_path
from engine.commands.evaluated_model import name_classes, with_model_of
from utils.distributed import ProcessContext
from utils.errors import UserError


def read_evaluation_data(
    config: Config, context: ProcessContext, split: Split | None = None, prediction: Prediction | None = None
) -> tuple[Config, Samples, list[str]]:
    """Reads the samples to evaluate the weights `MODEL.PRETRAINED` on, or those of a prediction.

    `split` None: the validation split of the data of the training, else all images.

    Labels follow the class names of the checkpoint. Options that the user did not write follow its preprocessing, its
    number of classes and, if the user named no model, its architecture. `Samples.class_names` are then those of the
    model. Every rank must call it.

    Returns:
        the completed options, the samples, and lines for the log.
    Raises:
        UserError: as `read_samples` and `check_images`; no such weights; a preprocessing that contradicts the options.
            In a prediction, missing and unreadable images are no errors.
    """
    downloaded = config.model.type == "timm" and config.model.pretrained == "timm"
    trained_on = None if downloaded else read_trained_on(config.model.pretrained)
    data, notes = config.data, []
    if trained_on:
        data, notes = _with_values_of(trained_on, data)
        config, model_notes = with_model_of(trained_on, config)
        notes += model_notes
    num_classes = config.model.num_classes
    if num_classes is None and trained_on:
        num_classes = trained_on.num_classes
    read_split = _split_of(data, trained_on, split)
    if prediction:
        data = _for_prediction(data, trained_on, prediction)
    if prediction and prediction.path:
        samples = read_unlabelled(prediction.path, data, context)
        num_classes = num_classes or config.model.num_logits
    else:
        names = trained_on.class_names if trained_on else None
        (samples,) = read_samples(
            data, num_classes, context, read_split, class_names=names, predicts=prediction is not None
        )
    data = resolve_grey_range(data, [samples], context)
    if not prediction:
        check_images([samples], data, context, config.timeout_seconds)
    if num_classes is None:
        num_classes = number_of_classes(data.dataset, [samples])
    notes += [f"Data: {note}" for note in samples.notes]
    is_split = split or data.dataset in UNSPLIT
    notes.append(_describe(samples, num_classes, prediction, read_split if is_split else None))
    train = config.train.with_short_warmup()
    config = config.model_copy(update={"data": data, "train": train}).with_model(num_classes=num_classes)
    notes.append(name_classes(samples, trained_on, config.model))
    return config, samples, notes


def _for_prediction(data: Data, trained_on: TrainedOn | None, prediction: Prediction) -> Data:
    """Unusable images never end a prediction. Images of a path have the kind of labels of the training."""
    changes = {"on_bad_image": "skip"}
    if prediction.path and trained_on and trained_on.data.get("MULTI_LABEL") is True:
        changes |= {"dataset": "csv", "multi_label": True}
    return data.model_copy(update=changes)


def _describe(samples: Samples, num_classes: int, prediction: Prediction | None, split: str | None) -> str:
    if prediction and prediction.path:
        return f"Data: {len(samples)} images of {prediction.path}"
    present = np.count_nonzero(samples.class_counts(num_classes))
    names = {"val": ": the validation split", "train": ": the training split", "test": ": the test split"}
    return f"Data: {len(samples)} images of {present} of {num_classes} classes{names.get(split, '')}"


def _split_of(data: Data, trained_on: TrainedOn | None, asked: Split | None) -> Split:
    """The split to read: 'all' unless the user asks for one, or the data are those of the training.

    Raises:
        UserError: `-split all` of data that comes in splits.
    """
    if asked:
        if asked == "all" and has_splits(data):
            raise UserError(f"-split all: {data.dataset} comes in splits; give one of them, or a folder to -predict")
        return asked
    return "val" if _is_trained_on(data, trained_on) or _asks_for_split(data, trained_on) else "all"


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

    For the data of the training, the split is that of the training, too; for a table, DATA.MULTI_LABEL.
    """
    changes, warnings = {}, []
    if _is_trained_on(data, trained_on):
        changes = {
            option: trained_on.data[option.upper()]
            for option in ("val_fraction", "split_seed")
            if option not in data.model_fields_set and option.upper() in trained_on.data
        }
    if data.dataset == "csv" and "multi_label" not in data.model_fields_set:
        changes["multi_label"] = trained_on.data.get("MULTI_LABEL") is True
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
