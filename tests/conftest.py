"""Helpers for tests of several folders: small runs, in this process or in subprocesses."""

import csv
import functools
import gc
import gzip
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import late_dynamo  # noqa: F401
import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.random import default_rng
from PIL import Image
from pytest import fixture, mark, param, raises, skip
from rank_pool import RankPool, environment
from torch import Tensor

from configs import parts
from configs.batch_plan import plan_batches
from configs.command_line import Command, parse_command_line
from configs.schema import Config, Data, Train
from configs.yaml_io import parse_value
from datasets.batch import Batch
from datasets.loading import loader
from datasets.loading.loader import Loader, TrainBatches, build_eval_loader, epoch_layout
from datasets.reading import read_data
from datasets.sources.samples import Samples
from datasets.sources.source import Wanted
from datasets.transforms.host import HostTransform
from engine.evaluation.images import IMAGES, ImageRow
from engine.run import folder as folder_of_run
from utils.device import use_deterministic_algorithms
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.notes import RUN_LOG, Note
from utils.signals import TERMINATION_SIGNALS
from utils.system import is_installed
from utils.tables import read_csv_rows

ROOT = Path(__file__).parents[1]
cli = str.split  # 'words of a command line', as they are typed
# The modules of the packages that `requirements*.txt` call optional.
OPTIONAL_MODULES = {
    "boto3", "braceexpand", "hypothesis", "mlflow", "moto", "obstore", "onnx", "onnxruntime",
    "onnxscript", "pillow_heif", "pyarrow", "pydicom", "scipy", "sklearn", "tensorboard", "trackio", "transformers",
    "triton", "wandb", "webdataset", "xlsxwriter"
}  # fmt: skip

TINY_VIT = [
    "MODEL.NUM_CLASSES=10", "MODEL.EMBED_DIM=16", "MODEL.DEPTH=2", "MODEL.NUM_HEADS=2", "MODEL.PATCH_SIZE=4",
    "DATA.IMAGE_SIZE=8", "DATA.CROP_PCT=1.0", "TRAIN.WARMUP_EPOCHS=0.5", "TRAIN.NUM_EPOCHS=2", "SAVE_FREQ=1",
    "TRAIN.MAX_STEPS=null",  # a resumed run has the value in its own options
]  # fmt: skip
TINY_RESNET = cli("MODEL.TYPE=timm MODEL.NAME=test_resnet DATA.IMAGE_SIZE=32 DATA.CROP_PCT=1.0 MODEL.NUM_CLASSES=10")
ALL_DIGITS = "DATA.FRACTION=1"
SMALL_BATCHES = "DATA.BATCH_SIZE=8"  # 22 steps in an epoch of `digits_flags`; 5 without it
GREY = cli("DATA.IMAGE_CHANNELS=1 DATA.IMAGENET_MEAN=[0.5] DATA.IMAGENET_STD=[0.5]")
CPU = ProcessContext(0, 0, 1, 1, torch.device("cpu"))


def pytest_configure(config: pytest.Config):
    gc.disable()  # until the tests are collected
    torch.set_num_threads(1)  # two ranks of a test share two cores
    os.fsync = lambda descriptor: None  # no test cuts the power, and a run would wait for the disk 30 times
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the processes that tests start, too
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "100")  # torch reads it at the first process group
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2**32 and not _selects_slow_tests(config):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))  # the fast set has less than 1 GB of files
    with suppress(ModuleNotFoundError):
        from hypothesis import settings

        examples = 100 if _selects_slow_tests(config) else 15
        settings.register_profile("examples", max_examples=examples, deadline=None)  # no test asserts a time
        settings.load_profile("examples")


