"""A part of the images of a data set: DATA.FRACTION of the training images, and the images of DATA.ONLY_CLASSES."""

from collections.abc import Sequence

import numpy as np

from configs.schema import Data
from configs.yaml_io import find_name, shorten
from datasets.sources.class_names import list_names, map_labels
from datasets.sources.samples import Samples
from datasets.sources.split import hash_paths, most_frequent, places_in_classes
from utils.errors import UserError, did_you_mean
from utils.notes import Note


def take_share(samples: Samples, data: Data) -> Samples:
    """DATA.FRACTION of the images of each class, at least one, by the hashes of their paths: a smaller share is inside.

    With DATA.GROUPS whole groups are taken, each counts in its most frequent class; of images with several labels, the
    share is one of all images. DATA.SPLIT_SEED is the seed.
    """
    _, unit_of = np.unique(hash_paths(samples.groups or samples.paths, data.split_seed), return_inverse=True)
    is_multi_label = samples.targets.ndim == 2
    labels = np.zeros(len(samples), np.int64) if is_multi_label else samples.targets
    place, sizes = places_in_classes(most_frequent(labels, unit_of))
    is_taken = place < np.maximum(np.round(sizes * data.fraction), 1)
    share = samples.select(np.flatnonzero(is_taken[unit_of]))
    share.notes.append(Note("log", f"DATA.FRACTION {data.fraction:g}: {len(share)} of {len(samples)} training images"))
    return share


def take_classes(samples: Samples, names: Sequence[str]) -> Samples:
    """The images of the classes `names`, which become the classes, in the order of the data.

    Raises UserError: the data have no names of classes, lack one of `names` or images of them, or have several labels
    per image.
    """
    if samples.targets.ndim == 2 or not samples.has_class_names:
        raise UserError("DATA.ONLY_CLASSES: needs one label per image and names of classes; remove it")
    names = [find_name(name, samples.class_names) for name in names]
    for name in sorted({*names}.difference(samples.class_names)):
        hint = did_you_mean(name, samples.class_names)
        raise UserError(f"DATA.ONLY_CLASSES: the data have no class {shorten(name)}{hint}")
    kept = [name for name in samples.class_names if name in names]
    new_label = map_labels(samples.class_names, kept, "DATA.ONLY_CLASSES")
    part = samples.select(np.flatnonzero(new_label[samples.targets] >= 0))
    if not len(part):
        raise UserError(f"DATA.ONLY_CLASSES: a split has no image of {list_names(kept)}; name other classes")
    part.number_classes(new_label, kept)
    part.notes.append(Note("log", f"DATA.ONLY_CLASSES: {len(part)} of {len(samples)} images"))
    return part
