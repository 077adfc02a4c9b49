"""Samples that are held in memory: arrays of images, scikit-learn's digits, and noise."""

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from datasets.decoding.decode import LazyImage, convert_channels
from datasets.sources.samples import Samples
from datasets.sources.shared_arrays import PackedStrings, StringPacker
from datasets.sources.source import Source
from utils.errors import UserError


class ImageArray(Samples):
    """Images in an array, uint8 (N, 1 or 3, H, W). The workers of a rank map one file with them."""

    in_memory = True

    def __init__(self, images: np.ndarray, targets: Sequence[int] | np.ndarray, class_names: list[str]) -> None:
        super().__init__(class_names)
        self.arrays = {"images": images, "targets": np.asarray(targets, dtype=np.int64)}

    @property
    def images(self) -> np.ndarray:
        return self.arrays["images"]

    @property
    def names_for_split(self) -> PackedStrings:
        return StringPacker(f"train/{index}" for index in range(len(self))).strings()

    def checksums(self) -> np.ndarray:
        return np.array([zlib.crc32(image.tobytes()) for image in self.images], np.uint32)

    def open(self, index: int, channels: int) -> LazyImage:
        image = self.images[index]
        self.note_content(index, image.tobytes())
        return LazyImage(convert_channels(torch.tensor(image), channels))


class FakeImages(Samples):
    """Noise instead of images, to measure everything except reading files."""

    has_class_names = False
    in_memory = True

    def __init__(self, num_samples: int, num_classes: int, size: tuple[int, int]) -> None:
        rng = np.random.default_rng(num_samples)
        super().__init__([str(label) for label in range(num_classes)])
        self.arrays = {"targets": rng.integers(num_classes, size=num_samples)}
        self.pool = torch.from_numpy(rng.integers(256, size=(16, 3, *size), dtype=np.uint8))

    def open(self, index: int, channels: int) -> LazyImage:
        return LazyImage(self.pool[index % len(self.pool), :channels])


class Digits(Source):
    """The 1,797 handwritten digits of 8 x 8 gray pixels that scikit-learn contains; a fifth is held out.

    Split and folds are scikit-learn's own stratified ones, so that results can be compared with other programs.
    """

    has_folds = True

    def read(self, split: str) -> ImageArray:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

        bunch = load_digits()
        images = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
        fraction = self.data.val_fraction or 0.2
        seed = self.data.split_seed
        splitter = StratifiedShuffleSplit(1, test_size=fraction, random_state=seed)
        if self.data.folds:
            splitter = StratifiedKFold(self.data.folds, shuffle=True, random_state=seed)
        try:
            parts = list(splitter.split(images, bunch.target))[self.data.fold or 0]
        except ValueError as error:
            raise UserError(f"DATA.VAL_FRACTION {self.data.val_fraction}: {error}") from error
        part = parts[0 if split == "train" else 1]
        return ImageArray(images[part], bunch.target[part], [str(name) for name in bunch.target_names])


class Fake(Source):
    """Noise of IMAGE_SIZE in MODEL.NUM_CLASSES classes, or 1,000: 1,280 training samples, at least 40 batches, and 256
    for validation.
    """

    def read(self, split: str) -> FakeImages:
        num_samples = max(1280, 40 * self.data.micro_batch) if split == "train" else 256
        return FakeImages(num_samples, self.wanted.num_classes or 1000, self.data.input_size)