def _selects_slow_tests(config: pytest.Config) -> bool:
    return config.option.markexpr == "slow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Property tests are in both sets: with few examples in the fast one, with many in the slow one.

    The slow set ends with the rooms whose tests are short, so that its last one does not run alone.
    """
    if not _selects_slow_tests(config):
        return
    items.sort(key=lambda item: item.path.relative_to(ROOT).parts[1] in ("configs", "datasets", "engine"))
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(mark.slow)


def pytest_collection_finish(session: pytest.Session):
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20)
    if not _selects_slow_tests(session.config):
        loader.default_num_workers = lambda *_: 0  # to start processes takes longer than to read the images of a test
    folder_of_run.distributions = functools.cache(_distributions)  # each run would parse the metadata of ten packages
    if datasets := sys.modules.get("sklearn.datasets"):
        datasets.load_digits = functools.cache(datasets.load_digits)  # each run would read its text file twice


def pytest_unconfigure():
    gc.freeze()  # else pytest's last collection visits all modules


def _distributions(name: str) -> list[Any]:
    return [SimpleNamespace(version=package.version) for package in distributions(name=name)]


class _Module(pytest.Module):
    """A test module, which is skipped if it imports an optional package that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            name = (getattr(error.__cause__, "name", None) or "").partition(".")[0]
            if name in OPTIONAL_MODULES and not is_installed(name):
                skip(f"needs {name}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


def pytest_runtest_setup(item: pytest.Item):
    """Skips tests that are marked `@mark.gpu` if no GPU is visible."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        skip("needs a GPU")


of_module = fixture(scope="module")


@fixture(scope="session")
def cpu() -> ProcessContext:
    return CPU


@fixture
def gpu() -> ProcessContext:
    """For tests that are marked `gpu`."""
    return ProcessContext(0, 0, 1, 1, torch.device("cuda:0"))


@fixture(params=["cpu", param("gpu", marks=mark.gpu)])
def any_device(request: pytest.FixtureRequest) -> ProcessContext:
    """The CPU, and in a second test a GPU if one is visible."""
    return request.getfixturevalue(request.param)


@fixture(autouse=True)
def own_parts_after_test(monkeypatch) -> Iterator[None]:
    """Removes the parts of the plugins that a test runs: they would be options of each later test of this process."""
    monkeypatch.setattr(parts, "_running", dict(parts._running))
    before = [dict(table) for table in parts.TABLES]
    yield
    for table, own in zip(parts.TABLES, before, strict=True):
        table.clear()
        table.update(own)


@fixture
def saved(tmp_path) -> Callable[[Any], str]:
    """Writes the content of a weight file with torch, in place of an earlier one, and returns its path."""

    def save(content: Any) -> str:
        torch.save(content, tmp_path / "x.pth")
        return str(tmp_path / "x.pth")

    return save


@fixture
def plugin() -> str:
    """The path of a plugin with a part of each kind but a model."""
    return str(ROOT / "tests/fixtures/own_parts.py")


@fixture
def group_of_one(any_device, tmp_path) -> Iterator[ProcessContext]:
    """`any_device` with a process group of one rank."""
    on_gpu = any_device.device.type == "cuda"
    store = dist.FileStore(str(tmp_path / "store"), 1)
    device_id = any_device.device if on_gpu else None
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=0, world_size=1, device_id=device_id)
    yield any_device
    dist.destroy_process_group()


@fixture
def cpu_group() -> Iterator[None]:
    """A process group of this process alone, without a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@fixture(scope="module")
def few_penalties() -> Iterator[None]:
    """The probe tries 2 penalties in place of 13."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.features.classifiers._L2_VALUES", (1e-1, 1e-2))
        yield


@fixture
def nondeterministic_after_test() -> Iterator[None]:
    """Ends the deterministic mode that a run with DETERMINISTIC=true leaves on."""
    yield
    use_deterministic_algorithms(False)


@fixture
def handlers_after_test() -> Iterator[None]:
    """Restores the signal handlers: a process that was interrupted raises no exception on later signals."""
    with own_handlers():
        yield


@contextmanager
def own_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@fixture
def run_log(caplog, monkeypatch) -> pytest.LogCaptureFixture:
    """The records of the log of a run. Before pytest 9, a run in this process hides them from `caplog`."""
    monkeypatch.setattr(logging.getLogger(RUN_LOG), "propagate", True)
    return caplog


def noise_folder(root: Path, train: int, val: int, shape: tuple[int, ...]) -> Path:
    """Images of noise of two classes, in the folder layout of ImageNet. shape: of the pixels."""
    rng = default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            folder = root / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{number}.png")
    return root


def rotated(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def bright_channels(root: Path, **counts: int):
    """A table and images of each split; the labels of an image are its bright channels. counts: images of a split."""
    rng = default_rng(0)
    for split, count in counts.items():
        lines = ["image_path,target"]
        for number in range(count):
            has = rng.random(3) < 0.4
            pixels = (rng.integers(0, 90, (8, 8, 3)) + 110 * has).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"{split}{number}.png")
            lines.append(f"{split}{number}.png,{'|'.join(np.array(['red', 'green', 'blue'])[has])}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")


def slow(*values: Any) -> Any:
    """The parameters of a slow test."""
    return param(*values, marks=mark.slow)


def refused(pattern: str) -> Any:
    """Expects an error that the user can solve."""
    return raises(UserError, match=pattern)


def cells_of(text: str) -> list[list[str]]:
    """The cells of a table in lines, between bars; ' # ' and the rest of its line are a comment."""
    rows = [f" {line}".partition(" # ")[0] for line in text.splitlines()]
    return [[cell.strip() for cell in row.split("|")] for row in rows if row.strip()]


def each_row(text: str) -> Any:
    """Runs a test with the cells of each row of a table, whose first line has the names of its arguments."""
    names, *rows = cells_of(text)
    return mark.parametrize(names, rows)


def values_of(text: str) -> list[list[Any]]:
    """As `cells_of`, with values of YAML; None of an empty cell."""
    return [[parse_value(cell) for cell in row] for row in cells_of(text)]


def each_value(text: str) -> Any:
    """As `each_row`, with values of YAML."""
    names, *rows = values_of(text)
    return mark.parametrize(names, rows)


def code_of(page: str, heading: str) -> str:
    """The first block of Python below a heading of a page."""
    _, found, text = (ROOT / page).read_text().partition(f"# {heading}\n")
    assert found
    return text.partition("```python\n")[2].partition("```")[0]


def line_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The error in which a call ends, which is one line."""
    with refused(r"^[^\n]+$") as error:
        call(*arguments, **options)
    return str(error.value)


def told(notes: Iterable[Note], part: str = "", kind: str = "") -> list[str]:
    """The texts of the notes that contain `part`. kind: of one kind of notes only."""
    return [note.text for note in notes if part in note.text and kind in ("", note.kind)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def config_for(*argv: str) -> Config:
    """The options of a command line."""
    return parse_command_line([*argv]).config


def optimizer_of(model: torch.nn.Module, options: Train) -> torch.optim.Optimizer:
    """As a run whose rate is not scaled builds it."""
    from engine.training.optimizer import build_optimizer

    return build_optimizer(model, options, options.base_lr)


def model_for(config: Config, device: str = "cpu", **options: Any) -> tuple[Any, Any]:
    """The model of these options, and how its weights were read."""
    from models.build import build_model  # imported late: many tests need no model

    return build_model(config.model, config.data, torch.device(device), **options)


def images_of(folder: Path) -> list[ImageRow]:
    """The rows of its `images.csv.gz`."""
    with gzip.open(folder / IMAGES, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
        return [ImageRow(*row) for row in csv.reader(file)][1:]


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def read_samples(data: Data, num_classes: int | None, context: ProcessContext, *splits: str, **how: Any) -> list:
    """The samples of these splits, see `Wanted`; the first ones with the notes of all."""
    given = {key: value for key, value in how.items() if value is not None}
    read = read_data(Wanted(data, splits, num_classes=num_classes, **given), context)
    first, *others = read.splits.values()
    return [first.changed(notes=[*read.notes]), *others]


def samples_for(config: Config, context: ProcessContext, *splits: str) -> list[Samples]:
    return read_samples(config.data, config.model.num_classes, context, *splits)


def train_batches_for(config: Config, samples: Samples, context: ProcessContext) -> Iterator[Batch]:
    """All training batches of a run."""
    layout = epoch_layout(config, samples, plan_batches(config, context.world_size))
    return TrainBatches(config, samples, context, layout).iterate(0, 0, config.train.num_epochs)


def eval_loader_for(config: Config, samples: Samples, context: ProcessContext) -> Loader:
    return build_eval_loader(config, samples, context)


def digits_flags(output: Path) -> list[str]:
    """Flags of a run on an eighth of the digits data set; it takes 0.2 CPU seconds.

    Without scikit-learn, the images are noise, so that GPU tests need the required packages only.
    """
    options = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=1e-3", "DATA.FRACTION=0.125"]
    name = "digits"
    if not is_installed("sklearn"):
        name = "fake"
        options = [*options, "MODEL.NUM_CLASSES=1000"]
    return [*cli(f"-dataset={name} -batch_size=32 -output={output} -batch_size_eval=180 -opts"), *options]


def tensor_bytes_in_memory() -> int:
    """Of all tensors of this process; the pages of a mapped file do not count."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) in (Tensor, torch.nn.Parameter)]
    storages = [one.untyped_storage() for one in found if one.layout is torch.strided and one.device.type == "cpu"]
    return sum({one.data_ptr(): one.nbytes() for one in storages if one.resizable()}.values())


@fixture
def digits_argv(tmp_path) -> list[str]:
    return digits_flags(tmp_path / "out")


def session_for(argv: list[str], context: ProcessContext = CPU) -> Any:
    """The session of a training with these words; nothing is written."""
    from engine.plan.training import plan_training  # imported late: most tests need no training
    from engine.run.log import RunLogger
    from engine.training.batch_size import find_batch_size
    from engine.training.session import build_training_session

    logger = RunLogger(context)
    plan = plan_training(parse_command_line(argv), context, logger, find_batch_size)
    session = build_training_session(plan, context, logger)
    logger.begin()
    return session


@fixture(scope="session")
def trained_digits(tmp_path_factory) -> Callable[..., Path]:
    """The folder of the run of `digits_flags` with more options; trained once per session. For reading only."""
    return functools.cache(lambda *options: train([*digits_flags(tmp_path_factory.mktemp("run")), *options]))


@fixture
def digits_run(tmp_path, trained_digits) -> Callable[..., Path]:
    """A copy of the folder of `trained_digits`, in the output folder of `digits_argv`."""

    def copy(*options: str) -> Path:
        source = trained_digits(*options)
        return shutil.copytree(source, tmp_path / "out" / source.name)

    return copy


def run_script(*argv: str, launcher: tuple[str, ...] = (), status: int = 0, gpus: str = "") -> str:
    """Runs an entry script as a user does, from the project's folder; returns stdout followed by stderr.

    gpus: the visible ones, separated by commas.
    """
    command = [sys.executable, *launcher, *argv]
    result = subprocess.run(command, cwd=ROOT, env=environment(gpus), capture_output=True, text=True, timeout=300)
    output = result.stdout + result.stderr
    assert result.returncode == status, output
    return output


@fixture(scope="session")
def ranks() -> Iterator[Callable[..., RankPool]]:
    """The pool of so many ranks (and of these GPUs): `ranks(2)(function, *arguments)`."""
    with ExitStack() as stack:
        yield functools.cache(lambda *size: stack.enter_context(closing(RankPool(*size))))


def only_run(output: Path, kind: str = "train") -> Path:
    """Returns the only run folder of this kind ('train', 'eval', 'predict' or 'profile') in an output folder."""
    (folder,) = run_folders(output, kind)
    return folder


def run_folders(output: Path, kind: str = "train") -> set[Path]:
    kinds = {"eval", "predict", "profile"}
    folders = {folder: folder.name.partition("-")[0] for folder in output.glob("*-*")}
    return {folder for folder, prefix in folders.items() if (prefix if prefix in kinds else "train") == kind}


def read_result(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["result"]


def _skip_pictures(patch: pytest.MonkeyPatch):
    patch.setattr("engine.evaluation.files.write_pictures", lambda *arguments: {})
    patch.setattr("engine.report.page.write_report", lambda *arguments: None)
    patch.setattr("engine.run.cost.flops_per_image", lambda *arguments, **options: 10**6)
    patch.setattr("engine.run.folder._commit", lambda: "")


@fixture
def without_pictures(monkeypatch):
    """No page, no curves, no attention maps, no count of FLOPs: they take half of the time of a small run."""
    _skip_pictures(monkeypatch)


def train(argv: list[str], context: ProcessContext = CPU, pictures: bool = False) -> Path:
    """Trains in this process and returns the run's folder.

    Without `pictures`, it is the run of `without_pictures`.
    """
    command = parse_command_line(argv)
    root = Path(command.config.save)
    before = run_folders(root)
    _run(command, context, pictures)
    if command.config.model.resume == "auto":
        return only_run(root)
    if command.config.model.resume:
        path = Path(command.config.model.resume)
        return path if path.is_dir() else path.parent
    (folder,) = run_folders(root) - before
    return folder


def run_here(*argv: str, pictures: bool = False) -> int:
    """Runs a command line in this process, on the CPU, as `train`; returns the exit status."""
    return _run(parse_command_line([*argv]), CPU, pictures)


def _run(command: Command, context: ProcessContext, pictures: bool) -> int:
    from engine.commands.run import run

    with pytest.MonkeyPatch.context() as patch, own_handlers():
        if not pictures:
            _skip_pictures(patch)
        return run(command, context)


def evaluate(output: Path, *argv: str, pictures: bool = False) -> Path:
    """Evaluates in this process, on the CPU, and returns the folder in `output`."""
    run_here("-eval", *argv, f"-output={output}", pictures=pictures)
    return only_run(output, "eval")


def predict(output: Path, *argv: str) -> list[dict[str, str]]:
    """Predicts in this process, on the CPU, and returns the rows of `predictions.csv`."""
    assert run_here("-predict", *argv, f"-output={output}") == 0
    return read_csv_rows(output / "predictions.csv")


def assert_same_state(one: object, other: object, where: str = ""):
    """Compares nested dicts and lists bit for bit."""
    if isinstance(one, Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_state(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same_state(left, right, f"{where}[{index}]")
    else:
        assert one == other, where


def states(folder: Path, name: str = "last.pth") -> dict:
    """A checkpoint of a run, without the entries that may differ between equal runs."""
    from engine.checkpoint.files import load_checkpoint

    state = load_checkpoint(folder / name)
    del state["train_seconds"], state["total_seconds"], state["options"]
    return state


def rows(folder: Path) -> list[dict]:
    """The rows of metrics.csv, without the measured columns."""
    measured = {
        "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "peak_memory_bytes",
        "train_seconds", "launch_bound_share"
    }  # fmt: skip
    return [{key: row[key] for key in row.keys() - measured} for row in read_csv_rows(folder / "metrics.csv")]


def export_as(kind: str, weights: Path, output: Path, *words: str):
    from scripts import export

    assert export.main([str(weights), f"-format={kind}", f"-output={output}", *words]) == 0


def step_rows(folder: Path) -> list[dict]:
    """The rows of reports, without the means since the previous row, which covers fewer steps after a resume."""
    reports = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    names = ("epoch", "step", "epoch_step", "lr", "loss_scale", "skipped_steps")
    return [{name: row[name] for name in names} for row in reports if row["kind"] == "report"]


def assert_same_run(one: Path, other: Path):
    """Compares the last checkpoints, the epochs and the reports of two runs."""
    assert_same_state(states(one), states(other))
    assert rows(one) == rows(other)
    assert step_rows(one) == step_rows(other)


def training_samples(patch: pytest.MonkeyPatch) -> list[int]:
    """The indices of the training samples that this process reads from now on."""
    read: list[int] = []
    original = HostTransform.__call__

    def call(transform: HostTransform, image: Any, epoch: int, index: int, repeat: int = 0) -> Any:
        if transform.operations:  # none for samples of an evaluation
            read.append(index)
        return original(transform, image, epoch, index, repeat)

    patch.setattr(HostTransform, "__call__", call)
    return read
