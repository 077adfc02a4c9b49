"""The fork server has the workers' modules in memory, from any working folder; which commands start it early."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from configs.command_line import parse_command_line

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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_the_server_imports_torch_and_nothing_from_the_working_folder(tmp_path):
    """Its files may have the names of modules that the server and the tracker of resources import."""
    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text(PROGRAM)
    data.mkdir()
    for module in ("multiprocessing", "queue", "selectors", "signal", "struct"):
        (data / f"{module}.py").write_text("raise SystemExit('imported from the working folder')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(program), str(ROOT)]
    done = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.stdout.split(), done.stderr) == (["started", "loaded"], "")


# Prints whether the server is a fork of this process and what a worker has inherited; then again beside a thread. Lines
# of Python reach stderr while a library's are captured, in the rank and in the worker.
FORKING_PROGRAM = """
import multiprocessing, os, signal, sys, threading, warnings
from multiprocessing import forkserver
from pathlib import Path
sys.path[0] = sys.argv[1]
warnings.simplefilter("error")
from datasets.decoding.partial_jpeg import captured_stderr
from datasets.loading.workers import start_worker_server
from utils.processes.entry import repair_standard_streams
def write_beside_a_library(line):
    with captured_stderr() as lines:
        print(line, file=sys.stderr, flush=True)
        os.write(2, b"of a library")
    assert lines == ["of a library"], lines
def inherited(opened):
    repair_standard_streams()  # as `start_worker` does
    write_beside_a_library("of a worker")
    handler = signal.getsignal(signal.SIGTERM)
    print("torch" in sys.modules, handler == signal.SIG_DFL, os.path.exists(f"/proc/self/fd/{opened}"), flush=True)
def report():
    start_worker_server(may_fork=True)
    server = forkserver._forkserver._forkserver_pid
    files = [Path(f"/proc/{process}/cmdline").read_text() for process in (server, "self")]
    worker = multiprocessing.get_context("forkserver").Process(target=inherited, args=(opened.fileno(),))
    worker.start()
    worker.join()
    print("forked" if files[0] == files[1] else "anew", worker.exitcode, flush=True)
if __name__ == "__main__":
    import torch
    repair_standard_streams()
    write_beside_a_library("of the rank")
    calls = []
    torch._C._cuda_getDeviceCount = lambda: calls.append(1) or 0  # initializes CUDA: a fork could not use it
    from engine.commands.run import run
    assert not calls
    signal.signal(signal.SIGTERM, print)
    opened = os.fdopen(os.dup2(2, 99), "w")
    print("once", end=" ")
    report()
    forkserver._forkserver._stop()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    report()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the server starts anew")
@pytest.mark.slow
def test_the_server_is_forked_from_a_process_without_threads(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORKING_PROGRAM)
    command = [sys.executable, str(program), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = ["once True True False", "forked 0", "True True False", "anew 0"]
    assert done.stdout.splitlines() == lines
    assert done.stderr.splitlines() == ["of the rank", "of a worker", "of a worker"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-dataset=folder", "-data_path=."], True),
        (["-dataset=folder", "-data_path=.", "-num_workers=0"], False),
        (["-dataset=folder", "-data_path=.", "-dry_run"], False),
        (["-predict", ".", "-pretrained=a.pth"], False),
        (["-dataset=cifar10", "-data_path=."], False),
        (["-dataset=cifar10", "-data_path=.", "-batch_size=auto", "-opts", "DATA.GLOBAL_BATCH_SIZE=64"], True),
    ],
)
def test_which_commands_start_the_server_early(argv, expected):
    assert parse_command_line(["-cfg=configs/vit_tiny_patch16_224.yaml", *argv]).needs_worker_server == expected
