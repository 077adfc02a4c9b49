"""The interface of a data source: `Samples`, the images and labels of one split; and the names of its classes.

Names are Unicode text in the form NFC: macOS decomposes the names of files (NFD), and Linux keeps them as they are.
"""

import errno
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from configs.data_sets import properties_of
from configs.yaml_io import shorten
from datasets.decoding.decode import Decoding, LazyImage, open_image
from datasets.decoding.images import BadImage, UnreadableImage
from datasets.loading.sampler import EvalSampler, Key, ShardWindows, TrainSampler
from datasets.sources.shared_arrays import PackedStrings, share_arrays
from utils.errors import Finding, Unavailable, UserError

MAX_FILE_BYTES = 400_000_000  # 64 million pixels of 16-bit color, and metadata
_MAX_NAMES = 20  # in an error message
# The machine or a network disk fails temporarily; the image is not the cause.
_SYSTEM_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Samples:
    """The images and labels of one split.

    `targets` int64 (N,) are labels, indices of `class_names`; with DATA.MULTI_LABEL int8 (N, classes), 1 for each label
    of an image, else 0, with at least as many columns as `class_names`. `has_class_names` is False if these names are
    only the labels themselves, as in a list. `in_memory` is True if `open` never waits for a disk. `windows`: of
    samples in shards, see `ShardWindows`. `column`: the name of the column of `listed_name`.
    `findings` are messages about errors, which prevent the use of the samples; `notes` are for the log: one line of
    text each.
    """

    in_memory = False
    has_class_names = True
    column = "path"
    windows: ShardWindows | None = None

    def __init__(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    @property
    def targets(self) -> np.ndarray:
        return self._labels["targets"]

    @targets.setter
    def targets(self, targets: np.ndarray) -> None:
        self._labels: Mapping[str, np.ndarray] = share_arrays({"targets": targets})

    @property
    def groups(self) -> PackedStrings | None:
        """The name of the group of each image, with DATA.GROUPS."""
        return None

    def __len__(self) -> int:
        return len(self.targets)

    def number_classes(self, labels: np.ndarray, class_names: list[str]) -> None:
        """Replaces each label by `labels[label]`, int64 (classes,), an index of the new `class_names`.

        `labels` is -1 for a class without images.
        """
        if self.targets.ndim == 1:
            self.targets = labels[self.targets]
        else:
            targets = np.zeros((len(self), len(class_names)), dtype=self.targets.dtype)
            targets[:, labels[labels >= 0]] = self.targets[:, : len(labels)][:, labels >= 0]
            self.targets = targets
        self.class_names = class_names

    def fit_targets(self, num_classes: int) -> None:
        """Gives targets (N, classes) `num_classes` columns. Columns beyond them stay if one of them has a label."""
        if (missing := num_classes - self.targets.shape[1]) > 0:
            self.targets = np.pad(self.targets, ((0, 0), (0, missing)))
        elif missing < 0 and not self.targets[:, num_classes:].any():
            self.targets = np.ascontiguousarray(self.targets[:, :num_classes])

    def class_counts(self, num_classes: int) -> np.ndarray:
        """The samples with each label, int64 (num_classes,); with DATA.MULTI_LABEL a sample may count several times."""
        if self.targets.ndim == 1:
            return np.bincount(self.targets, minlength=num_classes)
        counts = self.targets.sum(axis=0, dtype=np.int64)[:num_classes]
        return np.pad(counts, (0, num_classes - len(counts)))

    def for_loader(
        self, sampler: TrainSampler | EvalSampler, timeout_seconds: float
    ) -> tuple["Samples", Iterable[list[Key]]]:
        """Returns the samples as a loader reads them, and its batches, which may be read ahead.

        timeout_seconds: the limit of a wait for a server.
        """
        return self, sampler

    def open_all(self, indices: Sequence[int], channels: int) -> Iterator[LazyImage | BadImage]:
        """Opens the samples at `indices`, in this order; yields a BadImage in place of an unusable image."""
        for index in indices:
            try:
                yield self.open(index, channels)
            except BadImage as error:
                yield error

    def open(self, index: int, channels: int) -> LazyImage:
        """An image with 1 or 3 channels; raises BadImage, now or when its pixels are decoded, if it is unusable."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """The image's name in tables and error messages, such as its path."""
        return f"image {index}"

    def listed_name(self, index: int) -> str:
        """The text that names the image in the user's list or table, and in the files of a prediction."""
        return self.name(index).removeprefix("./")

    def location(self, index: int) -> str:
        """Names the line of a list or the file in which a user finds the sample."""
        return self.name(index)

    def checksums(self) -> np.ndarray:
        """A CRC-32 of each image; of an image file, which is not opened, of its relative path: uint32 (N,)."""
        return np.zeros(len(self), np.uint32)

    def find_missing_files(self) -> Sequence[Finding]:
        """An error if this host has none of the files; a few of them are looked for."""
        return []


class EncodedImages(Samples):
    """Images that are stored encoded, such as JPEG files."""

    decoding = Decoding()

    @property
    def max_file_bytes(self) -> int:
        return max(MAX_FILE_BYTES, 8 * self.decoding.max_pixels)

    def read_bytes(self, index: int) -> bytes:
        """The encoded image; raises BadImage if it cannot be read."""
        raise NotImplementedError

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the image's path, relative to `folder` if the image is in this folder of the data set."""
        return self.name(index).removeprefix(os.path.join(folder, ""))

    def open(self, index: int, channels: int) -> LazyImage:
        return open_image(self.read_bytes(index), channels, partial(self.name, index), self.decoding)


def read_error(error: OSError, path: str, name: str, fix: str) -> UserError:
    """Returns the error for an image `name` in the file `path`; a BadImage unless the system fails."""
    if error.errno in _SYSTEM_ERRORS:
        return Unavailable(f"{path}: cannot be read ({error.strerror}); check the machine and its disks, then resume")
    return UnreadableImage(name, f"cannot be read ({error.strerror})", fix)


def map_labels(names: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """The position in `known` of each of `names`, int64 (classes,); -1 for a name that is not in it."""
    if list(names) == list(known):
        return np.arange(len(known))
    position = {name: label for label, name in enumerate(known)}
    return np.array([position.get(name, -1) for name in names], dtype=np.int64)


def number_by(
    known: Sequence[str], samples: Samples, data_path: str, needs_all: bool, source: str = "the checkpoint"
) -> list[str]:
    """Gives the samples the labels of the classes `known`, by name. Samples without class names keep their labels.

    source: of `known`, for messages.

    Returns error messages: a class with images is not in `known`, or twice; with `needs_all`, also: the samples lack a
    class of `known`. If there are any, it changes nothing.
    """
    if not samples.has_class_names:
        samples.notes.append("the data has no class names; its labels are used as they are")
        return []
    labels = map_labels(samples.class_names, known)
    used = range(len(labels)) if needs_all else np.flatnonzero(samples.class_counts(len(labels)))
    unknown = [samples.class_names[label] for label in used if labels[label] < 0]
    numbers = Counter(known)
    twice = [name for label in used if numbers[name := samples.class_names[label]] > 1]
    missing = sorted(set(known).difference(samples.class_names)) if needs_all else []
    findings = [f"{source}: {list_names(twice)}: the name of several classes; rename them"] if twice else []
    hint = "".join(f"; {variants} differ only in case" for variants in case_variants([*unknown, *known]))
    if unknown and needs_all:
        findings.append(
            f"{data_path}: new class {list_names(unknown)}; a resumed run has the classes of its checkpoint "
            f"({list_names(known)}){hint}. To train with it, start from the weights: python main_single_gpu.py "
            f"-cfg=RUN/config.yaml -pretrained=RUN/best.pth -data_path={shlex.quote(data_path)} "
            "-opts MODEL.NUM_CLASSES=null"
        )
    elif unknown:
        findings.append(
            f"{data_path}: {list_names(unknown)}: not a class of {source}; rename or remove it ({source} has "
            f"{list_names(known)}){hint}; -predict {shlex.quote(data_path)} labels unsorted images"
        )
    if missing:
        findings.append(
            f"{data_path}: {list_names(missing)}: a class of the checkpoint that the data does not have; add it"
        )
    if not findings and not np.array_equal(labels, np.arange(len(known))):
        samples.number_classes(labels, list(known))
    return findings


def check_names(samples: Samples, data_path: str) -> list[str]:
    """Finds classes with one name, of which one is not in NFC; adds warnings about names that differ only in case."""
    names = case_variants(samples.class_names)
    samples.notes += [f"Warning: classes {variants} differ only in case" for variants in names]
    twice = [name for name, count in Counter(samples.class_names).items() if count > 1]
    return [f"{data_path}: two classes are named {shorten(name)}, in two Unicode forms; merge them" for name in twice]


def case_variants(names: Iterable[str]) -> list[str]:
    """The names that differ only in case, such as "'Cat', 'cat'": a line for each group."""
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        groups.setdefault(name.casefold(), {})[name] = None
    return [list_names(sorted(group)) for group in groups.values() if len(group) > 1]


def names_of_labels(samples: Samples, num_classes: int) -> list[str]:
    """Returns a name for each label of a model: its class name, or the label itself if the data has no name for it."""
    named = samples.class_names if samples.has_class_names else []
    return [*named[:num_classes], *map(str, range(len(named), num_classes))]


def list_names(names: Sequence[str], most: int = _MAX_NAMES) -> str:
    """'cat', 'dog' and others, at most `most`, and the number of the remaining ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(name) for name in names[:most]) + more


def number_of_classes(dataset: str, splits: Sequence[Samples]) -> int:
    """The value of MODEL.NUM_CLASSES: null for these splits of a data set: the number of its classes.

    Labels of ImageNet's lists are numbers, and a list of a part of ImageNet does not contain all of them: as in
    PaddleViT, the number is 1000.
    """
    return properties_of(dataset).num_classes or max((len(samples.class_names) for samples in splits), default=0)
