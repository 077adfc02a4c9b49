"""The environment variables of each launcher are read correctly."""

import errno
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
from conftest import ROOT

from main_multi_gpu import _prepare, check_num_processes
from utils.errors import Unavailable, UserError, print_error
from utils.processes import launch
from utils.processes.launch import check_is_alone, detect_launcher, torchrun_variables

ONE_OF_16 = {"RANK": "0", "WORLD_SIZE": "16"}
ONE_OF_2 = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SRUN_2 = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
SRUN_16 = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "16"}


@pytest.mark.parametrize(
    ("started_by", "env"),
    [
        (None, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}),  # an interactive shell
        ("srun", SRUN_2 | {"PMI_RANK": "0"}),  # srun --mpi=pmi2
        ("mpirun", SRUN_2 | OPEN_MPI),
        ("torchrun", SRUN_2 | {"LOCAL_RANK": "0"} | ONE_OF_16),
        ("torchrun", {"RANK": "0", "WORLD_SIZE": "1"}),
        ("srun", SRUN_16 | ONE_OF_16),  # exported by a script; srun knows the local rank
    ],
)
def test_launcher(started_by, env):
    assert detect_launcher(env) == started_by


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WORLD_SIZE": "2"}, "without LOCAL_RANK"),
        ({"PET_NNODES": "2", "RANK": "1", "WORLD_SIZE": "8"}, "without LOCAL_RANK"),  # a PyTorchJob
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK"),
    ],
)
def test_a_process_that_cannot_know_its_rank_is_refused(env, words):
    with pytest.raises(UserError, match=words):
        detect_launcher(env)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("RANK", value) for value in ("abc", "-1", "", "2")),
        ("WORLD_SIZE", "0"),
        ("LOCAL_WORLD_SIZE", "3"),
        ("PMI_RANK", " "),
    ],
)
def test_a_wrong_rank_or_count_is_named(name, value):
    for read in (torchrun_variables, check_is_alone):
        with pytest.raises(UserError, match=f"{name}( is|,) '?{value}'?"):
            read(ONE_OF_2 | {name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("MASTER_PORT", "99999"), ("MASTER_PORT", ""), ("MASTER_ADDR", "http://u:pw@h")]
)
def test_a_wrong_address_is_named(name, value):
    with pytest.raises(UserError, match=f"^{name}.*: must be ") as error:
        torchrun_variables(ONE_OF_2 | {name: value})
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("PADDLE_TRAINER_ID", "1"), ("PET_NNODES", "1:2"), ("PET_NODE_RANK", "")])
def test_a_variable_of_another_program_is_named_unless_the_launcher_sets_its_own(name, value):
    for read in (detect_launcher, check_is_alone):
        with pytest.raises(UserError, match=f"^{name} is '{value}': "):
            read({name: value})
    assert torchrun_variables(ONE_OF_2 | {name: value})["WORLD_SIZE"] == "2"


def test_number_of_processes_against_a_launcher():
    check_num_processes(None, started=2)
    check_num_processes(2, started=2)
    with pytest.raises(UserError, match=r"-ngpus 4: a launcher started 2 process\(es\) .*leave -ngpus out"):
        check_num_processes(4, started=2)


def test_several_started_processes_are_noticed():
    one = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE", "SKYPILOT_NUM_NODES"), "1")
    check_is_alone(one | {"SLURM_NTASKS": "8", "RANK": "0"})
    for name in one:
        with pytest.raises(UserError, match=f"^{name} is '2'"):
            check_is_alone(one | {name: "2"})


def test_ranks_with_a_wrong_option_meet_before_they_report_it():
    command, refused = _prepare(["-num_workers=0", "-opts", "TIMEOUT_SECONDS=20"])
    assert refused is None and command.config.timeout_seconds == 20
    command, refused = _prepare(["-unknown", "-opts", "TIMEOUT_SECONDS=20"])
    assert "-unknown" in str(refused) and command.config.timeout_seconds == 600


SRUN = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "node[03-06]", "SLURM_NODELIST": "node[01-09]",
    "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0",
}  # fmt: skip


