"""The ranks that a launcher starts itself, as its forks or as programs: how they start and end."""

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from unittest.mock import Mock

import launched_rank
import torch
from conftest import ROOT, TINY_VIT, cells_of, cli, noise_folder, of_module, only_run, refused, slow
from pytest import mark, param
from rank_pool import environment as user_environment

from configs.yaml_io import parse_value
from engine.checkpoint.files import load_checkpoint
from utils.files import tensors_in
from utils.processes import ranks

# The case, the status, and words of the error of ranks that could print none
ENDS = """
ends | 0 |
threads | 0 |  # of the launcher, which then starts programs
fails | 3 |  # the rank has printed why
killed | 137 | rank 1, SIGKILL, memory
exits | 7 | rank 1, status 7  # by os._exit
waits | 1 | rank 1 does not respond, rank 0 waits
handled | 143 | SIGTERM
signal | 138 | SIGUSR1
two signals | 138 | SIGUSR1  # at the same time
unsaved | 1 |  # a rank cannot write its checkpoint
ignores | 137 | SIGKILL  # killed after the time to save a checkpoint
"""
CASES = {row[0]: row for row in cells_of(ENDS)}
RUNS = [(True, *row) for row in CASES.values()]
RUNS += [(False, *CASES[case]) for case in ("threads", "killed", "signal")]
RUNS += [slow(False, *row) for row in CASES.values() if (False, *row) not in RUNS]


@of_module
def ends_of_forks(tmp_path_factory):
    """The status and the error of each case; all of them are forks of one process."""
    folder = tmp_path_factory.mktemp("forks")
    command = [sys.executable, launched_rank.__file__, str(folder), *CASES]
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == ""
    return json.loads(ended.stdout)


@mark.usefixtures("handlers_after_test")
@mark.parametrize("are_forks, case, status, words", RUNS)
def test_the_end_of_a_launch(monkeypatch, tmp_path, capfd, request, are_forks, case, status, words):
    """Its status, and the one error of ranks that could print none."""
    if are_forks:
        found, error = request.getfixturevalue("ends_of_forks")[case]
    else:
        monkeypatch.setattr("utils.processes.ranks.SHUTDOWN_SECONDS", 1)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        found, error = launched_rank.launch(case, str(tmp_path), "a test")
        assert capfd.readouterr().err == ""
    assert found == int(status)
    assert bool(error) == bool(words)
    assert all(word in error for word in filter(None, words.split(", ")))


@mark.parametrize(("free", "problem"), [(5, "Too many open files"), (500, "uv loop")])
def test_ranks_that_cannot_start_are_one_error(monkeypatch, tmp_path, free, problem):
    """With few descriptors, and without a thread for the store: torch's errors are of other types."""
    monkeypatch.setattr("utils.processes.ranks.open_loopback_store", Mock(side_effect=RuntimeError("uv loop")))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {*map(int, os.listdir("/proc/self/fd"))}
    unused = (descriptor for descriptor in itertools.count() if descriptor not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(unused, free, None)), limits[1]))
    try:
        with refused(f"{problem}.*ulimit -u and -n"):
            ranks.launch_ranks([], 0, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# What a forked rank finds, on a machine whose GPUs were counted. The parent has called no function of CUDA: torch
# forbids a fork of a process that has. A region of OpenMP would wait forever for threads of the parent.
FACTS = """
import atexit, json, os, sys, threading
import main_multi_gpu
imported = set()
os.register_at_fork(before=lambda: imported.update(sys.modules))
exits = main_multi_gpu.exit_with_launcher

def replace_run():
    import engine.commands.run
    engine.commands.run.run = write_facts
    exits()

def write_facts(command, context):
    import ctypes, signal, torch
    from utils.signals import TERMINATION_SIGNALS
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    total = int(torch.ones(2**20, dtype=torch.int64).sum())
    problem = ""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        problem = str(error)
    parent = os.getppid()
    files = [os.readlink(f"/proc/{parent}/fd/{name}") for name in os.listdir(f"/proc/{parent}/fd")]
    late = [name for name in sys.modules if name not in imported]
    facts = {
        "bad fork": "fork" in problem,
        "devices": [file for file in files if file.startswith("/dev/nvidia")],
        "threads": threads,
        "total": total,
        "session": os.getsid(0) == os.getpid(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "late": [name for name in late if name.split(".")[0] in ("torch", "timm", "engine", "datasets", "models")],
        "on run end": main_multi_gpu.notes.on_run_end is main_multi_gpu.notes.without_run,
    }
    print(json.dumps(facts), flush=True)
    atexit.register(os.write, 1, b"at exit\\n")
    threading.Timer(0.2, lambda: os.write(1, b"thread\\n")).start()
    return 3

main_multi_gpu.exit_with_launcher = replace_run
main_multi_gpu.run_script(main_multi_gpu.main)
"""

INHERITED = """
bad fork: false
devices: []
total: 1048576
session: true
blocked: []
late: []
on run end: true
"""


@mark.slow
def test_what_a_fork_inherits(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    environment = user_environment() | {"PYTHONPATH": str(ROOT)}
    del environment["OMP_NUM_THREADS"], environment["CUDA_VISIBLE_DEVICES"]
    number = 1 if torch.cuda.is_available() else 2
    words = cli(f"-dataset=digits -ngpus={number} -output={tmp_path / 'out'}")
    command = [sys.executable, "-c", FACTS, *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (3, "")
    assert lines.count("at exit") == lines.count("thread") == number  # each rank waits for its threads, then exits
    facts = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(facts) == number
    expected = parse_value(INHERITED) | {"threads": max(1, torch_threads(environment) // number)}
    assert facts == number * [expected]
    assert not [*tmp_path.glob("ampvit-*")]


def torch_threads(environment):
    """The threads that torch chooses for a process."""
    code = "import torch; print(torch.get_num_threads())"
    return int(subprocess.check_output([sys.executable, "-c", code], env=environment))


@mark.slow
@mark.parametrize("gpus", ["", param("0", marks=mark.gpu)])
def test_forks_train_as_programs_do(tmp_path, gpus):
    """OMP_NUM_THREADS is not set: with other threads most tensors differ. A plugin needs programs."""
    (plugin := tmp_path / "plugin.py").write_text("")
    data = noise_folder(tmp_path / "data", 28, 8, (48, 48, 3))
    environment = user_environment(gpus)
    del environment["OMP_NUM_THREADS"]
    states = []
    logs = []
    for name, more in {"forks": [], "programs": [f"-plugin={plugin}"]}.items():
        flags = cli(f"-data_path={data} -batch_size=4 -num_workers=2 -output={tmp_path / name} -amp=yes")
        words = ["main_multi_gpu.py", f"-ngpus={1 if gpus else 2}", *flags, *more, "-opts", *TINY_VIT]
        subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True, timeout=300)
        folder = only_run(tmp_path / name)
        states.append(tensors_in(load_checkpoint(folder / "last.pth")))
        logs.append((folder / "log.txt").read_text())
    forks, programs = states
    assert len(forks) == len(programs)
    assert all(map(torch.equal, forks, programs))
    assert [log.count("Launch: each rank has imported its modules itself: -plugin") for log in logs] == [0, 1]
