"""Other test sets of models of ImageNet: A and R (Hendrycks et al., 2021), V2 (Recht et al., 2019), and the validation
images with ReaL labels (Beyer et al., 2020).
"""

import os
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo, RealLabelsImagenet, infer_imagenet_subset

from configs.schema import Data
from configs.schema.model import IMAGENET_CLASSES
from datasets.sources.class_names import list_names
from datasets.sources.files.class_folders import find_folder, read_class_folders, read_images
from datasets.sources.files.image_files import ImageFiles, Listing
from utils.errors import UserError

IMAGENET_SETS = ("imagenet-a", "imagenet-r", "imagenet-v2", "imagenet-real")


def imagenet_set(data: Data, split: str) -> ImageFiles:
    """A set of `IMAGENET_SETS`, which is the split 'val'. Its class names are WordNet ids."""
    if split != "val":
        raise UserError(f"{data.data_path}: {data.dataset} has no split {split}; it is for -eval and -predict")
    return ImageFiles(_with_real_labels(data) if data.dataset == "imagenet-real" else _class_folders(data))


def wordnet_ids_of_model(dataset: str, class_names: Sequence[str] | None, num_classes: int | None) -> list[str]:
    """The WordNet id of each class of a model: its checkpoint's class names, or timm's for its number of classes.

    Raises:
        UserError: the model does not have ImageNet's classes.
    """
    number = len(class_names) if class_names else num_classes or IMAGENET_CLASSES
    subset = infer_imagenet_subset({"num_classes": number})
    ids = list(class_names or (ImageNetInfo(subset).label_names() if subset else ()))
    if set(_ids_in(dataset)).isdisjoint(ids):
        raise UserError(f"-dataset={dataset}: needs a model of ImageNet's 1000 classes; the {number} of this one differ")
    return ids


def class_mask(dataset: str, class_names: Sequence[str]) -> np.ndarray | None:
    """Tells which classes of a model the images of `dataset` may have, bool (classes,); None: any class."""
    return np.isin(class_names, _ids_in(dataset)) if dataset in IMAGENET_SETS else None


def _ids_in(dataset: str) -> list[str]:
    """The WordNet ids of the classes of a set: ImageNet-1k's, or 200 of them."""
    if dataset in ("imagenet-a", "imagenet-r"):
        ids = pkgutil.get_data("timm.data", f"_info/{dataset.replace('-', '_')}_synsets.txt")
        assert ids
        return ids.decode().split()
    return list(ImageNetInfo().label_names())


def _class_folders(data: Data) -> Listing:
    """The class folders in DATA_PATH, whose names are WordNet ids or, as in V2, the labels from 0 to 999."""
    listing, known = read_class_folders(Path(data.data_path)), _ids_in(data.dataset)
    ids = {str(label): wordnet_id for label, wordnet_id in enumerate(ImageNetInfo().label_names())}
    names = [ids.get(name, name) for name in listing.class_names]
    if unknown := [name for name in names if name not in known]:
        listing.findings.append(
            f"{listing.root}: {list_names(unknown)}: not a class of {data.dataset}; name the folders by WordNet id "
            f"({known[0]}, ...) or number (0 to 999), or choose another -dataset"
        )
    return replace(listing, class_names=names)


def _with_real_labels(data: Data) -> Listing:
    """The images in DATA_PATH/val or DATA_PATH with multi-hot targets: any of the labels of an image is right.

    The labels are in DATA_PATH/real.json, or else timm's. Images without a label do not count.
    """
    listing, own = read_images(find_folder(data.data_path, "val")), Path(data.data_path) / "real.json"
    file = str(own) if own.exists() else None
    names = [os.path.basename(path) for path in listing.paths]
    targets = np.zeros((len(names), IMAGENET_CLASSES), dtype=np.int8)
    try:
        labels_of = RealLabelsImagenet(names, file).real_labels
        for row, name in zip(targets, names, strict=True):
            row[labels_of[name]] = 1
    except AssertionError:
        labels = f"{file}: has" if file else "timm has"
        number = f"other than {len(names)} images, which {listing.root} has"
        raise UserError(f"{labels} ReaL labels of {number}; restore the images or the file") from None
    except KeyError as error:
        problem = f"{error} is not a validation image of ImageNet (ILSVRC2012_val_00000001.JPEG, ...)"
        raise UserError(f"{listing.root}: {problem}; restore its name or remove it") from None
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(f"{file}: is not a list of lists of labels ({error}); download it again") from None
    labelled = np.flatnonzero(targets.any(axis=1))
    listing.notes.append(f"{len(names) - len(labelled)} of {len(names)} images have no ReaL label and do not count")
    arrays = {**listing.arrays, "targets": targets}
    names_of_classes = _ids_in(data.dataset)
    return replace(listing, arrays=arrays, class_names=names_of_classes, has_class_names=True).select(labelled)
