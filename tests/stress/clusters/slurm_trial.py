"""scripts/slurm/train.sbatch under Slurm's real daemons: time limit, save, requeue, resume. About 5 minutes."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clusters import cluster_runs, slurm_rig
from clusters.cluster_runs import assert_unbroken, flags, only_log, wait_for_log, wait_until
from conftest import ROOT

SHORT, LONG = 10, 100  # epochs; about 1 s each on two idle cores


def missing_program() -> str | None:
    return cluster_runs.missing_program(*slurm_rig.PROGRAMS)


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
    ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    wait_until(lambda: job(slurm, number)["JobState"] in ends, f"job {number} does not end")
    return job(slurm, number)


def _time_limits(slurm: dict[str, str], folder: Path) -> None:
    """Slurm counts time limits in minutes, and sends the signal up to a minute early: after 30 to 90 s."""
    output = folder / "out"
    number = submit(slurm, folder, flags(output, LONG), "--time=2", "--signal=USR1@30")
    ended = wait_for_end(slurm, number)
    assert ended["JobState"] == "COMPLETED" and int(ended["Restarts"]) >= 1, (folder / "job.log").read_text()
    assert "Interrupted by SIGUSR1; saved" in only_log(output)
    assert_unbroken(output, LONG)


def _sigusr2_of_submitit(slurm: dict[str, str], folder: Path) -> None:
    output = folder / "out"
    number = submit(slurm, folder, flags(output, SHORT), "--time=10")
    wait_for_log(output, "Epoch[004")
    subprocess.run(["scancel", "--signal=USR2", number], env=slurm, check=True)
    ended = wait_for_end(slurm, number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), (folder / "job.log").read_text()
    assert "Interrupted by SIGUSR2; saved" in only_log(output)
    assert_unbroken(output, SHORT)


def _cancelled_and_failed(slurm: dict[str, str], folder: Path) -> None:
    output = folder / "out"
    (folder / "failing").mkdir()
    failing = submit(slurm, folder / "failing", [*flags(output, 2), "DATA.DATASET=nothing"])
    number = submit(slurm, folder, flags(output, 1000), "--time=10")
    wait_for_log(output, "Epoch[002")
    subprocess.run(["scancel", number], env=slurm, check=True)
    ended = wait_for_end(slurm, number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    ended = wait_for_end(slurm, failing)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "2:0")
    assert (folder / "failing/job.log").read_text().count("error: DATA.DATASET: unknown data set nothing") == 1


def _with_daemons(trial: Callable[[dict[str, str], Path], None], folder: Path) -> None:
    (daemons := folder / "daemons").mkdir()
    with slurm_rig.slurm(daemons) as variables:
        trial(variables, folder)


TRIALS = {
    "time limits, and the weights of an unbroken run": partial(_with_daemons, _time_limits),
    "SIGUSR2 of submitit is requeued": partial(_with_daemons, _sigusr2_of_submitit),
    "cancelled and refused jobs are not requeued": partial(_with_daemons, _cancelled_and_failed),
}
