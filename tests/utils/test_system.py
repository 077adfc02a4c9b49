"""A system that cannot run the program ends with one line before an import that fails; threads of OpenMP; cores."""

import math
import os
import re
import runpy
import signal
import sys
from pathlib import Path

from conftest import ROOT, cli, each_row, each_value
from pytest import fixture, mark, raises

from utils import system
from utils.system import available_bytes, core_share, cpu_quota, limit_spinning, why_unusable

PROJECT = {*cli("configs datasets engine models scripts utils")}
PROGRAMS = [
    path
    for path in [*ROOT.glob("main_*.py"), *(ROOT / "scripts").rglob("*.py")]
    if "run_script(main)" in path.read_text()
]


@mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_windows_is_refused_before_a_module_that_it_lacks(monkeypatch, program):
    """Also by `python -P`, which leaves the folder of the script out of sys.path: programs find their modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT])
    with raises(SystemExit, match=r"^error: .*win32.*Linux, macOS, or WSL 2"):
        runpy.run_path(str(program), run_name="__main__")


def test_no_folder_for_temporary_files(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [os.devnull, "/nonexistent"])
    problem = why_unusable()
    assert problem.startswith("TMPDIR: ")
    assert "/nonexistent" in problem


def test_the_current_folder_is_gone(monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: os.stat("/nonexistent").st_size)
    assert why_unusable().startswith("the current folder: No such file")


def test_missing_required_packages(monkeypatch):
    for module in ("safetensors", "PIL"):
        monkeypatch.setitem(sys.modules, module, None)
    assert re.match("not installed: pillow, safetensors; .*activate", why_unusable())
    for module in system._REQUIRED:
        monkeypatch.setitem(sys.modules, module, None)
    lines = (ROOT / "requirements.txt").read_text().partition("# Optional")[0].splitlines()[1:]
    assert f": {', '.join(line.partition('>')[0] for line in lines)}; " in why_unusable()


@fixture
def machine(monkeypatch, tmp_path) -> Path:
    """A machine of two cores without these variables; its load is in `loadavg`, its devices are in the folder."""
    for name in ("CUDA_VISIBLE_DEVICES", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that the test's end restores what limit_spinning sets
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("utils.system._LOAD", tmp_path / "loadavg")
    monkeypatch.setattr("utils.system.DEVICE_FILES", tmp_path)
    return tmp_path


SPINNING = """
device_file | device | variable | expected
nvidia0 | | | None
nvidia0 | cpu | | 10000
nvidia0 | | CUDA_VISIBLE_DEVICES= | 10000
nvidiactl | | GOMP_SPINCOUNT=7 | 7
nvidiactl | | OMP_WAIT_POLICY=active | None
"""


@each_row(SPINNING)
def test_limit_spinning(device_file, device, variable, expected, monkeypatch, machine):
    if variable:
        monkeypatch.setenv(*variable.split("="))
    (machine / device_file).touch()
    limit_spinning(device)
    assert str(system.os.environ.get("GOMP_SPINCOUNT")) == expected


SHARES = """
ranks | cores | offset | quota | expected
8 | 16 | 0 | 1000000000 | 2  # torchrun: all ranks may use all cores
8 | 16 | 16 | 1000000000 | 16  # srun: cores of its own
4 | 128 | 0 | 30.0 | 7
4 | 1 | 0 | 1000000000 | 0
"""


@each_value(SHARES)
def test_share_of_a_rank(ranks, cores, offset, quota, expected):
    of_ranks = [{*range(offset * rank, offset * rank + cores)} for rank in range(ranks)]
    assert core_share(of_ranks[0], of_ranks, quota).cores == expected


@fixture
def control_files(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.system._GROUPS", tmp_path / "groups")
    monkeypatch.setattr("utils.system._MOUNT", tmp_path / "mount")


QUOTAS = """
groups | files | expected
0::/ | cpu.max: 800000 100000 | 8.0  # in a container, its own group is the root
0::/ | cpu.max: max 100000 | inf
0::/pod/job | pod/cpu.max: 250000 100000, pod/job/cpu.max: max 100000 | 2.5
4:cpuacct,cpu:/host/job | cpu/cpu.cfs_quota_us: 150000, cpu/cpu.cfs_period_us: 100000 | 1.5
4:cpu:/job | cpu/job/cpu.cfs_quota_us: -1, cpu/job/cpu.cfs_period_us: 100000 | inf
4:cpu,cpuacct:/ | cpu/cpu.cfs_quota_us: 5000, cpu/cpu.cfs_period_us: 10000, memory/cpu.max: 1 9 | 0.5
"""


@each_row(QUOTAS)
def test_cpu_quota(tmp_path, control_files, groups, files, expected):
    (tmp_path / "groups").write_text(groups)
    for file in files.split(", "):
        name, text = file.split(": ")
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cpu_quota() == float(expected)


@mark.usefixtures("control_files")
def test_without_control_groups_there_is_no_quota():
    assert cpu_quota() == math.inf


PAGES = "anon 3000\ninactive_file 700\nactive_file 9"


@fixture
def control_group(tmp_path, monkeypatch):
    def write(**files):
        for name, text in files.items():
            (tmp_path / f"memory.{name}").write_text(f"{text}\n")

    monkeypatch.setattr("utils.system.control_groups", lambda controller: [tmp_path])
    return write


@mark.parametrize("pages, free", [(PAGES, 1700), ("anon 3000", 1000)])
def test_pages_of_files_in_a_control_group_are_free_memory(control_group, pages, free):
    control_group(max=5000, current=4000, stat=pages)
    assert available_bytes() == free


def test_a_control_group_without_a_limit_has_the_memory_of_the_host(control_group):
    control_group(max="max", current=4000, stat=PAGES)
    assert available_bytes() > 10**6


@mark.usefixtures("control_files")
@mark.parametrize("path", ["/", "/docker/a:b", "/job"])  # the second one is the host's
def test_memory_limit_of_control_groups_of_version_1(tmp_path, path):
    (tmp_path / "groups").write_text(f"5:cpu,cpuacct:/job\n4:memory:{path}\n1:name=systemd:/job\n0::/\n")
    for group, limit in {"memory": 5000, "memory/job": 2**63 - 4096, "cpu,cpuacct/job": 1000}.items():
        folder = tmp_path / "mount" / group
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text("4000\n")
        (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 700\n")
    assert available_bytes() == 5000 - 4000 + 700
