"""The server of the loading workers; errors about workers that die, hang or run out of memory; no worker outlives its
run."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from unittest.mock import Mock

import numpy as np
import torch
from conftest import CPU, ROOT, config_for, each_row, each_value, refused
from pytest import fixture, mark, raises

from configs.command_line import parse_command_line
from configs.schema import Data
from datasets.batch import Batch
from datasets.loading import loader as loading
from datasets.loading.loader import BatchReader, Loader, build_eval_loader, num_workers
from datasets.loading.sampler import EvalSampler
from datasets.loading.workers import default_num_workers, start_worker_server
from datasets.sources.sets.in_memory import FakeImages
from datasets.transforms.host import build_eval_host_transform
from tests.datasets.shards.range_server import wait_for
from utils.device import IN_LOADING
from utils.distributed import ProcessContext
from utils.system import CoreShare
from utils.torch_compat import loader_workers


class KeysOfBatches:
    """Those of a sampler, without a length, as of remote shards: torch's iterators over them have no truth value."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler


class Images(FakeImages):
    """Noise. fault: is called to read the image 100."""

    def __init__(self, fault=int):
        super().__init__(num_samples=400, num_classes=2, size=(8, 8))
        self.fault = fault

    def for_loader(self, sampler, source_timeout):
        return self, KeysOfBatches(sampler)

    def open(self, index, channels):
        if index == 100:
            self.fault()
        return super().open(index, channels)


def hang():
    time.sleep(1000)


def bug():
    raise RuntimeError("a bug")


def loader_of(
    samples: FakeImages, timeout_seconds: float = 600, workers: int = 2, context: ProcessContext = CPU
) -> Loader:
    data = Data(IMAGE_SIZE=8, NUM_WORKERS=workers)
    reader = BatchReader(samples, data, build_eval_host_transform(data), timeout_seconds)
    return Loader(reader, EvalSampler(400, 4), context, None)


@fixture(autouse=True)
def short_polls(monkeypatch):
    """And workers by default, which other tests do not have."""
    monkeypatch.setattr(loading, "default_num_workers", default_num_workers)
    monkeypatch.setattr(loading, "POLL_SECONDS", 0.2)
    monkeypatch.setattr("datasets.loading.workers.POLL_SECONDS", 0.2)


def workers_of(batches: Iterator[Batch], loader: Loader) -> list[int]:
    """The process ids of the workers, after each has sent a batch."""
    next(batches), next(batches)
    return [worker.pid for worker in loader_workers(loader._batches._iterator)]


def assert_gone(*pids: int):
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), seconds=300)


HANGING = r"worker.* 4 s; .*DATA\.DATA_PATH.*TIMEOUT_SECONDS"


class LargeMessages(Images):
    """The targets of a batch are larger than the pipe to the rank."""

    def __init__(self):
        super().__init__()
        self.arrays = {"targets": np.zeros((400, 50_000), np.int8)}


@mark.parametrize(
    "samples, workers, sent, line",
    [
        (Images(), 2, signal.SIGBUS, r"worker \d+ was killed by SIGBUS, .*/dev/shm .*--shm-size"),
        (Images(hang), 2, None, HANGING),
        (LargeMessages(), 1, signal.SIGKILL, r"\d+ was killed by SIGKILL"),
        (LargeMessages(), 1, signal.SIGSTOP, HANGING),
    ],
)
@mark.slow
def test_a_worker_that_is_killed_stopped_or_hangs(samples, workers, sent, line):
    """A large message is sent in parts: it is in the middle of one."""
    loader = loader_of(samples, timeout_seconds=5, workers=workers)
    batches = iter(loader)
    for _ in range(workers):
        next(batches)
    iterator = loader._batches._iterator
    pids = [worker.pid for worker in loader_workers(iterator)]
    if sent:
        wait_for(iterator._worker_result_queue._reader.poll)
        os.kill(pids[0], sent)
    with refused(line):
        list(batches)  # the loader may have the next batch already
    loader._batches._iterator = iterator = None
    assert_gone(*pids)


@mark.slow
def test_a_bug_in_a_worker_keeps_its_traceback():
    with raises(RuntimeError, match=r"(?s)Original Traceback.*test_workers.py.*a bug"):
        list(loader_of(Images(bug), workers=1))


NUMBERS = """
in_memory | given | device | workers
false     |       | cpu    | 8
false     |       | cuda   | 6
false     | 0     | cpu    | 0
false     | 0     | cuda   | 0
true      |       | cpu    | 0
true      |       | cuda   | 6
true      | 3     | cpu    | 3
true      | 3     | cuda   | 3
"""


@each_value(NUMBERS)
def test_number_of_workers_of_a_rank(in_memory, given, device, workers):
    data = Data(NUM_WORKERS=given)
    samples = Images()
    samples.in_memory = in_memory
    context = ProcessContext(0, 0, 2, 2, torch.device(device), core_share=CoreShare(8, "8 cores"))
    assert num_workers(BatchReader(samples, data, build_eval_host_transform(data)), context)[0] == workers


