"""The classification sets of torchvision.datasets with their official splits, read by torchvision's own classes.

These parse the annotations and check MD5 sums: CIFAR's batches, which are pickles, are opened only if they are the
official ones. Image files are decoded as in class folders.
"""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torchvision

from configs.schema.data import properties_of, spelling
from configs.schema.section import only
from configs.yaml_io import shorten
from datasets.sources.class_names import positions
from datasets.sources.folders.class_folders import CALTECH, find_folder, read_class_folders
from datasets.sources.samples import ImageFiles, Samples, listing_arrays
from datasets.sources.sets.in_memory import ImageArray
from datasets.sources.shared_arrays import StringPacker, to_nfc
from datasets.sources.source import Source
from utils.errors import UserError, error_from, to_single_line
from utils.library_compat import listed_images, pet_images


class TorchvisionSet(Source):
    """A class of torchvision.datasets. DATA_PATH is its `root`, or in it the folder of the data set.

    Without an official val, a part of train is held out.
    """

    @cached_property
    def splits(self) -> Mapping[str, Mapping[str, str | bool]]:
        """The argument of the class for each official split; none for all images of a class without splits."""
        splits = properties_of(self.data.dataset).splits or {"all": {}}
        version = str((self.data.kwargs or {}).get("version", ""))
        if not version:
            return splits
        others = splits if "2021_train" in version else {}
        return {**others, "train": {"version": version}}

    def read(self, split: str) -> Samples:
        """All images of an official split. Raises UserError: it is missing or damaged, or cannot be downloaded."""
        name = str(properties_of(self.data.dataset).torchvision)
        kind = getattr(torchvision.datasets, name)
        open_set = partial(kind, **{**(self.data.kwargs or {}), **self.splits[split]})
        is_inner = self.root.name == getattr(kind, "base_folder", "") or spelling(self.root.name) == spelling(name)
        can_download = name != "StanfordCars"
        tries = [partial(_samples, open_set, root) for root in (self.root, self.root.parent)[: 1 + is_inner]]
        tries += [partial(_download, open_set, self.root)] if self.data.download and can_download else []
        errors = []
        for read in tries:
            try:
                return read()
            except Exception as problem:  # damaged files raise many types
                errors.append(problem)
        error = errors[-1 if self.data.download else 0]
        raise self._unreadable(error, name, can_download) from error

    def _unreadable(self, error: Exception, name: str, can_download: bool) -> UserError:
        """The error of a data set that cannot be read or downloaded. name: of its class."""
        reason = to_single_line(getattr(error, "strerror", None) or str(error)).partition(". You can ")[0].rstrip(".")
        if isinstance(error, ValueError) and self.data.kwargs:
            return UserError(f"DATA.KWARGS: {reason}")
        fix = f"put the files of {name}, unpacked, into this folder"
        if can_download and not self.data.download:
            fix += ", or let torchvision download them: -opts DATA.DOWNLOAD=true"
        return error_from(error, f"{self.root}: {name} cannot be read ({reason}); {fix}")


class Caltech(Source):
    """The class folders of a set of `CALTECH`."""

    splits = ("train",)

    def read(self, split: str) -> ImageFiles:
        folder, no_class = CALTECH[self.data.dataset]
        if self.data.download and self.root.name != folder and not (self.root / folder).is_dir():
            self._download()
        return read_class_folders(find_folder(self.root, folder), [no_class])

    def _download(self) -> None:
        """By torchvision's class, whose folder has the name of the data set. Raises UserError: it fails."""
        name = self.data.dataset
        try:
            _fetch(partial(getattr(torchvision.datasets, name.capitalize())), self.root, inner=name)
        except Exception as error:
            reason = to_single_line(str(error))
            fix = "unpack the archive by hand: docs/data.md"
            raise error_from(error, f"{self.root}: {name} cannot be downloaded ({reason}); {fix}") from error


def _download(open_set: "partial[Any]", root: Path) -> Samples:
    _fetch(open_set, root)
    return _samples(open_set, root)


def _fetch(open_set: "partial[Any]", root: Path, inner: str = "") -> None:
    """Downloads and unpacks in a new folder beside the data: if it is interrupted, no part of a data set stays."""
    if hasattr(tarfile, "data_filter"):  # Python 3.11.4: refuses members that would be outside this folder
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
        open_set(folder, download=True)
        os.chmod(folder, root.stat().st_mode)  # `copytree` copies it
        shutil.copytree(Path(folder, inner), root, copy_function=os.replace, dirs_exist_ok=True)


def _samples(open_set: "partial[Any]", root: Path) -> Samples:
    """The images as files or, if all have one size, in memory. Raises any exception."""
    if not root.is_dir():  # INaturalist would make it
        raise FileNotFoundError("no such folder")
    name = open_set.func.__name__
    open_set = partial(open_set, str(root))
    fixed = {"loader": str, "download": False}  # the path in place of the image; SEMEION's default is True
    data = open_set(**only(fixed, signature(open_set).parameters))
    classes = positions(getattr(data, "classes", getattr(data, "all_categories", ())))
    by_name = getattr(data, "class_to_idx", classes)  # of a label's several names in Imagenette the first counts
    names = {label: to_nfc(class_name) for class_name, label in reversed(by_name.items())}
    pairs: Any = listed_images(data) or map(data.__getitem__, range(len(data)))
    if getattr(data, "data", None) is not None:
        return _in_memory(data.data, getattr(data, "targets", getattr(data, "labels", ())), names)
    if name == "OxfordIIITPet":
        pairs = pet_images(data)
    # Sorted: INaturalist and SUN397 list the files in the order of the disk.
    files = sorted((str(path).removeprefix(os.path.join(root, "")), label) for path, label in pairs)
    if outside := [path for path, _ in files if path.startswith("/") or ".." in path.split("/")]:
        raise ValueError(f"{shorten(outside[0])} is outside of the folder")
    targets = np.array([label for _, label in files])
    arrays = listing_arrays(StringPacker(path for path, _ in files), targets=targets)
    return ImageFiles(root, _names_of(targets, names), arrays, has_class_names=bool(names))


def _names_of(labels: Any, names: Mapping[int, str]) -> list[str]:
    """The names of all labels; a label without a name is its own."""
    return [names.get(label, str(label)) for label in range(len(names) or max(labels) + 1)]


def _in_memory(images: Any, labels: Any, names: Mapping[int, str]) -> ImageArray:
    """images: (N, H, W), (N, H, W, 3) or (N, 3, H, W). labels: (N,) or, of QMNIST, (N, columns), of which the first."""
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[:, None]
    if images.shape[3] == 3:
        images = images.transpose(0, 3, 1, 2)
    labels = np.reshape(labels, (len(images), -1))[:, 0]
    samples = ImageArray(np.ascontiguousarray(images), labels, _names_of(labels, names))
    return samples.changed(has_class_names=bool(names))
