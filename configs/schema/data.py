"""The section DATA, and the properties of the data sets that it names."""

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator

from configs.parts import DEVICE_AUGMENTATIONS, HOST_AUGMENTATIONS
from configs.schema.section import (
    Count,
    Floats,
    ImageSize,
    Pair,
    Path,
    Probability,
    Range,
    Section,
    option,
    optional,
    switch,
)
from configs.versions import JOIN, NO_JOIN
from configs.yaml_io import Values, shorten

MAX_CROP_PCT = 2  # the border is then half of the crop
MAX_PIXELS = 64_000_000

AUTO = "auto"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(.?)", re.DOTALL)


def secret_in_url(path: str) -> str | None:
    """The reason why this URL may contain a secret, without the secret; None for other URLs and for paths of files.

    Options are written to logs and files.
    """
    url = _URL.match(path)
    if not url:
        return None
    scheme, host, rest, mark = url.groups()
    if "@" in host or (":" in host and "@" in rest):  # the latter: a password with a '/'
        fix = "set credentials in the environment (AWS_*, GOOGLE_*), or use a server without a login"
        return f"the {scheme} URL contains a user or password; remove it, and {fix}"
    if mark and scheme.lower() != "file":
        return f"the {scheme} URL contains '?' or '#'; give the URL of a folder or a pattern, without a query"
    return None


def _as_texts(names: Any) -> Any:
    """The names of a list or a mapping as texts in NFC, as in the data: a folder may be named 7."""
    if isinstance(names, list):
        return [normalize("NFC", str(name)) for name in names]
    if isinstance(names, dict):
        return dict(zip(_as_texts([*names]), _as_texts([*names.values()]), strict=True))
    return names


