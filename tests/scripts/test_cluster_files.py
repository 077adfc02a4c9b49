"""scripts/slurm/train.sbatch with a fake srun and scontrol, and scripts/kubernetes/train.yaml."""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from conftest import ROOT, config_for, each_row
from pytest import mark

from utils.errors import REFUSED

SBATCH = ROOT / "scripts/slurm/train.sbatch"


def run_sbatch(folder: Path, srun_status: int, *flags: str, **variables: str) -> tuple[int, str, str]:
    """The status of the batch file, and the arguments of srun and of scontrol."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").write_text("")
    programs = folder / "programs"
    programs.mkdir()
    for name, status in (("srun", srun_status), ("scontrol", 0)):
        (programs / name).write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {folder / name}\nexit {status}\n')
        (programs / name).chmod(0o755)
        (folder / name).touch()
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"} | variables
    status = subprocess.run(["bash", SBATCH, *flags], cwd=folder, env=env, timeout=60).returncode
    return status, (folder / "srun").read_text(), (folder / "scontrol").read_text()


REQUEUED = """
status | seconds | scontrol
1 | 900 | requeue 42
137 | 900 | requeue 42
2 | 900 |
138 | 0 | requeue 42
"""


@each_row(REQUEUED)
def test_sbatch_requeues_what_a_retry_may_cure(tmp_path, status, seconds, scontrol):
    ended, _, called = run_sbatch(tmp_path, int(status), SLURM_RESTART_COUNT="0", SECONDS=seconds)
    assert ended == int(status)
    assert called.split() == scontrol.split()


def test_sbatch_passes_flags_that_resume(tmp_path):
    _, srun, _ = run_sbatch(tmp_path, 0, "-opts", "SEED=3", SLURM_CPUS_PER_TASK="8")
    cpus, python, script, *flags = srun.splitlines()
    assert (cpus, python, script) == ("--cpus-per-task=8", "python", "main_multi_gpu.py")
    config = config_for(*flags)
    assert (config.model.resume, config.seed, config.amp.enabled) == ("auto", 3, True)


# After a second the launcher knows its ranks.
_STOPPED = "time.sleep(1); signal.signal(15, lambda *_: sys.exit({})); os.kill(os.getppid(), 15); time.sleep(60)"


OF_RANK_0 = f"""
script | status
sys.exit(2) | 2
os.kill(os.getpid(), 9) | 137
{_STOPPED.format(143)} | 143  # saved
{_STOPPED.format(1)} | 1  # the save has failed
"""


@mark.slow
@each_row(OF_RANK_0)
def test_torchrun_ends_with_the_status_of_a_rank(tmp_path, script, status):
    (tmp_path / "script.py").write_text(f"import os, signal, sys, time\nif os.environ['RANK'] == '0': {script}\n")
    env = os.environ | {"PET_NPROC_PER_NODE": "2", "PET_STANDALONE": "1"}
    command = [sys.executable, ROOT / "scripts/kubernetes/torchrun.py", tmp_path / "script.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=200)
    assert ended.returncode == int(status)


def test_kubernetes_manifest():
    service, job = yaml.safe_load_all((ROOT / "scripts/kubernetes/train.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {variable["name"]: variable.get("value", "1") for variable in container["env"]}
    assert container["command"] == ["python", "scripts/kubernetes/torchrun.py", "main_multi_gpu.py"]
    rules = f"""
- action: FailJob
  onExitCodes: {{containerName: {container["name"]}, operator: In, values: [{REFUSED}]}}
- action: Ignore
  onPodConditions: [{{type: DisruptionTarget}}]
"""
    assert job["spec"]["podFailurePolicy"]["rules"] == yaml.safe_load(rules)
    assert spec["restartPolicy"] == "Never"
    assert int(env["PET_NNODES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(env["PET_NPROC_PER_NODE"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    name = job["metadata"]["name"]
    assert env["PET_MASTER_ADDR"] == f"{name}-0.{spec['subdomain']}"  # the host name of the pod with index 0
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert config_for(*container["args"]).model.resume == "auto"
