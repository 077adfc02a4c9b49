"""Faults in checkpoints and in resuming; ranks of a sharded run that die."""

import shutil
import signal
from dataclasses import replace

from faults.processes import MULTI
from faults.runner import Fault, finished
from faults.runs import evaluating, rank_deaths, send, training, two_ranks
from faults.scene import Scene, in_namespace, require_mounts

_FSDP = "PARALLEL.STRATEGY=fsdp"
_LONGER = "TRAIN.NUM_EPOCHS=3"


def resume_faults() -> list[Fault]:
    def damaged(scene: Scene) -> list[str]:
        last = scene.run_copy() / "last.pth"
        data = bytearray(last.read_bytes())
        data[len(data) // 2] ^= 1
        last.write_bytes(data)
        return scene.digits(_LONGER, flags=("-resume=auto",))

    def on_full_disk(scene: Scene) -> list[str]:
        require_mounts()
        saved = scene.run_copy()
        shutil.move(scene.output, scene.folder / "saved")
        scene.output.mkdir()
        return scene.digits(_LONGER, flags=(f"-resume={saved}",))

    full = "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/a || true) 2>&-"
    return [
        Fault("resume: a full disk", on_full_disk, r"output/\S+: No space left", shell=in_namespace(full)),
        finished("resume: auto, the last is damaged", damaged, prints="Resume: skipped"),
    ]


def sharded_faults() -> list[Fault]:
    two, in_evaluation = two_ranks(training, _FSDP), two_ranks(evaluating, _FSDP)
    on_sigterm = send(signal.SIGTERM)
    disk = in_namespace("mount -t tmpfs -o size=256k tmpfs output")
    faults = [
        *rank_deaths(_FSDP, may_cut_save=True),
        Fault("SIGTERM", two, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("SIGTERM in evaluation", in_evaluation, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("a disk that fills up while saving", _on_small_disk, "No space left", (1,), MULTI, shell=disk),
    ]
    return [replace(fault, name=f"sharded run: {fault.name}") for fault in faults]


def _on_small_disk(scene: Scene) -> list[str]:
    scene.output.mkdir()
    return two_ranks(training, _FSDP)(scene)