def test_srun_variables():
    translated = torchrun_variables(SRUN)
    port = int(translated.pop("MASTER_PORT"))
    expected = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node03"}
    assert translated == expected
    assert 20000 <= port < 30000
    assert port != int(torchrun_variables(SRUN | {"SLURM_STEP_ID": "1"})["MASTER_PORT"])
    assert torchrun_variables(SRUN | {"SLURM_NODEID": "3"})["LOCAL_WORLD_SIZE"] == "1"
    nodes = {"node1": "node1", "node[03-05,9],x": "node03", "rack[2-3]-gpu[01,04].org,x": "rack2-gpu01.org"}
    for nodelist, host in nodes.items():
        assert torchrun_variables(SRUN | {"SLURM_STEP_NODELIST": nodelist})["MASTER_ADDR"] == host


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        (SRUN, "SLURM_PROCID", None),
        (SRUN, "SLURM_NODEID", "4"),
        (SRUN, "SLURM_NODEID", "x"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, "PMI_SIZE", None),
    ],
)
def test_a_variable_that_the_launcher_did_not_pass_on_is_named(env, name, value):
    given = {key: text for key, text in (env | {name: value}).items() if text}
    with pytest.raises(UserError, match=f"^{name}(: not set| is '{value}')"):
        torchrun_variables(given)


