"""The data of a training run, and the options that depend on it: the only place that completes the options."""

from dataclasses import dataclass
from typing import Any

from configs.reading.yaml_io import parse_value
from configs.resolve import accumulation_steps
from configs.schema import Config
from datasets.loading.balanced import describe_balance
from datasets.loading.batches import BatchSource, build_train_batches, shard_windows
from datasets.loading.shard_order import describe_shuffle
from datasets.registry import has_test_split, read_samples, resolve_grey_range
from datasets.sources.class_names import number_of_classes
from datasets.sources.image_checks import check_images
from datasets.sources.samples import Samples
from engine.checkpoint.epoch_layout import EpochLayout
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class RunData:
    """The samples of the splits, their class names if there are any, and warnings about options that do not fit.

    accum_iter: gradient accumulation steps, by `accumulation_steps`; the options keep those that the user gave.
    test: held-out samples, for the end of the run; None if there are none.
    """

    train: Samples
    val: Samples
    class_names: list[str] | None
    warnings: list[str]
    accum_iter: int
    test: Samples | None = None


def read_run_data(
    config: Config, context: ProcessContext, checkpoint: dict[str, Any] | None = None
) -> tuple[Config, RunData]:
    """Reads the samples; returns them and the completed options.

    These have the data's number of classes, a warm-up that fits, and the numbers of DATA.GREY_RANGE: auto. A run that
    resumes from `checkpoint` keeps its class names and its gray range. Every rank must call it.

    Raises:
        UserError: as `accumulation_steps`, `read_samples` and `check_images`.
    """
    accum_iter = accumulation_steps(config, context.world_size)
    known = checkpoint["class_names"] if checkpoint else None
    data = config.data
    if checkpoint and data.grey_range == "auto":
        data = data.model_copy(update={"grey_range": trained_grey_range(checkpoint, data.grey_range)})
    has_test, note = has_test_split(data, context)
    names = ("train", "val", "test") if has_test else ("train", "val")
    splits = read_samples(data, config.model.num_classes, context, *names, class_names=known)
    train, val, *test = splits
    train.notes += [note] if note else []
    check_images(splits, data, context, config.timeout_seconds)
    config = config.model_copy(update={"data": resolve_grey_range(data, splits, context)})
    config, warnings = _complete(config, splits)
    if data.balanced_sampling:
        train.notes.append(describe_balance(train.targets, train.class_names, data.repeated_augmentation))
    elif windows := shard_windows(train, data):
        train.notes.append(describe_shuffle(windows, config.seed))
    class_names = train.class_names if train.has_class_names else known
    return config, RunData(train, val, class_names, warnings, accum_iter, *test)


def build_batches(config: Config, samples: RunData, context: ProcessContext) -> tuple[BatchSource, EpochLayout]:
    """The training batches of this rank, and how they are divided into steps."""
    data, accum_iter, whole_steps = config.data, samples.accum_iter, config.data.global_batch_size is not None
    batches = build_train_batches(
        data,
        config.train,
        samples.train,
        config.seed,
        context,
        config.timeout_seconds,
        batches_per_step=accum_iter if whole_steps else 1,
    )
    samples.train.notes.append(batches.workers_note)
    windows = shard_windows(samples.train, data)
    layout = EpochLayout(
        batches.num_samples,
        data.batch_size * context.world_size,
        accum_iter,
        config.seed,
        data.repeated_augmentation,
        whole_steps,
        windows.size if windows else 0,
        windows.crc if windows else 0,
    )
    return batches, layout


def trained_grey_range(checkpoint: dict[str, Any], default: Any) -> Any:
    """DATA.GREY_RANGE in the options of a checkpoint, or `default` if they lack it."""
    value = parse_value(checkpoint["options"]).get("DATA", {}).get("GREY_RANGE", default)
    return tuple(value) if isinstance(value, list) else value


def _complete(config: Config, splits: list[Samples]) -> tuple[Config, list[str]]:
    """The options with a number of classes and a warm-up that fit, and warnings."""
    model, warnings = config.model, []
    number = number_of_classes(config.data.dataset, splits)
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
    elif train.warmup_epochs > train.num_epochs / 2:
        warnings.append(
            f"TRAIN.WARMUP_EPOCHS is {train.warmup_epochs:g}, more than half of NUM_EPOCHS {train.num_epochs}; lower "
            f"it, such as to {train.num_epochs / 10:g}"
        )
    return config, warnings
