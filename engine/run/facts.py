"""The facts of a run: a line of the log each, and the latest of each kind in `run.json`. Without torch and numpy."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from configs.schema import Data
from configs.schema.data import properties_of
from utils.tables import three_digits

SPLITS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Start:
    """The latest start of the run. steps_done: optimizer steps before it.

    program: the command line without the flags of the run, for any folder.
    """

    folder: str
    steps_done: int
    program: str = "python main_single_gpu.py"

    def __str__(self) -> str:
        return f"Output: {self.folder}"


@dataclass(frozen=True)
class Devices:
    """Number of processes, device of each, and the numeric types."""

    processes: int
    device: str
    precision: str

    def __str__(self) -> str:
        return f"{self.processes} process{'' if self.processes == 1 else 'es'}, {self.device}, {self.precision}"


@dataclass(frozen=True)
class Environment:
    """The software and hardware of a start; the command contains no password.

    parts: all that may change the last bits of a result, by name: versions, the commit of the program, devices.
    hosts: of each rank.
    """

    command: str
    parts: dict[str, str]
    hosts: list[str]

    def __str__(self) -> str:
        return ", ".join(f"{name} {part}" for name, part in self.parts.items())


@dataclass(frozen=True)
class Model:
    """The model in training.

    flops_per_image: of a training step; None if they cannot be counted. peak_flops_per_second: datasheet peak of all
    devices together; None for CPUs and unknown GPUs. trainable: of the parameters.
    """

    parameters: int
    flops_per_image: int | None
    peak_flops_per_second: float | None
    trainable: int | None = None

    def __str__(self) -> str:
        about = f"Model: {self.size}"
        if self.flops_per_image:
            about += f", {three_digits(self.flops_per_image / 1e9)} GFLOP per training image"
        if self.peak_flops_per_second:
            about += f"; datasheet peak: {three_digits(self.peak_flops_per_second / 1e12)} TFLOP/s"
        return about

    @property
    def size(self) -> str:
        trainable = "" if self.trainable is None else f", {self.trainable / 1e6:.3f} M trainable"
        return f"{self.parameters / 1e6:.3f} M parameters{trainable}"

    def tflops_per_second(self, images_per_second: float) -> float | None:
        """images_per_second: over all devices."""
        return None if self.flops_per_image is None else images_per_second * self.flops_per_image / 1e12

    def utilization(self, images_per_second: float) -> float | None:
        """MFU, 0 to 1: the model FLOP/s of the run / the datasheet peak of its devices.

        Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B. The forward pass of a
        teacher (TRAIN.DISTILLATION_TYPE) takes time, but its FLOPs do not count.
        """
        tflops = self.tflops_per_second(images_per_second)
        peak = self.peak_flops_per_second
        return 1e12 * tflops / peak if tflops is not None and peak else None

    def rates(self, images_per_second: float) -> list[str]:
        """['TFLOP/s: 307', 'MFU: 31.0%'], without the rates that are None."""
        tflops = self.tflops_per_second(images_per_second)
        utilization = self.utilization(images_per_second)
        rates = [] if tflops is None else [f"TFLOP/s: {three_digits(tflops)}"]
        return rates if utilization is None else [*rates, f"MFU: {utilization:.1%}"]


@dataclass(frozen=True)
class TrainingData:
    """Numbers of images. test: held out for the end of the run. classes: of the data; the model may have more.

    validation_digest: of the names and labels of the validation images. groups: of training and validation, with
    DATA.GROUPS.
    """

    training: int
    validation: int
    test: int
    classes: int
    model_classes: int
    validation_digest: str = ""
    groups: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"Data: {self.images}; the model has {self.model_classes} classes"

    @property
    def images(self) -> str:
        test = f", {self.test} for the test at the end" if self.test else ""
        groups = f" (groups: {' and '.join(map(str, self.groups))})" if self.groups else ""
        images = f"{self.training} training images of {self.classes} classes, {self.validation} for validation"
        return f"{images}{groups}{test}"


@dataclass(frozen=True)
class Preprocessing:
    """The crops of an evaluation, and the normalization. sources: of the values."""

    image_size: int | tuple[int, int]
    crop_pct: float
    interpolation: str
    mean: list[float]
    std: list[float]
    sources: str
    resize: str = "crop"

    def __str__(self) -> str:
        crop = f" {self.crop_pct:g}" if self.resize == "crop" or self.crop_pct != 1 else ""
        size = " x ".join(map(str, self.image_size)) if isinstance(self.image_size, tuple) else self.image_size
        crop = f"{size} pixels, {self.resize}{crop}, {self.interpolation}"
        return f"Preprocessing: {crop}, mean {self.mean}, std {self.std} ({self.sources})"


@dataclass(frozen=True)
class EvaluationData:
    """The images of an evaluation or a prediction.

    classes: with images, of `model_classes`. split: 'train', 'val' or 'test'; None: all images. path: of unlabelled
    images, which have no classes. digest: as `TrainingData.validation_digest`. trained: the number of images
    that the model was trained on. epochs: among which these images chose the weights.
    """

    number: int
    classes: int | None = None
    model_classes: int | None = None
    split: str | None = None
    path: str | None = None
    digest: str = ""
    trained: int = 0
    epochs: int = 0

    def __str__(self) -> str:
        return f"Data: {self.images}"

    @property
    def remark(self) -> str:
        """Words after a figure of images that the model was trained on; '' for other images."""
        return f"on images of the training, {self.trained} of {self.number}" if self.trained else ""

    @property
    def images(self) -> str:
        if self.path is not None:
            return f"{self.number} images of {self.path}"
        split = f": the {SPLITS[self.split]} split" if self.split in SPLITS else ""
        return f"{self.number} images of {self.classes} of {self.model_classes} classes{split}"


@dataclass(frozen=True)
class PixelBaseline:
    """Top-1 in percent of a linear classifier of 16x16 pixels, of so many images, and of the largest class for all."""

    pixel_baseline: float
    majority_class: float
    training: int
    validation: int

    def __str__(self) -> str:
        figures = f"Pixel baseline {self.pixel_baseline:.1f}%, majority class {self.majority_class:.1f}%"
        return f"{figures} ({self.training} training and {self.validation} validation images)"


@dataclass(frozen=True)
class ImagesRead:
    """The digest of `images.csv.gz`: SHA-256 of its sorted lines 'sha256 split path label group'; or 'partial: ...'."""

    digest: str

    def __str__(self) -> str:
        return f"Images: {self.digest}"


Fact = (
    ImagesRead | Start | Devices | Environment | Model | TrainingData | Preprocessing | EvaluationData | PixelBaseline
)
_F = TypeVar("_F", bound=Fact)


def read_fact(record: Mapping[str, Any], kind: type[_F]) -> _F | None:
    """The fact of a kind in a record, the content of `run.json`; None if it is missing or damaged."""
    with suppress(ValueError):  # pydantic's errors, too
        return TypeAdapter(kind).validate_python(record.get("facts", {}).get(kind.__name__))
    return None


def place_of(data: Data) -> str:
    """' (PATH)' of the files of the data, or ' (NAME)'."""
    return f" ({data.data_path if properties_of(data.dataset).has_files else data.dataset})"
