"""Small runs for the tests of this folder, and the comparison of their weights."""

import os
import subprocess
import sys
import time
from pathlib import Path

from faults.saved import state_hash

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 900  # for a step of a trial, also on a slow machine
LAUNCHERS = ("SLURM", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PET_", "TORCHELASTIC_")


def flags(output: Path, epochs: int, *options: str) -> list[str]:
    """A run of two ranks on the digits, 22 steps per epoch, about 1 s each on two cores."""
    model = ("MODEL.EMBED_DIM=48", "MODEL.DEPTH=2", "REPORT_FREQ=5", "VALIDATE_FREQ=1000", "SAVE_FREQ=1000")
    train = (f"TRAIN.NUM_EPOCHS={epochs}", "TRAIN.WARMUP_EPOCHS=1", "MODEL.DROPOUT=0.1")
    return [
        "-cfg=configs/vit_digits.yaml", "-batch_size=32", "-num_workers=0", f"-output={output}",
        "-opts", *model, *train, *options,
    ]  # fmt: skip


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process without variables of launchers, for one thread per process and no GPU."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return env | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | variables


def wait_for_log(output: Path, text: str) -> None:
    """Waits until a log file of a run in `output` contains `text`."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not any(text in log.read_text() for log in output.glob("*/log.txt")):
        assert time.monotonic() < deadline, f"no line with {text}"
        time.sleep(0.1)


def only_log(output: Path) -> str:
    (log,) = output.glob("vit_digits-*/log.txt")
    return log.read_text()


def assert_unbroken(output: Path, epochs: int) -> None:
    """Compares the checkpoint of the only run in a folder with a run of two local ranks, bit for bit."""
    folder = output.with_name("unbroken")
    command = [sys.executable, "main_multi_gpu.py", "-ngpus=2", *flags(folder, epochs)]
    subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=True, timeout=LIMIT_SECONDS)
    left, right = (state_hash(*one.glob("*/last.pth")) for one in (output, folder))
    assert left == right, "the weights differ"
