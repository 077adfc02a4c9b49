"""Where the samples are and what their labels are.

Each data set is one function, `name(options, split) -> Samples`, of the options under DATA and 'train' or 'val'. All
raise a UserError where there is nothing to read; smaller mistakes are the `findings` of what they return.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from configs.schema import Data
from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import Picture, open_image
from datasets.sources.arrays import Texts, shared_arrays
from datasets.sources.cifar import read_batch, read_class_names
from datasets.sources.index import indexed, keep
from datasets.sources.listing import Listing, class_names_in, missing_files, read_class_folders, read_list, read_table
from utils.errors import UserError
from utils.files import open_regular_file

# Of what a machine runs out of, or a network disk lacks for a while, no image is to blame.
NOT_THE_FILES_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
MAX_FILE_BYTES = 400_000_000  # 64 million pixels of 16-bit colour
_MAX_ACCESS_CHECKS = 50_000


class Samples:
    """The images and labels of one split.

    `targets` (N,) int64 are labels into `class_names`; `in_memory` tells whether `image` is free of waiting for a disk.
    `findings` must be put right before the samples are used, `notes` are worth knowing: a line of text each.
    """

    in_memory = False
    targets: np.ndarray

    def __init__(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.findings: list[str] = []
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self.targets)

    def open(self, index: int, channels: int) -> Picture:
        """An image of 1 or 3 channels; a BadImage names a file that is none, now or when its pixels are decoded."""
        raise NotImplementedError

    def image(self, index: int, channels: int) -> torch.Tensor:
        """The whole of it, torch.uint8 (channels, H, W), to be read only."""
        return self.open(index, channels).pixels

    def where(self, index: int) -> str:
        """The place at which a user finds the sample: a line of a list, a file."""
        return f"image {index}"

    def check_files(self) -> list[str]:
        """Findings about files that are missing or may not be read; none of them is opened."""
        return []


class EncodedImages(Samples):
    """Images that lie on a disk as a camera or a program encoded them."""

    def encoded(self, index: int) -> bytes:
        """What `open_image` takes; raises a BadImage where it cannot be read."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """What to call the image in an error."""
        raise NotImplementedError

    def open(self, index: int, channels: int) -> Picture:
        return open_image(self.encoded(index), channels, self.name(index))


class ImageFiles(EncodedImages):
    """Images in files of their own: those of a listing, or those at `places` (N,) of it."""

    def __init__(self, listing: Listing, places: np.ndarray | None = None) -> None:
        super().__init__(listing.class_names)
        self.listing = listing
        self.root, self.findings, self.notes = listing.root, listing.findings, listing.notes
        self._chosen = None
        if places is not None:
            self._chosen = shared_arrays({}, {"places": places, "targets": listing.arrays["targets"][places]})

    @property
    def targets(self) -> np.ndarray:
        return (self._chosen or self.listing.arrays)["targets"]

    @property
    def paths(self) -> Texts:
        return self.listing.paths.at(self._chosen["places"]) if self._chosen else self.listing.paths

    @property
    def path_crcs(self) -> np.ndarray:
        """uint32 (N,): images whose paths are alike have the same."""
        crcs = self.listing.arrays["paths_crcs"]
        return crcs[self._chosen["places"]] if self._chosen else crcs

    def name(self, index: int) -> str:
        """No Path: each keeps its parts in a table of Python's, which would grow by millions of names."""
        return os.path.join(str(self.root), self.paths[index])

    def encoded(self, index: int) -> bytes:
        path = self.name(index)
        try:
            with open_regular_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_FILE_BYTES:
                    raise ValueError(f"{size / 1e6:.0f} MB are no photograph's")
                return file.read()
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in NOT_THE_FILES_FAULT:
                raise UserError(f"{path}: cannot be read ({error.strerror}); see to the machine, and resume") from error
            reason = getattr(error, "strerror", None) or error
            raise BadImage(path, f"cannot be read ({reason})", "restore it or take it off the list") from error

    def where(self, index: int) -> str:
        return self.listing.where(self._place(index))

    def _place(self, index: int) -> int:
        return self._chosen["places"][index] if self._chosen else index

    def check_files(self) -> list[str]:
        """Looks for the files of a list, those of class folders having been seen; asks of 50,000 who may read them."""
        listing, missing = self.listing, self._missing()
        findings = [
            f"{listing.where(place)}: {listing.paths[place]!r} is no file in {self.root}; write paths relative to it"
            for place in missing
        ]
        step = max(1, -(-len(self) // _MAX_ACCESS_CHECKS))
        known = set(missing)
        for index in range(0, len(self), step):
            path = self.name(index)
            if not os.access(path, os.R_OK) and self._place(index) not in known:
                findings.append(f"{path}: may not be read by this user; change its permissions")
        return findings

    def _missing(self) -> list[int]:
        """Places in the listing, which is kept if none of its images is missing and nothing is wrong with it."""
        listing = self.listing
        if listing.is_checked:
            return []
        missing = missing_files(listing) if listing.file else []
        if not missing and not self.findings:
            keep(listing)
        return np.intersect1d(missing, self._chosen["places"]).astype(int).tolist() if self._chosen else missing


class ImageArray(Samples):
    """Images held in memory, uint8 (N, 1 or 3, H, W)."""

    in_memory = True

    def __init__(self, images: np.ndarray, targets: Sequence[int] | np.ndarray, class_names: list[str]) -> None:
        super().__init__(class_names)
        self.targets = np.asarray(targets, dtype=np.int64)
        self.images = images

    def open(self, index: int, channels: int) -> Picture:
        return Picture(with_channels(torch.from_numpy(self.images[index]), channels))


class FakeImages(Samples):
    """Noise in place of pictures, to measure everything but the reading of files."""

    def __init__(self, num_samples: int, num_classes: int, size: int) -> None:
        rng = np.random.default_rng(num_samples)
        super().__init__([str(label) for label in range(num_classes)])
        self.targets = rng.integers(num_classes, size=num_samples)
        self.pool = torch.from_numpy(rng.integers(256, size=(16, 3, size, size), dtype=np.uint8))

    def open(self, index: int, channels: int) -> Picture:
        return Picture(self.pool[index % len(self.pool), :channels])


def with_channels(image: torch.Tensor, channels: int) -> torch.Tensor:
    """torch.uint8 (1 or 3, H, W) -> (channels, H, W), converted as Pillow does it."""
    if channels == len(image):
        return image
    return image.expand(channels, -1, -1) if len(image) == 1 else _grey(image)


def _grey(image: torch.Tensor) -> torch.Tensor:
    """ITU-R 601 luma of an RGB image in fixed point, as Pillow computes it."""
    red, green, blue = image.int()
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).byte()[None]


def split_stratified(
    targets: Sequence[int] | np.ndarray, val_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices (train, val), both disjoint and together complete: a pure function of its arguments.

    `val_fraction` of each class is held out, rounded; of a class with two samples or more at least one goes to each
    side; a single sample goes to train.
    """
    targets = np.asarray(targets)
    rng = np.random.Generator(np.random.PCG64(seed))
    is_val = np.zeros(len(targets), dtype=bool)
    by_label = np.argsort(targets, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(targets[by_label])) + 1):
        num_val = min(max(round(len(members) * val_fraction), 1), len(members) - 1)
        is_val[rng.permutation(members)[:num_val]] = True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def _split_files(listing: Listing, options: Data, split: str) -> ImageFiles:
    train, val = split_stratified(listing.arrays["targets"], options.val_fraction or 0.1, options.split_seed)
    if not len(val):
        listing.findings.append(
            f"{options.data_path}: no class has two images, so none can be held out; add a split for val"
        )
    return ImageFiles(listing, train if split == "train" else val)


def imagenet2012(options: Data, split: str) -> ImageFiles:
    """PaddleViT's lists `train_list.txt` and `val_list.txt` in DATA_PATH: a path relative to it and a label a line."""
    return ImageFiles(indexed(read_list, Path(options.data_path) / f"{split}_list.txt"))


def folder(options: Data, split: str) -> ImageFiles:
    """A folder per class under DATA_PATH/train and DATA_PATH/val; without val the images are split."""
    root = Path(options.data_path)
    train, val = root / "train", root / "val"
    if not val.is_dir():
        return _split_files(indexed(read_class_folders, train if train.is_dir() else root), options, split)
    listing = indexed(read_class_folders, root / split)
    if train.is_dir():
        differing = sorted(set(class_names_in(train)) ^ set(class_names_in(val)))
        listing.findings += [
            f"{root}: class folder {name!r} is only in one of train and val; add or drop it" for name in differing
        ]
    return ImageFiles(listing)


def csv(options: Data, split: str) -> ImageFiles:
    """DATA_PATH/train.csv and DATA_PATH/val.csv, with the columns image_path,target; a single file is split."""
    path = Path(options.data_path)
    train_file = path if path.is_file() else path / "train.csv"
    val_file = path / "val.csv"
    if not val_file.is_file():
        return _split_files(indexed(read_table, train_file, train_file), options, split)
    return ImageFiles(indexed(read_table, val_file if split == "val" else train_file, train_file))


def caltech101(options: Data, split: str) -> ImageFiles:
    """The folder `101_ObjectCategories`, at DATA_PATH or in it, split; the background is no class."""
    root = _at_or_in(options.data_path, "101_ObjectCategories")
    return _split_files(indexed(read_class_folders, root, "BACKGROUND_Google"), options, split)


def caltech256(options: Data, split: str) -> ImageFiles:
    """The folder `256_ObjectCategories`, at DATA_PATH or in it, split; the clutter is no class."""
    root = _at_or_in(options.data_path, "256_ObjectCategories")
    return _split_files(indexed(read_class_folders, root, "257.clutter"), options, split)


def cifar10(options: Data, split: str) -> ImageArray:
    """The unpacked Python version, the folder `cifar-10-batches-py`, at DATA_PATH or in it."""
    root = _at_or_in(options.data_path, "cifar-10-batches-py")
    names = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    return _cifar([root / name for name in names], "labels", root / "batches.meta", "label_names")


def cifar100(options: Data, split: str) -> ImageArray:
    """The unpacked Python version, the folder `cifar-100-python`, at DATA_PATH or in it; its 100 fine labels."""
    root = _at_or_in(options.data_path, "cifar-100-python")
    return _cifar([root / ("train" if split == "train" else "test")], "fine_labels", root / "meta", "fine_label_names")


def digits(options: Data, split: str) -> ImageArray:
    """The 1,797 handwritten digits of 8 x 8 grey pixels that come with scikit-learn; a fifth is held out.

    The split is scikit-learn's own stratified one, so that results compare with those of other programs.
    """
    # Loaded here: they take a second, which no other data set should wait for.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    try:
        train_images, val_images, train_targets, val_targets = train_test_split(
            images,
            bunch.target,
            test_size=options.val_fraction or 0.2,
            stratify=bunch.target,
            random_state=options.split_seed,
        )
    except ValueError as error:
        raise UserError(f"DATA.VAL_FRACTION {options.val_fraction}: {error}") from error
    names = [str(name) for name in bunch.target_names]
    if split == "train":
        return ImageArray(train_images, train_targets, names)
    return ImageArray(val_images, val_targets, names)


def fake(options: Data, split: str) -> FakeImages:
    """1,280 training and 256 validation samples of noise, of IMAGE_SIZE, in 1,000 classes."""
    return FakeImages(1280 if split == "train" else 256, num_classes=1000, size=options.image_size)


def _at_or_in(data_path: str, name: str) -> Path:
    inner = Path(data_path) / name
    return inner if inner.is_dir() else Path(data_path)


def _cifar(files: list[Path], label_key: str, names_file: Path, names_key: str) -> ImageArray:
    class_names = read_class_names(names_file, names_key)
    images, targets = zip(*(read_batch(file, label_key, len(class_names)) for file in files), strict=True)
    return ImageArray(np.concatenate(images), np.concatenate(targets), class_names)