def test_mpirun_over_several_hosts_needs_an_address():
    with pytest.raises(UserError, match="MASTER_ADDR"):
        torchrun_variables(OPEN_MPI)
    told = torchrun_variables(OPEN_MPI | {"MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["LOCAL_WORLD_SIZE"]) == ("head", "1234", "2")
    assert torchrun_variables(OPEN_MPI | {"SLURM_NODELIST": "node[1-2]"})["MASTER_ADDR"] == "node1"


RANK_SCRIPT = """
import os, signal, sys, time
case, folder, *rest = sys.argv[1:]
assert rest == ["$$a", "${local_rank}", "b c"], rest
rank, names = os.environ["RANK"], ("0", "1")
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
if case == "ignores":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
if case == "failed before":  # the launcher terminates this rank, and then receives a signal
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGUSR1))
open(os.path.join(folder, rank), "w").close()
while not all(os.path.exists(os.path.join(folder, name)) for name in names):
    time.sleep(0.01)
if case in ("signal", "ignores") and rank == "0":
    os.kill(os.getppid(), signal.SIGUSR1)
if case == "reports":
    open(os.environ["AMPVIT_REPORT"], "a").close()
if case == "real-time" and rank == "1":
    os.kill(os.getpid(), 40)
if case in ("fails", "failed before", "killed", "reports") and rank == "1":
    sys.exit(3) if case.startswith("fail") else os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0 if case == "ends" else 600)
"""


@pytest.mark.usefixtures("handlers_after_test")
@pytest.mark.parametrize(
    ("case", "status", "line"),
    [
        ("ends", 0, ""),
        ("failed before", 3, ""),  # before the signal
        ("real-time", 168, "error: the process of rank 1 was terminated by signal 40\n"),
        ("killed", 137, "error: the process of rank 1 was terminated by SIGKILL; possible cause: out of host memory\n"),
        ("reports", 137, ""),  # a rank has printed the line
        ("signal", 138, ""),
        ("ignores", 138, ""),  # killed after the time to save a checkpoint
    ],
)
def test_status_of_a_launch(monkeypatch, tmp_path, capsys, case, status, line):
    monkeypatch.setattr(launch, "SHUTDOWN_SECONDS", 1)
    monkeypatch.setenv("AMPVIT_REPORT", "")  # restored after the test
    script = tmp_path / "rank.py"
    script.write_text(RANK_SCRIPT)
    words = [case, str(tmp_path), "$$a", "${local_rank}", "b c"]
    assert launch.launch_processes(str(script), words, num_processes=2) == status
    assert capsys.readouterr().err == line
    assert launch._KEY_PIPE not in os.environ


END_SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from utils import status
from utils.processes.entry import run_and_report_errors
rank, folder = os.environ["RANK"], Path(sys.argv[2])
def main(argv):
    Path(folder, rank).touch()
    while len(list(folder.glob("[01]"))) < 2:
        time.sleep(0.01)
    if rank == "1":
        os._exit(3) if sys.argv[3] == "fails" else os.kill(os.getppid(), 15)
    time.sleep(600)
status.on_run_end = lambda **values: Path(folder, "end" + rank).write_text(f"{values}") and "again"
sys.exit(run_and_report_errors(main, []))
"""


@pytest.mark.usefixtures("handlers_after_test")
@pytest.mark.parametrize(
    ("case", "status", "line", "end"),
    [
        (
            "fails",
            3,
            "error: the process of rank 1 ended with status 3\nresume with: again\n",
            "{'state': 'failed', 'exit_status': 1, 'message': 'the process of rank 1 ended with status 3'}",
        ),
        (
            "signal",
            143,
            "interrupted by SIGTERM\n",
            "{'state': 'interrupted', 'exit_status': 143, 'signal': 'SIGTERM'}",
        ),
    ],
)
def test_a_rank_that_the_launcher_ends_after_another_one_has_failed(
    monkeypatch, tmp_path, capfd, case, status, line, end
):
    monkeypatch.setenv("AMPVIT_REPORT", "")  # restored after the test
    (tmp_path / "rank.py").write_text(END_SCRIPT)
    words = [str(ROOT), str(tmp_path), case]
    assert launch.launch_processes(str(tmp_path / "rank.py"), words, num_processes=2) == status
    assert (capfd.readouterr().err, (tmp_path / "end0").read_text()) == (line, end)


KEY_SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from utils.processes.launch import receive_key
pipe, key = int(os.environ["AMPVIT_KEY_PIPE"]), receive_key()
Path(sys.argv[2], os.environ["RANK"]).write_bytes(key)
sys.exit(receive_key() != b"" or os.path.exists(f"/proc/self/fd/{pipe}"))
"""


@pytest.mark.usefixtures("handlers_after_test")
def test_each_rank_reads_the_key_once(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPVIT_REPORT", "")  # restored after the test
    (tmp_path / "rank.py").write_text(KEY_SCRIPT)
    opened = len(os.listdir("/proc/self/fd"))
    keys = tmp_path / "keys"
    keys.mkdir()
    assert launch.launch_processes(str(tmp_path / "rank.py"), [str(ROOT), str(keys)], num_processes=3) == 0
    assert len(os.listdir("/proc/self/fd")) == opened
    (key,) = {path.read_bytes() for path in keys.iterdir()}
    assert len(key) == 32 and len(list(keys.iterdir())) == 3


@pytest.mark.usefixtures("handlers_after_test")
def test_a_process_that_the_system_refuses_is_named_and_the_others_end(monkeypatch, tmp_path):
    started = []

    def refuse_second(command, **options):
        if started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))  # ulimit -u
        started.append(popen(command, **options))
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", refuse_second)
    monkeypatch.setenv("AMPVIT_REPORT", "")  # restored after the test
    (tmp_path / "rank.py").write_text("import time; time.sleep(600)")
    with pytest.raises(Unavailable, match=r"^-ngpus: rank 1 cannot start \(Resource .*\); raise ulimit -u "):
        launch.launch_processes(str(tmp_path / "rank.py"), [], num_processes=2)
    assert started[0].returncode == -signal.SIGKILL


def test_ctrl_c_while_a_script_imports_prints_no_traceback(tmp_path):
    (tmp_path / "yaml.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command, default = [sys.executable, "main_multi_gpu.py"], partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    # A shell without job control ignores SIGINT in its background processes, such as this test.
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, preexec_fn=default)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_one_process_of_a_launcher_prints_the_error(monkeypatch, tmp_path, capsys):
    reports = {"": 3, str(tmp_path / "reported"): 1, str(tmp_path / "deleted" / "reported"): 3}  # "": no launcher
    for report, lines in reports.items():
        monkeypatch.setenv("AMPVIT_REPORT", report)
        for _ in range(3):
            print_error("disk: full")
        assert capsys.readouterr().err == "error: disk: full\n" * lines
