"""The environment of a run: versions, commit, devices; secrets stay out; changes are named when a run resumes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from engine.run import folder as folder_module
from engine.run.facts import FACTS, Environment, RunWarning, read_environment, read_facts, to_json
from engine.run.folder import PACKAGES, record_environment
from engine.run.log import RunLogger
from utils.distributed import ProcessContext

NEEDS_GIT = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def record(folder: Path, context: ProcessContext, resumed: Path | None = None) -> Environment:
    logger = RunLogger(folder, context)
    record_environment(context, logger, resumed)
    return Environment(**read_environment(folder))


def test_the_versions_are_those_of_the_required_packages(tmp_path, cpu):
    required = (ROOT / "requirements.txt").read_text().partition("# Optional")[0]
    assert set(PACKAGES) >= set(re.findall(r"^([\w-]+)>=", required, re.MULTILINE)) != set()
    parts = record(tmp_path, cpu).parts
    assert parts["torch"] == torch.__version__.partition("+")[0] and parts["Python"] in sys.version
    assert parts["devices"].startswith("1 x CPU ") and "driver" not in parts


def test_secrets_are_not_recorded(tmp_path, cpu, monkeypatch):
    url = "https://me:hunter2@host/a?sig=hunter2"
    secret = {
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "WANDB_API_KEY": "hunter2",
        "HTTPS_PROXY": url,
        "SLURM_JWT": "hunter2",
        "NCCL_MY_PASSWORD": "hunter2",
        "TORCH_NCCL_TOKEN": "hunter2",
    }
    for name, value in (secret | {"NCCL_DEBUG": url, "OMP_NUM_THREADS": "3"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["python", "main.py", f"-data_path={url}", f"-opts A='{url}' B=[{url},c d]"])
    found = record(tmp_path, cpu)
    assert found.variables["OMP_NUM_THREADS"] == "3" and found.variables["NCCL_DEBUG"] == "https://***@host/a?***"
    assert not secret.keys() & found.variables.keys() and found.command.startswith("python main.py ")
    assert "hunter2" not in (tmp_path / FACTS).read_text()


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.fsmonitor="]
    return subprocess.run(
        ["git", "-C", folder, *settings, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A clone with one commit, whose hooks write the file `ran`; a file is newer than the index."""
    clone = tmp_path / "clone"
    git(tmp_path, "init", "-q", str(clone))
    (clone / "tracked").write_text("1")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "first")
    for name in ("fsmonitor", "post-index-change"):
        hook = clone / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o700)
    git(clone, "config", "core.fsmonitor", ".git/hooks/fsmonitor")
    os.utime(clone / "tracked", (1e9, 1e9))
    monkeypatch.setattr(folder_module, "_PROJECT", clone)
    return clone


@NEEDS_GIT
def test_the_commit_is_the_one_of_the_clone_and_no_hook_runs(clone, tmp_path, cpu, monkeypatch):
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "another"))
    index = (clone / ".git/index").read_bytes()
    (clone / "untracked").touch()
    commit = record(tmp_path, cpu).parts["commit"]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert not (tmp_path / "ran").exists() and (clone / ".git/index").read_bytes() == index
    (clone / "tracked").write_text("2")
    assert record(tmp_path, cpu).parts["commit"] == f"{commit}-dirty"
    monkeypatch.delenv("GIT_INDEX_FILE")
    git(clone, "add", ".")
    assert record(tmp_path, cpu).parts["commit"] == f"{commit}-dirty"
    assert git(clone, "rev-parse", "HEAD").strip() == commit


def slow_git(folder: Path) -> None:
    (folder / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "git").chmod(0o700)


@NEEDS_GIT
@pytest.mark.parametrize("git_of", [None, lambda folder: None, slow_git])
def test_without_a_clone_or_git_or_an_answer_in_time_there_is_no_commit(clone, tmp_path, cpu, monkeypatch, git_of):
    """A folder inside a clone is not the clone."""
    monkeypatch.setattr(folder_module, "_GIT_SECONDS", 0.2)
    if git_of:
        (tmp_path / "bin").mkdir()
        git_of(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin" if git_of is slow_git else str(tmp_path / "bin"))
    else:
        (clone / "inside").mkdir()
        monkeypatch.setattr(folder_module, "_PROJECT", clone / "inside")
    assert "commit" not in record(tmp_path, cpu).parts


def test_gpus_and_hosts_of_all_ranks(tmp_path, monkeypatch):
    ranks = ["NVIDIA H100", "NVIDIA H100", "NVIDIA A100"]
    (tmp_path / "version").write_text("580.65.06\n")
    monkeypatch.setattr(folder_module, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(folder_module, "gather_objects", lambda of_main, context: [of_main, *ranks[1:]])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92400)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = record(tmp_path, ProcessContext(0, 0, 3, 2, torch.device("cuda:0"), ("a", "a", "b")))
    assert found.hosts == ["a", "a", "b"]
    assert found.parts["devices"] == "2 x NVIDIA H100 and 1 x NVIDIA A100" and found.parts["host"].startswith("CPU ")
    assert [found.parts[name] for name in ("CUDA", "cuDNN", "NCCL", "driver")] == [
        "13.0",
        "92400",
        "2.30.7",
        "580.65.06",
    ]


def test_a_resumed_run_names_what_has_changed(tmp_path, cpu):
    folders = [tmp_path / name for name in ("same", "changed", "without_facts")]
    for folder in folders:
        folder.mkdir()
    same, changed, without_facts = folders
    parts = record(same, cpu).parts
    before = {name: part for name, part in parts.items() if name != "timm"} | {"torch": "2.10.0", "driver": "570"}
    (changed / FACTS).write_text(f"{to_json(Environment('', before, [], {}))}\n")
    for folder in folders:
        record(tmp_path, cpu, folder)
    (warning,) = read_facts(tmp_path / FACTS).warnings
    changes = f"torch 2.10.0 -> {parts['torch']}, timm none -> {parts['timm']}, driver 570 -> none"
    assert (
        warning.endswith(f": {changes}")
        and "\n" not in str(RunWarning(warning))
        and not read_environment(without_facts)
    )
