"""Ranks for test_ranks.py: `python launched_rank.py CASE FOLDER ...` is one, or starts two of each case."""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.errors import UserError
from utils.notes import OWN_IMPORTS
from utils.processes import ranks
from utils.processes.launch import has_launcher, report_end, report_lost_rank
from utils.signals import Interrupted

MORE = ["$$a", "${local_rank}", "b c"]


def end_with_other_rank(timed_out: bool):
    """As a rank whose connection to another one has ended, or has been silent for too long."""
    report_lost_rank("rank 0 waits", timed_out=timed_out)
    sys.exit(1)


def run_rank(kind: str, folder: str, *more: str):
    assert list(more) == MORE
    assert has_launcher()
    assert os.getsid(0) == os.getpid()
    rank = os.environ["RANK"]
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(138))
    match kind, rank:
        case "unsaved", "1":
            report_end()
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(1))
        case "two signals", _:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "ignores", _:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    path = Path(folder, rank)
    alive = open(f"{path}.new", "w")  # noqa: SIM115
    fcntl.flock(alive, fcntl.LOCK_EX)  # as long as this process, like a connection
    os.rename(alive.name, path)
    while not all(Path(folder, name).exists() for name in "01"):
        time.sleep(0.01)
    match kind, rank:
        case (("signal" | "ignores" | "unsaved"), "0"):
            os.kill(os.getppid(), signal.SIGUSR1)
        case "two signals", "0":
            for number in (signal.SIGSTOP, signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT):
                os.kill(os.getppid(), number)
        case (("killed" | "exits" | "fails"), "0"):
            with Path(folder, "1").open() as other:
                fcntl.flock(other, fcntl.LOCK_EX)
            end_with_other_rank(timed_out=False)
        case "waits", "0":
            end_with_other_rank(timed_out=True)
        case "handled", "1":
            sys.exit(143)
        case "killed", "1":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits", "1":
            os._exit(7)
        case "fails", "1":
            report_end()
            sys.exit(3)
    assert (OWN_IMPORTS in os.environ) or kind != "threads"
    time.sleep(0 if kind in ("ends", "threads") else 600)


def launch(case: str, folder: str, own_imports: str = "") -> tuple[int, str]:
    """The status of a launch of two ranks, and the error that no rank has printed."""
    if case == "threads":
        threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
    arguments = [case, folder, *MORE]
    try:
        status = ranks.launch_ranks([__file__, *arguments], 2, folder, own_imports)
    except (UserError, Interrupted) as error:
        return error.status, str(error)
    if status is None:
        run_rank(*arguments)
        sys.exit()
    return status, ""


def launch_forks(folder: str, *cases: str):
    """Prints {case: result} of a launcher for each case, at the same time; all are forks of this process."""
    import torch.distributed  # noqa: F401

    ranks.SHUTDOWN_SECONDS = 1
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as in a program that started this one
    launchers = []
    for case in cases:
        place = Path(folder, case)
        place.mkdir()
        launcher = os.fork()
        if not launcher:
            status = 0
            try:
                (place / "result").write_text(json.dumps(launch(case, str(place))))
            except SystemExit as end:  # of a rank
                status = end.code or 0
            os._exit(status)
        launchers.append(launcher)
    while not all(Path(folder, case, "result").exists() for case in cases):
        time.sleep(0.05)
    print(json.dumps({case: json.loads(Path(folder, case, "result").read_text()) for case in cases}))


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_rank(*sys.argv[1:])
    else:
        launch_forks(*sys.argv[1:])
