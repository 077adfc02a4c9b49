"""Errors about loading workers that die, hang or run out of memory; no worker outlives its run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from configs.schema import Data
from datasets.batch import Batch
from datasets.decoding.decode import LazyImage
from datasets.loading import loader as loading
from datasets.loading.loader import BatchReader, Loader, num_workers
from datasets.loading.sampler import EvalSampler
from datasets.loading.workers import default_num_workers
from datasets.sources.in_memory import FakeImages
from datasets.transforms.host import build_eval_host_transform
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.memory_shortage import IN_LOADING
from utils.torch_compat import loader_workers

CPU = ProcessContext(0, 0, 1, 1, torch.device("cpu"))


class Images(FakeImages):
    """Noise; reading the image 100 fails or hangs."""

    def __init__(self, fault: str = "none") -> None:
        super().__init__(num_samples=400, num_classes=2, size=8)
        self.fault = fault

    def open(self, index: int, channels: int) -> LazyImage:
        if index == 100 and self.fault == "a bug":
            raise RuntimeError("a bug")
        if index == 100 and self.fault == "a hanging disk":
            time.sleep(1000)
        return super().open(index, channels)


def loader_of(samples: FakeImages, timeout_seconds: float = 600, workers: int = 2) -> Loader:
    data = Data.model_validate({"IMAGE_SIZE": 8, "NUM_WORKERS": workers})
    reader = BatchReader(samples, data, build_eval_host_transform(data))
    return Loader(reader, EvalSampler(400, 4), CPU, timeout_seconds, None)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(loading, "POLL_SECONDS", 0.2)
    monkeypatch.setattr("datasets.loading.workers.POLL_SECONDS", 0.2)


def workers_of(batches: Iterator[Batch], loader: Loader) -> list[int]:
    """The process ids of the workers, after each has sent a batch."""
    next(batches), next(batches)
    return [worker.pid for worker in loader_workers(loader._batches._iterator)]


def assert_gone(*pids: int) -> None:
    deadline = time.monotonic() + 60
    while alive := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("signal_number", "expected"),
    [
        (signal.SIGKILL, "SIGKILL, probably out of host memory; lower -num_workers, or give the job more host memory"),
        (signal.SIGBUS, r"SIGBUS, probably because /dev/shm is full; enlarge /dev/shm \(docker run --shm-size=8g\)"),
        (signal.SIGSEGV, "SIGSEGV, perhaps by a damaged file; for details, use no workers: -num_workers=0"),
    ],
)
def test_a_killed_worker(signal_number, expected):
    loader = loader_of(Images())
    batches = iter(loader)
    workers = workers_of(batches, loader)
    os.kill(workers[0], signal_number)
    with pytest.raises(UserError, match=f"^loading worker {workers[0]} was killed by {expected}"):
        list(batches)
    assert_gone(*workers)


@pytest.mark.parametrize("how", ["a hanging disk", "stopped"])
def test_a_hanging_worker(how):
    loader = loader_of(Images(how), timeout_seconds=2)
    batches = iter(loader)
    workers = workers_of(batches, loader)
    if how == "stopped":
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
    with pytest.raises(
        UserError, match=r"no loading worker has answered for 2 s; check that the disk of DATA\.DATA_PATH"
    ):
        list(batches)
    assert_gone(*workers)


def test_the_rank_waits_for_a_slow_worker():
    """Longer than the time between two checks for dead workers."""
    loader = loader_of(Images())
    batches = iter(loader)
    workers = workers_of(batches, loader)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    script = f"import os, time; time.sleep(1.5); [os.kill(worker, {signal.SIGCONT}) for worker in {workers}]"
    with subprocess.Popen([sys.executable, "-c", script]):
        assert len(list(batches)) == 98


def test_a_bug_in_a_worker_keeps_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)Original Traceback.*test_workers.py.*a bug"):
        list(loader_of(Images("a bug")))


def test_default_number_of_workers(monkeypatch):
    """With GPUs, each rank keeps two cores of its share."""
    defaults = {}
    for cores in (1, 2, 8, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        for ranks in (1, 2):
            defaults[cores, ranks] = [default_num_workers(ranks, on_gpu) for on_gpu in (False, True)]
    assert defaults == {
        (1, 1): [1, 1], (1, 2): [1, 1], (2, 1): [2, 1], (2, 2): [1, 1], (8, 1): [8, 6], (8, 2): [4, 2],
        (64, 1): [16, 16], (64, 2): [16, 16],
    }  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_number_of_workers_of_a_rank(monkeypatch, device):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    context, images = ProcessContext(0, 0, 2, 2, torch.device(device)), Images()
    images.in_memory = False
    assert num_workers(images, Data(), context) == {"cpu": 8, "cuda": 6}[device]
    assert num_workers(images, Data.model_validate({"NUM_WORKERS": 0}), context) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_shortage_of_pinned_memory(monkeypatch, workers):
    """The workers live; the exception keeps its type and says that a batch was being loaded."""

    def cannot_pin(_):
        raise torch.AcceleratorError("Caught AcceleratorError in pin memory thread for device 0.\nOriginal ...")

    loader = loader_of(Images(), workers=workers)
    iterator = "_SingleProcessDataLoaderIter" if workers == 0 else "_MultiProcessingDataLoaderIter"
    monkeypatch.setattr(f"torch.utils.data.dataloader.{iterator}._next_data", cannot_pin)
    with pytest.raises(torch.AcceleratorError, match="pin memory thread") as raised:
        next(iter(loader))
    assert IN_LOADING in raised.value.__notes__


def test_workers_ignore_termination_signals():
    """Launchers and terminals send signals to all processes; the rank may still need batches to evaluate and save."""
    loader = loader_of(Images())
    batches = iter(loader)
    workers = workers_of(batches, loader)
    server = int(Path(f"/proc/{workers[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for process in (server, *workers):
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGINT)
    assert len(list(batches)) == 98
    assert len(list(loader)) == 100


def test_full_shared_memory(monkeypatch):
    def full(_):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(loading, "get_worker_info", lambda: "a worker")
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    with pytest.raises(UserError, match=r"shared memory is full: no room for a batch \(unable .*\); enlarge /dev/shm"):
        next(iter(loader_of(Images(), workers=0)))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(28, "No space left on device"),
            "shared memory is full: no room for loading workers; enlarge",
        ),
        (OSError(24, "Too many open files"), r"too many open files .*ulimit -n"),
        (EOFError(), r"loading workers cannot start \(EOFError\(\)\); use no workers: -num_workers=0"),
    ],
)
def test_workers_that_cannot_start(monkeypatch, error, expected):
    def cannot_start(_):
        raise error

    loader = loader_of(Images())
    monkeypatch.setattr(type(loader._batches), "__iter__", cannot_start)
    with pytest.raises(UserError, match=expected):
        next(iter(loader))


SCRIPT = """
import os, signal, sys, time
from test_workers import *
loader = loader_of(Images())
batches = iter(loader)
workers = workers_of(batches, loader)
for worker in workers:
    os.kill(worker, signal.SIGSTOP)
print(*workers, flush=True)
exec(sys.argv[1])
"""


def test_no_worker_outlives_its_run_even_stopped():
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'datasets' / 'loading'}"}
    ends = ("1 / 0", "os.kill(os.getpid(), signal.SIGKILL)")
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, end], env=environment, stdout=subprocess.PIPE) for end in ends
    ]
    for run in runs:
        workers = [int(pid) for pid in run.communicate(timeout=60)[0].split()]
        assert len(workers) == 2
        assert_gone(*workers)


def test_workers_import_no_package_that_they_do_not_need():
    """Each of these takes as long to import as torch itself, or longer."""
    script = "import sys, datasets.loading.loader; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    unneeded = {"torchvision", "timm", "sklearn", "torch._dynamo", "tensorboard", "matplotlib"}
    assert not unneeded & set(imported.stdout.split())
