"""What can be told of samples before the first image is opened: findings that end a run, notes for its log."""

import numpy as np

from configs.schema import Config
from datasets.sources.samples import ImageFiles, Samples
from utils.distributed import ProcessContext


def findings_of(samples: Samples, split: str, config: Config, context: ProcessContext) -> list[str]:
    """A line for each mistake. Only the main process looks for the files: many ranks would be a storm on their disk."""
    findings = samples.findings + _labels_without_class(samples, split, config.model.num_classes)
    if split == "train" and not samples.findings:
        findings += _less_than_a_batch(len(samples), config, context)
    if context.is_main:
        findings += samples.check_files()
    return findings


def _labels_without_class(samples: Samples, split: str, num_classes: int) -> list[str]:
    places = np.flatnonzero(samples.targets >= num_classes)
    if not len(places):
        return []
    first, highest = places[0], samples.targets.max()
    return [
        f"{samples.where(first)}: label {samples.targets[first]}; {split} has {len(places)} labels up to {highest}, "
        f"but MODEL.NUM_CLASSES is {num_classes}; set it to {highest + 1} or more, or correct them"
    ]


def _less_than_a_batch(num_samples: int, config: Config, context: ProcessContext) -> list[str]:
    batch_size = config.data.batch_size
    if num_samples >= batch_size * context.world_size:
        return []
    return [
        f"{config.data.dataset}: {num_samples} training samples do not fill one batch of {batch_size} "
        f"on {context.world_size} device(s); lower -batch_size"
    ]


def notes_on(train: Samples, val: Samples) -> list[str]:
    """A line for each thing that may be meant: what the reading noted, classes without images, images in both."""
    notes = list(dict.fromkeys(train.notes + val.notes))  # two splits of one list have the same
    counts = np.bincount(train.targets, minlength=len(train.class_names))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        example = train.class_names[empty[0]]
        notes.append(f"{len(empty)} of {len(counts)} classes have no training image, such as {example!r}")
    if isinstance(train, ImageFiles) and isinstance(val, ImageFiles) and train.root == val.root:
        shared = _in_both(train, val)
        if shared:
            notes.append(f"{len(shared)} image(s) are in train and in val, such as {min(shared)!r}")
    return notes


def _in_both(train: ImageFiles, val: ImageFiles) -> set[str]:
    """Paths; only those whose checksums are in both are looked at."""
    in_val = np.isin(train.path_crcs, val.path_crcs)
    in_train = np.isin(val.path_crcs, train.path_crcs[in_val])
    of_train, of_val = train.paths.at(np.flatnonzero(in_val)), val.paths.at(np.flatnonzero(in_train))
    return set(of_train).intersection(of_val)
