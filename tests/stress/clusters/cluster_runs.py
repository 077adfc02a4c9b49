"""Small runs for the tests of this folder, and the comparison of their weights."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT, assert_same_state, only_run, states
from pytest import skip
from rank_pool import environment, reset_signals

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
LIMIT_SECONDS = 900  # for a step of a trial, also on a slow machine


def require(*programs: str, needs_root: bool = True) -> None:
    """Skips a trial that this host cannot run. Daemons are in /usr/sbin."""
    if needs_root and os.geteuid() != 0:
        skip("needs root")
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    if missing:
        skip(f"needs {', '.join(missing)}")
    reset_signals()


def flags(output: Path, epochs: int, *options: str) -> list[str]:
    """A run of two ranks on the digits, 22 steps per epoch, about 1 s each on two cores."""
    model = ("MODEL.EMBED_DIM=48", "MODEL.DEPTH=2", "REPORT_FREQ=5", "VALIDATE_FREQ=1000", "SAVE_FREQ=1000")
    train = (f"TRAIN.NUM_EPOCHS={epochs}", "TRAIN.WARMUP_EPOCHS=1", "MODEL.DROPOUT=0.1")
    return [
        "-cfg=configs/vit_digits.yaml", "-batch_size=32", "-num_workers=0", f"-output={output}",
        "-opts", *model, *train, *options,
    ]  # fmt: skip


def wait_until(condition: Callable[[], object], problem: str, limit_seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        time.sleep(0.1)


def wait_for_log(output: Path, text: str) -> None:
    """Waits until a log file of a run in `output` contains `text`."""
    wait_until(lambda: any(text in log.read_text() for log in output.glob("*/log.txt")), f"no line with {text}")


def only_log(output: Path) -> str:
    (log,) = output.glob("vit_digits-*/log.txt")
    return log.read_text()


def assert_unbroken(output: Path, epochs: int, *options: str) -> None:
    """Compares the checkpoint of the only run in a folder with a run of two local ranks, bit for bit."""
    folder = output.with_name("unbroken")
    command = [sys.executable, "main_multi_gpu.py", "-ngpus=2", *flags(folder, epochs, *options)]
    subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=True, timeout=LIMIT_SECONDS)
    assert_same_state(*(states(only_run(one)) for one in (output, folder)))
