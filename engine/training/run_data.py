"""The data of a training run, and the options that follow from it."""

from dataclasses import dataclass
from typing import Any

from configs.batch_plan import plan_batches
from configs.reading.yaml_io import parse_value
from configs.rules import DataFacts, resolve, warnings
from configs.schema import Config, Data
from configs.weights import NORMALIZATION, Followed, follow
from datasets.loading.batches import BatchSource, build_train_batches, shard_windows
from datasets.registry import has_test_split, read_samples
from datasets.sources.class_names import number_of_classes
from datasets.sources.files.image_checks import check_images
from datasets.sources.samples import Samples
from datasets.sources.split import RunSplit, Splitter
from engine.checkpoint.epoch_layout import EpochLayout
from engine.checkpoint.weights_record import record_of, weights_record
from engine.parallel.same_options import check_same_options
from engine.run.facts import Preprocessing
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class DataSplits:
    """The samples of each split, the class names if there are any, and warnings about options that do not fit.

    split: of data without a validation split; None if the data has one. test: held-out samples, for the end of the run;
    None if there are none.
    """

    train: Samples
    val: Samples
    class_names: list[str] | None
    warnings: list[str]
    preprocessing: Preprocessing
    split: RunSplit | None
    test: Samples | None = None


def read_run_data(
    config: Config, context: ProcessContext, checkpoint: dict[str, Any] | None = None
) -> tuple[Config, DataSplits]:
    """Reads the samples; returns them and the options as `resolve` completes them.

    A run that resumes from `checkpoint` keeps its class names and its split. Options of the preprocessing that are not
    set follow the checkpoint, or the weights. Every rank must call it.

    Raises:
        UserError: as `resolve`, `read_samples` and `check_images`.
    """
    config = resolve(config, None, context.world_size)  # a wrong global batch ends the run before the data is read
    known = checkpoint["class_names"] if checkpoint else None
    record = record_of(checkpoint, parse_value(checkpoint["options"])) if checkpoint else weights_record(config.model)
    followed = follow(config, {"DATA": {field.upper() for field in config.data.model_fields_set}}, record)
    config, data = followed.options, followed.options.data
    has_test, note = has_test_split(data, context)
    names = ("train", "val", "test") if has_test else ("train", "val")
    splitter = Splitter(data, record.split if record and checkpoint else None)
    splits = read_samples(data, config.model.num_classes, context, *names, class_names=known, splitter=splitter)
    train, val, *test = splits
    train.notes += [note] if note else []
    if not checkpoint:  # it names all options that differ; a fine-tuning may change the image size and the crop
        train.notes += [followed.differing[key] for key in NORMALIZATION if key in followed.differing]
    check_images(splits, data, context)
    facts = data_facts(data, splits)
    config = resolve(config, facts, context.world_size)
    check_same_options(config, context)
    if not data.batch_size:
        from engine.training.batch_size import find_batch_size  # imported late: evaluations do not need the training

        config, note = find_batch_size(config, context)
        config = resolve(config, facts, context.world_size)
        train.notes.append(note)
    if data.balanced_sampling:
        sizes = [size for size in train.class_counts(len(train.class_names)).tolist() if size]
        places = len(train) / data.repeated_augmentation / len(sizes)
        train.notes.append(
            f"balanced sampling: {places:,.0f} per class and epoch, of classes with {min(sizes)} to {max(sizes)} images"
        )
    elif windows := shard_windows(train, data):
        shards = len(windows.ends)
        window = min(windows.size, shards)
        train.notes.append(f"samples are shuffled within {window} of {shards} shards (DATA.SHUFFLE_SHARDS)")
    class_names = train.class_names if train.has_class_names else known
    return config, DataSplits(
        train=train,
        val=val,
        class_names=class_names,
        warnings=warnings(config, facts),
        preprocessing=describe_preprocessing(followed),
        split=splitter.result,
        test=test[0] if test else None,
    )


def describe_preprocessing(followed: Followed) -> Preprocessing:
    """The fact about the preprocessing of options that follow weights."""
    data = followed.options.data
    return Preprocessing(
        image_size=data.image_size,
        crop_pct=data.crop_pct,
        interpolation=data.interpolation,
        mean=list(data.imagenet_mean),
        std=list(data.imagenet_std),
        sources=followed.sources,
        resize=data.resize,
    )


def data_facts(data: Data, splits: list[Samples]) -> DataFacts:
    """The facts of a data set that `resolve` needs."""
    return DataFacts(number_of_classes(data.dataset, splits), splits[0].has_class_names)


def build_batches(config: Config, splits: DataSplits, context: ProcessContext) -> tuple[BatchSource, EpochLayout]:
    """The training batches of this rank, and how they are divided into steps."""
    data, batch = config.data, plan_batches(config, context.world_size)
    batches = build_train_batches(
        data,
        config.train,
        splits.train,
        config.seed,
        context,
        config.timeout_seconds,
        batches_per_step=batch.accumulation if batch.whole_steps else 1,
    )
    splits.train.notes.append(batches.workers_note)
    windows = shard_windows(splits.train, data)
    layout = EpochLayout(
        samples=batches.num_samples,
        batch=batch,
        seed=config.seed,
        repeats=data.repeated_augmentation,
        shuffle_shards=windows.size if windows else 0,
        shards_crc=windows.crc if windows else 0,
        balanced=data.balanced_sampling,
    )
    return batches, layout
