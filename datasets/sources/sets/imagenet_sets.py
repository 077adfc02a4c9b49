"""Other test sets of models of ImageNet: A, R, V2, and the validation images with ReaL labels (Beyer et al., 2020)."""

import os
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import timm
from timm.data import ImageNetInfo, RealLabelsImagenet, infer_imagenet_subset

from configs.schema.data import DATA_SETS, IMAGENET_CLASSES
from datasets.sources.class_names import list_names
from datasets.sources.folders.class_folders import find_folder, read_class_folders, read_images
from datasets.sources.samples import ImageFiles
from datasets.sources.source import Source
from utils.errors import UserError
from utils.notes import Note


class ImageNetFolders(Source):
    """Class folders for evaluation, which are the split 'val'."""

    splits = ("val",)

    def split_for(self, split: str) -> str:
        if split != "val":
            dataset = self.data.dataset
            raise UserError(f"{self.root}: {dataset} has no split {split}; it is for -eval and -predict")
        return split

    def read(self, split: str) -> ImageFiles:
        """The folders in DATA_PATH, whose names are WordNet ids or, as in V2, labels from 0 to 999."""
        listing = read_class_folders(self.root)
        dataset = self.data.dataset
        known = _ids_in(dataset)
        ids = {str(label): name for label, name in enumerate(wordnet_ids(IMAGENET_CLASSES))}
        names = [ids.get(name, name) for name in listing.class_names]
        if unknown := sorted(set(names).difference(known)):
            fix = f"folders have WordNet ids ({known[0]}, ...) or numbers (0 to 999) as names; choose another -dataset"
            listing.findings.append(f"{listing.root}: {list_names(unknown)}: not a class of {dataset}, whose {fix}")
        return listing.changed(class_names=names)


class ImageNetReal(ImageNetFolders):
    """The images in DATA_PATH/val or DATA_PATH, with ReaL labels: multi-hot, of DATA_PATH/real.json or else timm's."""

    def read(self, split: str) -> ImageFiles:
        listing = read_images(find_folder(self.root, "val"))
        own = self.root / "real.json"
        file = str(own) if own.exists() else None
        names = [os.path.basename(path) for path in listing.paths]
        targets = np.zeros((len(names), IMAGENET_CLASSES), dtype=np.int8)
        try:
            labels_of = RealLabelsImagenet(names, file).real_labels
            for row, name in zip(targets, names, strict=True):
                row[labels_of[name]] = 1
        except (AssertionError, KeyError):
            fix = "give all images that the labels are of, ILSVRC2012_val_00000001.JPEG and so on"
            raise UserError(
                f"{file or 'timm'}: ReaL labels of other images than the {len(names)} of {listing.root}; {fix}"
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise UserError(f"{file}: is not a list of lists of labels ({error}); download it again") from None
        labelled = targets.any(axis=1)
        others = np.flatnonzero(~labelled)
        if len(others):
            text = f"{len(others):,} of {len(names)} images have no ReaL label and do not count in {listing.root}"
            listing.notes.append(Note("log", f"{text}, such as {names[others[0]]}"))
        named = listing.changed(class_names=wordnet_ids(IMAGENET_CLASSES), has_class_names=True)
        return named.with_arrays(targets=targets).select(np.flatnonzero(labelled))


def wordnet_ids(num_classes: int | None) -> list[str]:
    """timm's classes of a model of ImageNet-1k, 12k, 21k or 22k, by its number of classes; else empty."""
    subset = infer_imagenet_subset({"num_classes": num_classes})
    return list(ImageNetInfo(subset).label_names()) if subset else []


def class_mask(dataset: str, class_names: Sequence[str]) -> np.ndarray:
    """Tells which classes of a model a set has, bool (classes,); raises UserError if it has none of them."""
    mask = np.isin(class_names, _ids_in(dataset))
    if not mask.any():
        raise UserError(
            f"-dataset={dataset}: the classes of the model are not ImageNet's; "
            "give weights of ImageNet, with 1000 classes, or more of timm's subsets"
        )
    return mask


def _ids_in(dataset: str) -> list[str]:
    return (files(timm.data) / f"_info/{DATA_SETS[dataset].synsets}_synsets.txt").read_text().split()