@each_value("images | workers\n8 | 0\n24 | 3\n800 | 16")
def test_no_worker_is_without_a_batch(images, workers):
    config = config_for("-opts", "DATA.BATCH_SIZE_EVAL=8")
    samples = FakeImages(images, 2, (8, 8))
    samples.in_memory = False
    context = ProcessContext(0, 0, 1, 1, torch.device("cpu"), core_share=CoreShare(16, "16 cores"))
    assert build_eval_loader(config, samples, context)._batches.num_workers == workers


def test_shortage_of_pinned_memory(monkeypatch):
    """The workers live; the exception keeps its type and says that a batch was being loaded."""

    cannot_pin = torch.AcceleratorError("Caught AcceleratorError in pin memory thread for device 0.\nOriginal ...")
    loader = loader_of(Images(), workers=0)
    next_data = "torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data"
    monkeypatch.setattr(next_data, Mock(side_effect=cannot_pin))
    with raises(torch.AcceleratorError, match="pin memory thread") as raised:
        next(iter(loader))
    assert IN_LOADING in raised.value.__notes__


@mark.slow
def test_workers_start_at_once_ignore_termination_signals_and_end_with_their_loader():
    """Launchers and terminals send signals to all processes; the rank may still need batches to evaluate and save."""
    loader = loader_of(Images())
    batches = iter(loader)
    workers = [worker.pid for worker in loader_workers(loader._batches._iterator)]
    assert len(workers) == 2
    assert all(os.path.exists(f"/proc/{worker}") for worker in workers)
    assert workers_of(batches, loader) == workers
    for process in (forkserver._forkserver._forkserver_pid, *workers):
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGINT)
    assert len(list(batches)) == 98
    batches = iter(loader)
    assert len([next(batches) for _ in range(50)]) == 50
    del batches, loader  # not exhausted
    gc.collect()
    assert_gone(*workers)


START = "multiprocessing.forkserver.ensure_running"
ITERATE = "torch.utils.data.DataLoader.__iter__"
REFUSED = {  # the line -> what is replaced, and its error
    "shared memory is full: .*/dev/shm": (ITERATE, OSError(28, "")),
    "loading workers cannot start .*-num_workers=0": (ITERATE, EOFError()),
    "TMPDIR: ": (START, OSError("AF_UNIX path too long")),  # as Python's sockets
}


@mark.parametrize("line", REFUSED)
def test_workers_that_cannot_start(line, monkeypatch):
    """One line, before a worker runs; the signals of the rank stay as they are."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    loader = loader_of(Images())
    before = multiprocessing.active_children()
    name, error = REFUSED[line]
    monkeypatch.setattr(name, Mock(side_effect=error))
    with refused(f"^{line}"):
        start_worker_server() if line == "TMPDIR: " else iter(loader)
    assert not set(multiprocessing.active_children()) - set(before)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


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


@mark.slow
def test_no_worker_outlives_its_run_even_stopped():
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'datasets' / 'loading'}"}
    ends = ("1 / 0", "os.kill(os.getpid(), signal.SIGKILL)")
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, end], env=environment, stdout=subprocess.PIPE) for end in ends
    ]
    for run in runs:
        workers = run.communicate(timeout=300)[0].split()
        assert len(workers) == 2
        assert_gone(*map(int, workers))


# Prints 'loaded' if the server maps torch's libraries before any worker asks for them. The last line asks the server
# for a process, which it starts after its imports.
PROGRAM = """
import multiprocessing, sys
from multiprocessing import forkserver
from pathlib import Path
sys.path[0] = sys.argv[1]
from datasets.loading.workers import start_worker_server
if __name__ == "__main__":
    before = dict(__import__("os").environ)
    start_worker_server()
    assert dict(__import__("os").environ) == before
    worker = multiprocessing.get_context("forkserver").Process(target=print, args=("started",))
    worker.start()
    worker.join()
    server = forkserver._forkserver._forkserver_pid
    print("loaded" if "libtorch" in Path(f"/proc/{server}/maps").read_text() else "empty")
"""


@mark.skipif(sys.platform != "linux", reason="reads /proc")
@mark.slow
def test_the_server_imports_torch_and_nothing_from_the_working_folder(tmp_path):
    """Its files may have the names of modules that the server and the tracker of resources import."""
    program = tmp_path / "program.py"
    data = tmp_path / "data"
    program.write_text(PROGRAM)
    data.mkdir()
    for module in ["multiprocessing", "queue", "selectors", "signal", "struct"]:
        (data / f"{module}.py").write_text("raise SystemExit('imported from the working folder')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(program), str(ROOT)]
    done = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["started", "loaded"]
    assert done.stderr == ""


# The command, and whether the server starts early
COMMANDS = """
words | expected
-dataset=folder -data_path=. | True
-dataset=folder -data_path=. -num_workers=0 | False
-dataset=cifar10 -data_path=. | False
-dataset=cifar10 -data_path=. -batch_size=auto -opts DATA.GLOBAL_BATCH_SIZE=64 | True
-predict=tests -pretrained=tests/conftest.py | True
-predict=README.md -pretrained=tests/conftest.py | False
-dataset=folder -data_path=. -dry_run | False
"""


@each_row(COMMANDS)
def test_which_commands_start_the_server_early(words, expected):
    command = parse_command_line(["-cfg=configs/vit_tiny_patch16_224.yaml", *words.split()])
    assert str(command.needs_worker_server) == expected
