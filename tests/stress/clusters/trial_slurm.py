"""scripts/slurm/train.sbatch under Slurm's real daemons: time limit, save, requeue, resume. About 5 minutes.

python -m pytest -q tests/stress/clusters/trial_slurm.py
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_rig
from cluster_runs import ROOT, assert_same_weights, flags, only_log, train_unbroken, wait_for_log

LIMIT_SECONDS = 900
SHORT, LONG = 10, 100  # epochs; about 1 s each on two idle cores
pytestmark = pytest.mark.skipif(slurm_rig.missing_program() is not None, reason=str(slurm_rig.missing_program()))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_rig.slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


def edited(folder: Path, arguments: list[str]) -> str:
    """The batch file with other flags, as a user edits it."""
    text = (ROOT / "scripts/slurm/train.sbatch").read_text()
    text = re.sub(r"FLAGS=\(.*?\n\)", lambda _: f"FLAGS=({' '.join(arguments)})", text, flags=re.DOTALL)
    text = text.replace("source .venv/bin/activate", f"export PATH={Path(sys.executable).parent}:$PATH")
    text = text.replace("#SBATCH --gpus-per-node=8\n", "")
    path = folder / "train.sbatch"
    path.write_text(text)
    return str(path)


def submit(slurm: dict[str, str], folder: Path, arguments: list[str], *options: str) -> str:
    sizes = ("--ntasks-per-node=2", "--cpus-per-task=1", f"--output={folder / 'job.log'}")
    command = ["sbatch", "--parsable", *sizes, *options, edited(folder, arguments)]
    return subprocess.run(command, cwd=ROOT, env=slurm, capture_output=True, text=True, check=True).stdout.strip()


def job(slurm: dict[str, str], number: str) -> dict[str, str]:
    shown = subprocess.run(["scontrol", "show", "job", number], env=slurm, capture_output=True, text=True).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def wait_for_end(slurm: dict[str, str], number: str) -> dict[str, str]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        state = job(slurm, number)
        if state["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(1)


def test_time_limits_then_finished_with_the_weights_of_an_unbroken_run(slurm, tmp_path):
    """Slurm counts time limits in minutes, and sends the signal up to a minute early: after 30 to 90 s."""
    output = tmp_path / "out"
    number = submit(slurm, tmp_path, flags(output, LONG), "--time=2", "--signal=USR1@30")
    ended = wait_for_end(slurm, number)
    assert ended["JobState"] == "COMPLETED" and int(ended["Restarts"]) >= 1, (tmp_path / "job.log").read_text()
    assert "Interrupted by SIGUSR1; saved" in only_log(output)
    print(f"requeued {ended['Restarts']} times")
    train_unbroken(flags(tmp_path / "unbroken", LONG))
    assert_same_weights(output, tmp_path / "unbroken")


def test_sigusr2_of_submitit_is_requeued_too(slurm, tmp_path):
    output = tmp_path / "out"
    number = submit(slurm, tmp_path, flags(output, SHORT), "--time=10")
    wait_for_log(output, "Epoch[004", LIMIT_SECONDS)
    subprocess.run(["scancel", "--signal=USR2", number], env=slurm, check=True)
    ended = wait_for_end(slurm, number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), (tmp_path / "job.log").read_text()
    assert "Interrupted by SIGUSR2; saved" in only_log(output)
    train_unbroken(flags(tmp_path / "unbroken", SHORT))
    assert_same_weights(output, tmp_path / "unbroken")


def test_cancelled_and_failed_jobs_are_not_requeued(slurm, tmp_path):
    output = tmp_path / "out"
    (tmp_path / "failing").mkdir()
    failing = submit(slurm, tmp_path / "failing", [*flags(output, 2), "DATA.DATA_PATH=/nowhere", "DATA.DATASET=folder"])
    number = submit(slurm, tmp_path, flags(output, 1000), "--time=10")
    wait_for_log(output, "Epoch[002", LIMIT_SECONDS)
    subprocess.run(["scancel", number], env=slurm, check=True)
    ended = wait_for_end(slurm, number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    ended = wait_for_end(slurm, failing)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "1:0")
    assert (tmp_path / "failing/job.log").read_text().count("error: /nowhere") == 1
