"""Faults that befall a run: damaged checkpoints, full disks, signals, ranks and workers that die or stand still."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from faults.runner import MULTI, Fault, Provoke, Running
from faults.scene import ENDLESS, Scene, Skipped, flipped, torch_bytes, truncated

from engine.checkpoint.checkpoint import load_checkpoint
from utils.atomic_file import atomic_save


def run_faults() -> list[Fault]:
    return [*_checkpoints(), *_output(), *_signals(), *_ranks(), *_workers()]


def _checkpoints() -> list[Fault]:
    def resumed(change: Callable[[Path], Any], *options: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            last = scene.run_copy() / "last.pth"
            change(last)
            return scene.digits(*options, flags=(f"-resume={last}",))

        return provoke

    def edited(**changes: Any) -> Provoke:
        return lambda scene: scene.digits(flags=(f"-resume={scene.edited_checkpoint(**changes)}",))

    def not_finite(scene: Scene) -> list[str]:
        model = load_checkpoint(scene.trained / "last.pth")["model"]
        model["norm.bias"] = torch.full((16,), torch.nan)
        return edited(model=model)(scene)

    def auto(change: Callable[[Path], Any], *options: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            change(scene.run_copy() / "last.pth")
            return scene.digits(*options, flags=("-resume=auto",))

        return provoke

    def nothing(path: Path) -> None:
        pass

    damaged = r"last.pth: is damaged"
    table: dict[str, tuple[Provoke, str]] = {
        "missing": (lambda scene: scene.digits(flags=("-resume=none.pth",)), r"none.pth: there is no checkpoint"),
        "a folder without one": (
            lambda scene: scene.digits(flags=(f"-resume={scene.folder}",)),
            r"there is no checkpoint",
        ),
        "empty": (resumed(lambda path: path.write_bytes(b"")), damaged),
        "cut short": (resumed(truncated), damaged),
        "with a bit flipped": (resumed(flipped), damaged),
        "foreign": (resumed(lambda path: path.write_bytes(torch_bytes({"a": 1}))), r"is damaged or not a checkpoint"),
        "PaddleViT's": (
            lambda scene: scene.digits(flags=(f"-resume={scene.write('vit.pdparams', 'x')}",)),
            r"PaddleViT's optimizer state cannot be resumed",
        ),
        "of another format": (edited(format=1), r"last.pth: is no checkpoint of format"),
        "sealed, but something else": (resumed(lambda path: atomic_save(path, [1, 2])), r"last.pth: is no checkpoint"),
        "sealed, but with parts missing": (
            resumed(lambda path: atomic_save(path, {"format": load_checkpoint(path)["format"]})),
            r"for model, ema, .* is missing",
        ),
        "not finite": (not_finite, r"NaN|not finite|infinite"),
        "of another model": (resumed(nothing, "MODEL.EMBED_DIM=32"), r"checkpoint is of another model"),
        "of another optimizer": (resumed(nothing, "TRAIN.OPTIMIZER.NAME=SGD"), r"trained with AdamW"),
        "without the average": (resumed(nothing, "TRAIN.MODEL_EMA=true"), r"TRAIN.MODEL_EMA: is not what"),
        "beyond the last epoch": (
            resumed(nothing, "TRAIN.NUM_EPOCHS=1"),
            r"NUM_EPOCHS 1: the checkpoint has 2 already",
        ),
    }

    def of_a_folder(scene: Scene) -> list[str]:
        return scene.digits("TRAIN.NUM_EPOCHS=3", flags=(f"-resume={flipped(scene.run_copy() / 'last.pth').parent}",))

    def held_by_another(scene: Scene) -> list[str]:
        folder = scene.run_copy()
        scene.lock = open(folder / ".lock", "a")  # noqa: SIM115  # for as long as the scene lives
        fcntl.flock(scene.lock, fcntl.LOCK_EX)
        return scene.digits(flags=(f"-resume={folder}",))

    def inside_an_epoch(scene: Scene) -> list[str]:
        last = scene.edited_checkpoint(epoch=1, done_steps=3)
        return scene.digits("DATA.BATCH_SIZE=80", flags=(f"-resume={last}",))

    longer = "TRAIN.NUM_EPOCHS=3"
    return [
        *(Fault(f"checkpoint: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault("resume: another run holds the folder", held_by_another, r"train-.*: is in use by"),
        Fault("resume: another batch size, inside an epoch", inside_an_epoch, r"seen 192 samples .* steps of 80"),
        Fault("resume a folder: the last is damaged", of_a_folder, None, (0,), state="finished", says="passed over"),
        Fault("resume auto: the last is damaged", auto(flipped, longer), None, (0,), state="finished"),
        Fault("resume auto: the last is cut short", auto(truncated, longer), None, (0,), state="finished"),
        Fault(
            "resume auto: no run yet", lambda scene: scene.digits(flags=("-resume=auto",)), None, (0,), state="finished"
        ),
    ]


def _output() -> list[Fault]:
    def into(path: str) -> Provoke:
        return lambda scene: scene.digits(flags=(f"-output={path}",))

    def a_file(scene: Scene) -> list[str]:
        return scene.digits(flags=(f"-output={scene.write('file', 'x')}",))

    def mounted(scene: Scene) -> list[str]:
        if os.system("unshare -rm true 2>/dev/null"):
            raise Skipped("this machine lets no user mount file systems")
        scene.output.mkdir()
        return scene.digits()

    def mount(options: str) -> str:
        return f'unshare -rm sh -c \'mount -t tmpfs -o {options} tmpfs output && exec "$@"\' sh "$@"'

    def remove_the_folder(running: Running) -> None:
        running.wait_for("Step[")
        (folder,) = running.scene.output.glob("train-*")
        running.fault_time = time.monotonic()
        folder.rename(running.scene.folder / "elsewhere")

    full = r"(No space left|last.pth|cannot be saved|cannot be written)"
    return [
        Fault("output: a file", a_file, r"SAVE: .*file cannot be written: Not a directory"),
        Fault("output: no place for files", into("/proc/none"), r"/proc/none cannot be written"),
        Fault("output: not to be written", mounted, r"SAVE: .*output cannot be written: Read-only", shell=mount("ro")),
        Fault("output: a full disk", mounted, full, shell=mount("size=64k")),
        Fault("output: a disk that fills up in a checkpoint", mounted, full, shell=mount("size=256k")),
        Fault("output: files limited in size", lambda s: s.digits(), r"File too large", shell="ulimit -f 64; {}"),
        Fault(
            "output: the folder goes away",
            lambda scene: scene.digits(*ENDLESS),
            r"No such file",
            act=remove_the_folder,
        ),
    ]


def evaluating(scene: Scene) -> list[str]:
    """A run that evaluates nearly all the time."""
    return scene.digits(*ENDLESS, "DATA.VAL_FRACTION=0.9", flags=("-batch_size_eval=1",))


def training(scene: Scene) -> list[str]:
    return scene.digits(*ENDLESS)


def two_ranks(provoke: Provoke, *options: str) -> Provoke:
    return lambda scene: [*provoke(scene), "-ngpus=2", "-opts", "TIMEOUT_SECONDS=4", *options]


def _sending(number: int, after: str = "Epoch[003", times: int = 1) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        running.wait_for(after)
        for _ in range(times):
            running.send(number)
            time.sleep(0.05)

    return act


def _signals() -> list[Fault]:
    faults = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        for doing, provoke in (("training", training), ("evaluation", evaluating)):
            status = (128 + number,)
            name = f"{number.name} in {doing}"
            faults.append(Fault(name, provoke, None, status, act=_sending(number, "Epoch[002"), state="interrupted"))
    twice = _sending(signal.SIGINT, times=2)
    return [
        *faults,
        Fault("Ctrl-C twice", training, None, (128 + signal.SIGINT,), act=twice),
        Fault("SIGTERM while it starts", training, None, (128 + signal.SIGTERM,), act=_early(signal.SIGTERM)),
        Fault("SIGKILL", training, None, (128 + signal.SIGKILL,), act=_sending(signal.SIGKILL), state="running"),
    ]


def _early(number: int) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        time.sleep(1.0)
        running.send(number)

    return act


def _ranks() -> list[Fault]:
    two = two_ranks(training)

    def hurt(number: int, rank: int) -> Callable[[Running], None]:
        def act(running: Running) -> None:
            running.wait_for("Epoch[002")
            running.send(number, running.ranks()[rank])

        return act

    def port_taken(scene: Scene) -> list[str]:
        listener = scene.listener = socket.create_server(("127.0.0.1", 0))
        scene.write("port", str(listener.getsockname()[1]))
        return scene.digits()

    def bad_image(scene: Scene) -> list[str]:
        flags = scene.images(flags=("-ngpus=2",))
        scene.write("data/train/cat/3.jpg", b"hello")
        return flags

    def ctrl_c(running: Running) -> None:
        running.wait_for("Epoch[002")
        running.send_to_all(signal.SIGINT)

    def restarted(scene: Scene) -> list[str]:
        return scene.digits("TRAIN.NUM_EPOCHS=20", "REPORT_FREQ=1", "SAVE_FREQ_STEPS=5", flags=("-resume=auto",))

    torchrun = 'python=$1; shift; exec "$python" -m torch.distributed.run --standalone --nproc_per_node=2 '
    elastic, torchrun = (f'{torchrun} {more} "$@" 2>/dev/null' for more in ("--max-restarts=2", ""))
    killed, terminated = hurt(signal.SIGKILL, 1), _sending(signal.SIGTERM)
    port = "export MASTER_PORT=$(cat port) MASTER_ADDR=127.0.0.1 RANK=0 WORLD_SIZE=2; {}"
    ended = r"rank {}"
    return [
        *(
            Fault(f"rank {rank} killed", two, ended.format(rank), (1, 137), MULTI, hurt(signal.SIGKILL, rank), "failed")
            for rank in (0, 1)
        ),
        Fault("rank 1 stands still", two, ended.format(1), (1, 137), MULTI, hurt(signal.SIGSTOP, 1), "failed"),
        Fault("rank 1 ended from outside", two, None, (143,), MULTI, hurt(signal.SIGTERM, 1), "interrupted"),
        Fault("an image that one rank cannot read", bad_image, r"3\.jpg: is no image", (1,), MULTI),
        Fault("SIGTERM to two ranks", two, None, (143,), MULTI, _sending(signal.SIGTERM), "interrupted"),
        Fault("SIGUSR1 to two ranks", two, None, (138,), MULTI, _sending(signal.SIGUSR1), "interrupted"),
        Fault("Ctrl-C on two ranks", two, None, (130,), MULTI, ctrl_c, "interrupted"),
        Fault(
            "the launcher killed", two, None, (137,), MULTI, _sending(signal.SIGKILL), "interrupted", grace_seconds=12
        ),
        Fault("SIGTERM to torchrun", training, None, (1,), MULTI, terminated, "interrupted", shell=torchrun),
        Fault("torchrun restarts after a kill", restarted, None, (0,), MULTI, killed, "finished", shell=elastic),
        Fault("the port is taken", port_taken, r"MASTER_ADDR, MASTER_PORT: ", (1,), MULTI, shell=port),
    ]


def _workers() -> list[Fault]:
    def loading(scene: Scene) -> list[str]:
        return scene.images(*ENDLESS, "DATA.NUM_WORKERS=2", "TIMEOUT_SECONDS=4")

    def hurt(number: int) -> Callable[[Running], None]:
        def act(running: Running) -> None:
            running.wait_for("Epoch[003")
            running.send(number, running.workers()[0])

        return act

    return [
        Fault("worker killed", loading, r"loading worker \d+ was ended by SIGKILL", act=hurt(signal.SIGKILL)),
        Fault("worker stands still", loading, r"no loading worker has answered", act=hurt(signal.SIGSTOP)),
    ]
