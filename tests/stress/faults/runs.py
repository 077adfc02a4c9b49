"""Faults during a run: output that cannot be written, signals, ranks and workers that die or stop."""

import shutil
import signal
import socket
import time
from collections.abc import Callable

from conftest import values_of
from faults.processes import MULTI, Running
from faults.runner import Fault
from faults.scene import ENDLESS, Provoke, Scene, in_namespace, require_mounts

from utils.errors import MAY_PASS

SHORT_TIMEOUT = "TIMEOUT_SECONDS=10"  # of runs that wait for an answer that does not come


def output_faults() -> list[Fault]:
    def mount(options: str) -> str:
        return in_namespace(f"mount -t tmpfs -o {options} tmpfs output")

    def remove_the_folder(running: Running) -> None:
        running.wait_for("Step[")
        (folder,) = running.scene.output.iterdir()
        folder.rename(running.scene.folder / "elsewhere")

    full = r"(No space left|last.pth|cannot be saved|cannot be written|not one fits)"
    status = (MAY_PASS,)
    return [
        Fault("output: read-only", mounted, r"output: is not writable: a read-only", status, shell=mount("ro")),
        Fault("output: a disk that fills up while saving", mounted, full, status, shell=mount("size=256k")),
        Fault("output: the folder is moved", training, r"No such file", status, act=remove_the_folder),
    ]


def mounted(scene: Scene) -> list[str]:
    """A run whose process, or second rank, has file systems or a host name of its own."""
    require_mounts()
    scene.output.mkdir()
    return scene.digits()


def evaluating(scene: Scene) -> list[str]:
    """A run that spends most of its time in evaluation."""
    return scene.digits(*ENDLESS, "DATA.VAL_FRACTION=0.9", flags=("-batch_size_eval=1",))


def training(scene: Scene) -> list[str]:
    return scene.digits(*ENDLESS)


def two_ranks(provoke: Provoke, *options: str) -> Provoke:
    return lambda scene: [*provoke(scene), "-ngpus=2", "-opts", "TIMEOUT_SECONDS=120", *options]


def send(number: int, rank: int | None = None, times: int = 1, to_all: bool = False) -> Callable[[Running], None]:
    """Sends a signal to a rank, to the main process, or to all processes, as a terminal does."""

    def act(running: Running) -> None:
        running.wait_for("Epoch[002")
        for _ in range(times):
            if to_all:
                running.send_to_all(number)
            else:
                running.send(number, *(() if rank is None else (running.ranks()[rank],)))
            time.sleep(0.05)

    return act


def signal_faults() -> list[Fault]:
    def during_the_start(running: Running) -> None:
        time.sleep(1.0)
        running.send(signal.SIGTERM)

    def interrupted(name: str, provoke: Provoke, number: int) -> Fault:
        return Fault(name, provoke, None, (128 + number,), act=send(number), state="interrupted")

    return [
        interrupted("SIGTERM in training", training, signal.SIGTERM),
        interrupted("SIGINT in evaluation", evaluating, signal.SIGINT),
        Fault("Ctrl-C twice", training, None, (130,), act=send(signal.SIGINT, times=2)),
        Fault("SIGTERM during the start", training, None, (143,), act=during_the_start),
        Fault("SIGKILL", training, None, (137,), act=send(signal.SIGKILL), state="running"),
    ]


# The name, the signal, the rank (or the main process), the error line, the exit statuses, the state
_SIGNALS = """
rank 0 killed        | SIGKILL | 0 | rank 0 | [1, 137] | failed
rank 1 killed        | SIGKILL | 1 | rank 1 | [1, 137] | failed
rank 1 terminated    | SIGTERM | 1 |        | [143]    | interrupted
SIGUSR1 to two ranks | SIGUSR1 |   |        | [138]    | interrupted
the launcher killed  | SIGKILL |   |        | [137]    | interrupted
"""