class Data(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    batch_size: Count | Literal["auto"] = option(
        256,
        "images per device and forward pass in training; auto: the largest divisor of GLOBAL_BATCH_SIZE / devices "
        "that fits into the memory, found before the run; a resumed run keeps it",
    )
    memory_gb: float | None = optional("BATCH_SIZE auto: limit of the peak memory, GB; null: free GPU memory", gt=0)
    global_batch_size: int | None = optional(
        "images per optimizer step over all devices; sets the accumulation steps, and drops the incomplete step at "
        "the end of an epoch; null: from BATCH_SIZE, ACCUM_ITER and the number of devices",
        ge=1,
        le=10**9,
    )
    batch_size_eval: Annotated[int | None, BeforeValidator(lambda size: None if size == AUTO else size)] = optional(
        "images per device in evaluation; null: BATCH_SIZE", ge=1
    )
    data_path: Path = option("/dataset/imagenet/", "folder or file of the data set")
    image_root: Path | None = optional(
        "folder of relative paths in lists and tables; null: the list's folder, or one in it with the images"
    )
    dataset: Annotated[str, AfterValidator(lambda name: data_set_name(name))] = option(
        "imagenet2012", "name of the data set: a key of configs/schema/data.py"
    )
    kwargs: dict[str, bool | int | str] | None = optional(
        "data set torchvision/NAME: arguments of its class, as {split: letters} of EMNIST"
    )
    download: bool = switch("data set torchvision/NAME: torchvision downloads it to DATA_PATH if it is missing")
    class_folders: bool = switch(
        "data set folder: every folder beside class folders is a class, also one with the name of a split or with the "
        "folders of other classes in it, such as left and right"
    )
    labels: str | None = optional(
        "labels from paths: a regular expression with a (class), searched in the path relative to DATA_PATH, or to the "
        "images' folder of a list or table; folders in the class do not count: (.+)_\\d+ of images/cat_1.jpg is cat",
        min_length=1,
    )
    columns: dict[Literal["path", "label", "split", "group", "cells", "threshold", "join"], Any] | None = optional(
        "data sets csv, parquet: the columns, as {path: id, label: breed, split: is_valid, group: patient}; folder: "
        "levels of folders, as {label: 2, group: 3}, from 1 and without the level of splits; label may be a list of "
        "columns of 0 and 1, other texts by cells: {'-1': null, '': 0} (null: unknown), numbers by threshold: 0.5; "
        "cells: {'': null} of one column leaves rows out, {none: 0} makes a label none (MULTI_LABEL); path: "
        "RelativePath/File is of two columns; split: null trains on all rows, {column: site, test: [B]} tests on rows "
        "of values, maybe with val, too; null: by names and values"
    )
    encoding: str | None = optional("data set csv: encoding of tables that are not in UTF-8, as gb18030, cp1252")
    classes: Path | None = optional(
        "number the classes by name in the order natural (timm: 1, 2, 10, without case) or bytes (torchvision: 1, 10, "
        "2), or as a file names them, one per line or a JSON list; null: bytes. A checkpoint with names decides itself"
    )
    rename: Annotated[dict[str, str], BeforeValidator(_as_texts)] | None = optional(
        "new names of classes, {old: new}, in the data and in the weights; classes with one new name are merged: the "
        "first row of the head is kept, in an evaluation their probabilities are added"
    )
    multi_label: bool = switch(
        "data set csv, parquet, tar: images have no, one or several labels; LOSS.NAME is then bce"
    )
    on_bad_image: Literal["error", "skip"] = option("error", "unreadable images: abort the run, or skip and list them")
    max_pixels: int = option(
        MAX_PIXELS, "larger images are unreadable: decoding takes up to 20 bytes per pixel", ge=1, le=10**10
    )
    image_size: ImageSize = option(224, "the model's input, pixels: one number, or [height, width]")
    image_channels: Literal[1, 3] = option(3, "1: grayscale, 3: RGB")
    grey_range: Pair | None = optional("values of 16-bit images that become 0 and 255; null: 0 and 65535")
    resize: Literal["crop", "squash", "pad"] = option(
        "crop",
        "crop: random crops in training, CROP_PCT in evaluation; squash, pad: the whole image in both, in other "
        "proportions or with a border in the mean color; CROP_PCT counts for published weights only",
    )
    crop_pct: float = option(0.875, "evaluation: centre crop / shorter side; > 1: black border", gt=0, le=MAX_CROP_PCT)
    interpolation: Literal["bicubic", "bilinear", "nearest"] = option(
        "bicubic", "filter that resizes all crops; antialiased, but nearest"
    )
    shuffle_shards: int = option(16, "data set tar: samples are shuffled in windows of so many shards", ge=1, le=10**6)
    cache_dir: Path | None = optional("data set tar: folder for indexes and shards; null: ~/.cache/ampvit")
    cache_gb: float = option(0.0, "data set tar: size of the cache of remote shards, GB; 0: no cache", ge=0, le=10**6)
    cache: Literal["auto"] | bool = option(
        AUTO,
        "decoded image files of training and validation in host memory, shared by the workers and ranks of a host: "
        "files are decoded once in a run, with equal results; auto: in a run of several epochs, if all images fit into "
        "half of the free memory (the rest is for optimizer, workers and other programs); true: as many as fit",
    )
    image_hashes: Literal["none", "warn", "strict"] = option(
        "warn",
        "images.csv.gz: SHA-256 of the content of each image that a run reads; an evaluation, or a resumed run, that "
        "reads other images than the run did warns, or (strict) ends before the figures, or after its first epoch",
    )
    num_workers: int | None = optional("per rank; null: one per core, 2 fewer with a GPU; data in memory: 0", ge=0)
    imagenet_mean: Floats = option((0.5, 0.5, 0.5), "per channel, of pixels in 0..1; of RGB averaged for gray images")
    imagenet_std: Floats = option((0.5, 0.5, 0.5), "per channel, of pixels in 0..1")
    val_fraction: float | None = optional("validation share of data without that split; null: default", gt=0, lt=1)
    folds: int | None = optional("cross-validation: folds of data without a validation split", ge=2, le=100)
    fold: int | None = optional("the fold that is held out, from 0; needs FOLDS", ge=0)
    groups: str | None = optional(
        "images of a group, such as a patient, stay on one side of a split; csv: the column; tar: the field of the "
        ".json; csv, folders: a regular expression of the path with a (group); folders: a CSV file path,group",
        min_length=1,
    )
    fraction: float = option(
        1.0,
        "share of the training images of each class, or of groups; a smaller share is inside a larger one, and the "
        "validation images are the same",
        gt=0,
        le=1,
    )
    only_classes: Annotated[list[str], BeforeValidator(_as_texts)] | None = optional(
        "classes to train and to evaluate; images of other classes are left out", min_length=1
    )
    split_seed: int = option(0, "seed of that split, independent of SEED", ge=0, lt=2**32)
    random_crop_scale: Range = option((0.08, 1.0), "training crop: area / area of the image")
    random_crop_ratio: Range = option((3 / 4, 4 / 3), "training crop: width / height, relative to IMAGE_SIZE's")
    hflip_prob: Probability = option(0.5, "training: probability of a horizontal flip")
    vflip_prob: Probability = option(0.0, "training: probability of a vertical flip")
    repeated_augmentation: int = option(
        1, "training: crops of an image per epoch, in place of other images (DeiT: 3)", ge=1, le=100
    )
    balanced_sampling: bool = switch("training: equally many images per class in an epoch of as many batches")
    affine_prob: Probability = option(1.0, "training: probability of the random affine map")
    affine_degrees: float = option(0.0, "training: maximum random rotation, degrees", ge=0, le=180)
    affine_translate: float = option(0.0, "training: maximum random shift / image size", ge=0, le=1)
    affine_scale: Range = option((1.0, 1.0), "training: range of the random scale factor")
    host_augmentations: Annotated[Values | None, AfterValidator(HOST_AUGMENTATIONS.check_named)] = optional(
        "training: plugins' operations on an image, {name: options}; after flips and policy"
    )
    device_augmentations: Annotated[Values | None, AfterValidator(DEVICE_AUGMENTATIONS.check_named)] = optional(
        "training: plugins' operations on a normalized batch, {name: options}; before mixup"
    )

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the model's input."""
        return self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the model's input."""
        return (self.image_channels, *self.input_size)

    @property
    def given_columns(self) -> dict[Any, Any]:
        """COLUMNS, empty without one."""
        return self.columns or {}

    @property
    def micro_batch(self) -> int:
        """BATCH_SIZE as a number; 1 as long as it is auto."""
        return self.batch_size if isinstance(self.batch_size, int) else 1

    @property
    def eval_batch_size(self) -> int:
        return self.batch_size_eval or self.micro_batch

    def model_post_init(self, context: Any) -> None:
        """Mean and standard deviation of RGB become the ones of gray, the average, and of gray the ones of RGB."""
        for name in ("imagenet_mean", "imagenet_std"):
            values = getattr(self, name)
            if {len(values), self.image_channels} == {1, 3}:
                self.__dict__[name] = (sum(values) / len(values),) * self.image_channels

    def _problems(self) -> Iterator[str]:
        if secret := secret_in_url(self.data_path):
            yield f"DATA_PATH: {secret}"
        yield from self._problems_of_pixels()
        yield from self._problems_of_data_set()
        yield from self._problems_of_kwargs()
        yield from self._problems_of_tables()
        yield from self._problems_of_split()

    def _problems_of_pixels(self) -> Iterator[str]:
        mean = self.imagenet_mean
        std = self.imagenet_std
        channels = self.image_channels
        low, high = self.grey_range or (0, 1)
        if len(mean) != channels:
            yield f"IMAGENET_MEAN has {len(mean)} values for IMAGE_CHANNELS {channels}"
        if len(std) != channels:
            yield f"IMAGENET_STD has {len(std)} values for IMAGE_CHANNELS {channels}"
        if not 0 <= low < high <= 65535:
            yield f"GREY_RANGE {[low, high]} must ascend, within 0..65535"
        if min(std, default=1) <= 0:
            yield "IMAGENET_STD must be greater than 0"
        if max(*mean, *std, 0) > 1:
            yield "IMAGENET_MEAN and IMAGENET_STD are of pixels in 0..1: divide both by 255"
        if [round(value, 3) for value in mean] == [0.406, 0.456, 0.485]:  # Caffe's
            yield "IMAGENET_MEAN is in the order BGR, and images are RGB: reverse it and IMAGENET_STD"
        if self.random_crop_scale[1] > 1:
            yield "RANDOM_CROP_SCALE is a fraction of the image, at most 1"

    def _problems_of_data_set(self) -> Iterator[str]:
        data_set = properties_of(self.dataset)
        is_of = f"DATASET is {shorten(self.dataset)}"
        if self.multi_label and not (data_set.multi_label or data_set.may_be_table):  # else `recognize_dataset` checks
            yield f"MULTI_LABEL needs the data set csv, parquet or tar, but {is_of}; use -dataset=csv"
        if self.multi_label and self.balanced_sampling:
            one_label = "needs one label per image, but MULTI_LABEL is on"
            yield f"BALANCED_SAMPLING {one_label}; use LOSS.CLASS_WEIGHTS=balanced instead"
        if self.groups and data_set.in_memory:
            yield f"GROUPS needs images in files, but {is_of}; remove GROUPS"
        if self.labels and not data_set.may_be_table:
            yield f"LABELS needs a path of each image, but {is_of}; use -dataset=folder or csv"
        if self.download and not (data_set.torchvision or self.dataset in CALTECH):
            yield f"DOWNLOAD needs {', '.join(CALTECH)} or a data set {TORCHVISION}NAME, but {is_of}"

    def _problems_of_kwargs(self) -> Iterator[str]:
        data_set = properties_of(self.dataset)
        kwargs = self.kwargs or {}
        for key in kwargs:
            if key not in data_set.options:
                known = ", ".join(data_set.options) or "none"
                yield f"KWARGS: {shorten(key)} is no option of {shorten(self.dataset)}; known: {known}"
        if data_set.torchvision == "EMNIST" and "split" not in kwargs:
            yield "KWARGS: EMNIST has six versions; name one, as -opts 'DATA.KWARGS={split: balanced}'"

    def _problems_of_columns(self) -> Iterator[str]:
        columns = self.given_columns
        for key, value in columns.items():
            if key == JOIN:
                yield f"COLUMNS: {NO_JOIN}"
            elif not _is_column(key, value):
                yield f"COLUMNS: {key} is {shorten(value)}; give {_COLUMN_FORMS.get(key, 'the name of a column')}"
        values = [*columns.get("cells", {}).values()]
        if not isinstance(columns.get("label"), list):
            allowed = {None, 0} if self.multi_label else {None}
            if "threshold" in columns or {*values} - allowed:
                yield "COLUMNS: threshold and cells with 1, or 0 without MULTI_LABEL, need a list: label: [NAME, ...]"
        elif None in values and not self.multi_label:
            yield "COLUMNS: unknown cells (null) need MULTI_LABEL; set it to true"

    def _problems_of_tables(self) -> Iterator[str]:
        yield from self._problems_of_columns()
        renamed = self.rename or {}
        for name in sorted(renamed.keys() & renamed.values()):
            yield f"RENAME: {shorten(name)} is an old and a new name; give each old name the last one"
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            yield f"ENCODING {shorten(self.encoding)}: no such encoding; such as gb18030, cp1252"

    def _problems_of_split(self) -> Iterator[str]:
        fold = self.fold
        folds = self.folds
        if fold is not None and not folds:
            yield f"FOLD {fold} needs FOLDS, the number of folds"
        if folds and self.val_fraction:
            yield "FOLDS and VAL_FRACTION both choose the held-out images; remove one"
        if folds and (fold is None or fold >= folds):
            yield f"FOLD is {shorten(fold)}: with FOLDS {folds} give 0 to {folds - 1}"
        if self.labels and (problem := problem_of_expression(self.labels)):
            yield f"LABELS {problem}"


_COLUMN_FORMS = {
    "label": "the name of a column, a list of them, or a level of folders from 1",
    "group": "the name of a column, or a level of folders from 1",
    "split": "the name of a column, null, or {column: NAME, test: [VALUE]}, with val, too, or in its place",
    "cells": "the text of each cell with 0, 1 or null (unknown), as {'-1': null, '': 0}",
    "threshold": "a number",
}


def _is_column(key: str, value: Any) -> bool:
    """Whether the value of a key of COLUMNS has a form in `_COLUMN_FORMS`, or is a name."""
    match key, value:
        case "label", list():
            return all(name and isinstance(name, str) for name in value)
        case "split", None:
            return True
        case "split", {"column": str(), **parts}:
            has_lists = all(isinstance(values, list) and values for values in parts.values())
            return bool(parts) and parts.keys() <= {"val", "test"} and has_lists
        case "cells", dict():
            return all(one in (0, 1, None) for one in value.values())
        case "threshold", int() | float():
            return math.isfinite(value) and not isinstance(value, bool)
        case "label" | "group", int():
            return value > 0 and not isinstance(value, bool)
        case "path" | "label" | "split" | "group", str():
            return value != ""
    return False


def problem_of_expression(text: str) -> str | None:
    """The reason why a text is no regular expression with a group; None if it is one."""
    try:
        if re.compile(text).groups:
            return None
    except re.error as error:
        return f"{shorten(text)} is not a regular expression ({error})"
    return f"{shorten(text)} has no group: put the part that names it into parentheses"


IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class DataSet:
    """A data set.

    has_columns: DATA.COLUMNS names its columns.
    may_be_folder: without its files, class folders in DATA_PATH are read as the data set `folder`.
    may_be_table: a table or parquet files in DATA_PATH are read as such.
    has_files: DATA_PATH names its files. in_memory: its images are in memory, so that it needs no workers.
    may_lack_splits: may come without splits; the split 'all' is then all images.
    multi_label: its images may have several labels (DATA.MULTI_LABEL).
    groups_by: what DATA.GROUPS names: a part of the path or a table of paths, a column, a field of the .json.
    num_classes: the number of classes, also of those without an image here; None: of the classes found.
    synsets: timm's list of the classes of ImageNet that it has: a set for evaluations, which mask the other classes.
    torchvision: the class of torchvision.datasets that reads it. splits: the argument of this class for each of its
    splits; empty if it has none. options: its other arguments, as DATA.KWARGS.
    """

    has_columns: bool = False
    may_be_folder: bool = False
    may_be_table: bool = False
    has_files: bool = True
    in_memory: bool = False
    may_lack_splits: bool = False
    multi_label: bool = False
    groups_by: Literal["path", "column", "field"] = "path"
    num_classes: int | None = None
    synsets: str | None = None
    torchvision: str | None = None
    splits: Mapping[str, Mapping[str, str | bool]] = field(default_factory=dict)
    options: tuple[str, ...] = ()


TORCHVISION = "torchvision/"
CALTECH = ("caltech101", "caltech256")  # of torchvision too, but with our splits


def _of_torchvision(
    names: str, argument: str = "", options: tuple[str, ...] = (), in_memory: bool = False, **values: str | bool
) -> dict[str, DataSet]:
    """argument: of the classes `names`, with its value for each split."""
    splits = {split: {argument: value} for split, value in values.items()}
    data_set = DataSet(in_memory=in_memory, may_lack_splits=not splits, options=options)
    return {TORCHVISION + name: replace(data_set, torchvision=name, splits=splits) for name in names.split()}


_TRAIN_VAL = {"train": {"train": True}, "val": {"train": False}}  # the test images of CIFAR, as in PaddleViT
_IMAGENET = DataSet(num_classes=IMAGENET_CLASSES, synsets="imagenet")
DATA_SETS: dict[str, DataSet] = {
    "imagenet2012": DataSet(may_be_folder=True, may_be_table=True, num_classes=IMAGENET_CLASSES),
    "folder": DataSet(may_be_table=True, may_lack_splits=True),
    "csv": DataSet(has_columns=True, may_be_table=True, may_lack_splits=True, multi_label=True, groups_by="column"),
    "parquet": DataSet(has_columns=True, may_lack_splits=True, multi_label=True, groups_by="field"),
    "caltech101": DataSet(),
    "caltech256": DataSet(),
    "cifar10": DataSet(in_memory=True, torchvision="CIFAR10", splits=_TRAIN_VAL),
    "cifar100": DataSet(in_memory=True, torchvision="CIFAR100", splits=_TRAIN_VAL),
    "tar": DataSet(may_lack_splits=True, multi_label=True, groups_by="field"),
    "digits": DataSet(has_files=False, in_memory=True),
    "fake": DataSet(has_files=False, in_memory=True),
    "imagenet-a": replace(_IMAGENET, synsets="imagenet_a"),
    "imagenet-r": replace(_IMAGENET, synsets="imagenet_r"),
    "imagenet-v2": _IMAGENET,
    "imagenet-real": _IMAGENET,
    **_of_torchvision("FGVCAircraft Flowers102 RenderedSST2", "split", train="train", val="val", test="test"),
    **_of_torchvision("DTD", "split", ("partition",), train="train", val="val", test="test"),
    **_of_torchvision("Country211", "split", train="train", val="valid", test="test"),
    **_of_torchvision("Food101 GTSRB StanfordCars", "split", train="train", test="test"),
    **_of_torchvision("OxfordIIITPet", "split", train="trainval", test="test"),
    **_of_torchvision("Imagenette", "split", ("size",), train="train", val="val"),
    **_of_torchvision("Places365", "split", ("small",), train="train-standard", val="val"),
    **_of_torchvision("INaturalist", "version", ("version",), train="2021_train", val="2021_valid"),
    **_of_torchvision("EuroSAT SUN397"),
    **_of_torchvision("STL10 SVHN", "split", in_memory=True, train="train", test="test"),
    **_of_torchvision("FashionMNIST KMNIST MNIST QMNIST USPS", "train", in_memory=True, train=True, test=False),
    **_of_torchvision("CIFAR10 CIFAR100", "train", in_memory=True, train=True, test=False),
    **_of_torchvision("EMNIST", "train", ("split",), in_memory=True, train=True, test=False),
    **_of_torchvision("SEMEION", in_memory=True),
}


def properties_of(name: str) -> DataSet:
    """Returns the properties of a data set; of an unknown one, perhaps of an old run, the defaults."""
    return DATA_SETS.get(name, DataSet())


def data_set_name(name: str) -> str:
    """The key of DATA_SETS for a class of torchvision in any spelling, as timm's torch/fashion_mnist."""
    library, _, rest = name.partition("/")
    if library.lower() not in ("torch", "torchvision"):
        return name
    if rest.lower() in CALTECH:
        return rest.lower()
    given = TORCHVISION + rest
    return _BY_SPELLING.get(spelling(given), given)


def spelling(name: str) -> str:
    """The letters and digits of a name: food101 for food-101."""
    return re.sub(r"[\W_]", "", name).lower()


_BY_SPELLING = {spelling(name): name for name in DATA_SETS}
