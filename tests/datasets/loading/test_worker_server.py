"""The fork server has the workers' modules in memory, from any working folder; which commands start it early."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from configs.reading.command_line import parse_command_line

# Prints 'loaded' if the server maps torch's libraries before any worker asks for them. The last line asks the server
# for a process, which it starts after its imports.
PROGRAM = """
import multiprocessing, sys
from multiprocessing import forkserver
from pathlib import Path
sys.path[0] = sys.argv[1]
from datasets.loading.worker_server import start_worker_server
if __name__ == "__main__":
    assert "torch" not in sys.modules
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


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-dataset=folder", "-data_path=."], True),
        (["-dataset=folder", "-data_path=.", "-num_workers=0"], False),
        (["-dataset=folder", "-data_path=.", "-dry_run"], False),
        (["-predict", ".", "-pretrained=a.pth"], False),
        (["-dataset=cifar10", "-data_path=."], False),
    ],
)
def test_which_commands_start_the_server_early(argv, expected):
    assert parse_command_line(["-cfg=configs/vit_tiny_patch16_224.yaml", *argv]).loads_in_workers == expected
