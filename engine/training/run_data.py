"""The data of a training run, and the options that depend on it: the only place that completes the options."""

from collections.abc import Sequence
from dataclasses import dataclass

from configs.schema import Config
from datasets.registry import read_samples
from datasets.sources.class_names import number_of_classes
from datasets.sources.image_checks import check_images
from datasets.sources.samples import Samples
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class RunData:
    """The samples of both splits, and warnings about options that do not fit them."""

    train: Samples
    val: Samples
    warnings: list[str]

    @property
    def class_names(self) -> list[str] | None:
        return self.train.class_names if self.train.has_class_names else None


def read_run_data(
    config: Config, context: ProcessContext, class_names: Sequence[str] | None = None
) -> tuple[Config, RunData]:
    """Reads the samples; returns them and the options with the data's number of classes and a warm-up that fits.

    Every rank must call it. `class_names` are those of the checkpoint from which the run resumes.

    Raises:
        UserError: as `read_samples` and `check_images`.
    """
    model, data = config.model, config.data
    splits = read_samples(data, model.num_classes, context, "train", "val", class_names=class_names)
    check_images(splits, data, context, config.timeout_seconds)
    number = number_of_classes(data.dataset, splits)
    warnings = []
    if model.num_classes is None:
        config = config.with_model(num_classes=number)
    elif model.num_classes > number and splits[0].has_class_names:
        warnings.append(
            f"MODEL.NUM_CLASSES is {model.num_classes}, but the data has {number} classes; remove the key to train "
            f"{number}"
        )
    train = config.train.with_short_warmup()
    if train != config.train:
        warnings.append(
            f"TRAIN.WARMUP_EPOCHS is {train.warmup_epochs:g}: its default, {config.train.warmup_epochs:g}, exceeds "
            f"NUM_EPOCHS {train.num_epochs}"
        )
        config = config.model_copy(update={"train": train})
    return config, RunData(*splits, warnings)