def rank_faults() -> list[Fault]:
    two = two_ranks(training)
    stopped = two_ranks(training, SHORT_TIMEOUT)

    def port_in_use(scene: Scene) -> list[str]:
        listener = scene.listener = socket.create_server(("127.0.0.1", 0))
        scene.write("port", str(listener.getsockname()[1]))
        return scene.digits()

    def bad_image(scene: Scene) -> list[str]:
        flags = scene.images(flags=("-ngpus=2",))
        scene.write("data/train/cat/3.jpg", b"hello")
        return flags

    def other_data(scene: Scene) -> list[str]:
        """Rank 1 sees another folder of images, in which one is missing."""
        require_mounts()
        shutil.copytree(scene.data, scene.folder / "other")
        (scene.folder / "other/train/cat/3.jpg").unlink()
        return scene.images(dataset="folder")

    def restarted(scene: Scene) -> list[str]:
        return scene.digits("TRAIN.NUM_EPOCHS=20", "REPORT_FREQ=1", "SAVE_FREQ_STEPS=5", flags=("-resume=auto",))

    torchrun = 'python=$1; shift; exec "$python" -m torch.distributed.run --standalone --nproc_per_node=2 '
    elastic, torchrun = (f'{torchrun} {more} "$@" 2>/dev/null' for more in ("--max-restarts=2", ""))

    def two_hosts(on_b: str) -> str:
        return f"""
        export MASTER_PORT=$((20000 + $$ % 9000)) MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
        RANK=1 unshare -rmu sh -c 'hostname hostB && {on_b}' sh "$@" &
        RANK=0 unshare -ru sh -c 'hostname hostA && exec "$@"' sh "$@"; status=$?; wait; exit $status"""

    port = "export MASTER_PORT=$(cat port) MASTER_ADDR=127.0.0.1 RANK=0 LOCAL_RANK=0 WORLD_SIZE=2; {}"
    tmpfs = two_hosts('mount -t tmpfs tmpfs output && exec "$@"')
    bind = two_hosts('mount --bind other data && exec "$@"')
    seed = two_hosts('exec "$@" SEED=1')
    on_sigterm = send(signal.SIGTERM)
    of_signals = [
        Fault(name, two, line, tuple(status), MULTI, send(signal.Signals[number], rank), state)
        for name, number, rank, line, status, state in values_of(_SIGNALS)
    ]
    return [
        *of_signals,
        Fault("rank 1 stopped", stopped, r"rank 1", (1, 137), MULTI, send(signal.SIGSTOP, 1), "failed"),
        Fault("an image that one rank cannot read", bad_image, r"3\.jpg: is not an image", script=MULTI),
        Fault("Ctrl-C on two ranks", two, None, (130,), MULTI, send(signal.SIGINT, to_all=True), "interrupted"),
        Fault("output: not shared", mounted, r"output/\S+: hostB does not see .*hostA", (1,), MULTI, shell=tmpfs),
        Fault("hosts with other data", other_data, r"hostB\) has other .* 23 images .* 24 ", (2,), MULTI, shell=bind),
        Fault("ranks with other options", mounted, r"hostB\) has SEED 1, .*SEED 0", (2,), MULTI, shell=seed),
        Fault("SIGTERM to torchrun", training, None, (1,), MULTI, on_sigterm, "interrupted", shell=torchrun),
        Fault("torchrun restarts", restarted, None, (0,), MULTI, send(signal.SIGKILL, 1), "finished", shell=elastic),
        Fault("the port is in use", port_in_use, r"MASTER_ADDR, MASTER_PORT: ", (1,), MULTI, shell=port),
    ]


def worker_faults() -> list[Fault]:
    def loading(scene: Scene) -> list[str]:
        return scene.images(*ENDLESS, "DATA.NUM_WORKERS=2", SHORT_TIMEOUT)

    def to_worker(number: int, place: int = 0) -> Callable[[Running], None]:
        """place: of the workers in the order of their start; those of the evaluation are the last ones."""

        def act(running: Running) -> None:
            running.wait_for("Epoch[003")
            running.send(number, running.workers()[place])

        return act

    two = two_ranks(loading)
    killed = r"loading worker \d+ was killed by SIGKILL"
    unanswered = r"no loading worker has answered"
    return [
        Fault("worker killed", loading, killed, (MAY_PASS,), act=to_worker(signal.SIGKILL)),
        Fault("evaluation worker stopped", loading, unanswered, (MAY_PASS,), act=to_worker(signal.SIGSTOP, -1)),
        Fault("ranks: few open files", two, r"too many open files .*ulimit -n", (1,), MULTI, shell="ulimit -n 40; {}"),
    ]
