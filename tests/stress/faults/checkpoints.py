"""Faults in checkpoints and in resuming; ranks of a sharded run that die."""

import hashlib
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

from faults.processes import MULTI
from faults.runner import Fault, finished
from faults.runs import evaluating, rank_deaths, send, training, two_ranks
from faults.scene import Provoke, Scene, flipped, in_namespace, require_mounts

FSDP = "PARALLEL.STRATEGY=fsdp"
LONGER = "TRAIN.NUM_EPOCHS=3"


def resume_faults() -> list[Fault]:
    def damaged(scene: Scene) -> Path:
        return flipped(scene.run_copy() / "last.pth").parent

    def in_folder(scene: Scene) -> list[str]:
        return scene.digits(LONGER, flags=(f"-resume={damaged(scene)}",))

    def found(scene: Scene) -> list[str]:
        damaged(scene)
        return scene.digits(LONGER, flags=("-resume=auto",))

    def linked(name: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            file = scene.run_copy() / name
            file.unlink(missing_ok=True)
            file.symlink_to(scene.write("elsewhere", "kept"))
            return scene.digits(LONGER, flags=(f"-resume={file.parent}",))

        return provoke

    def without_texts(scene: Scene) -> list[str]:
        for file in scene.run_copy().iterdir():
            if file.suffix in (".txt", ".csv", ".yaml", ".json", ".jsonl"):
                file.unlink()
        return scene.digits(LONGER, flags=("-resume=auto",))

    def from_behind(scene: Scene) -> list[str]:
        return scene.digits(LONGER, flags=(f"-resume={scene.run_copy() / 'epoch-001.pth'}",))

    def lost(scene: Scene) -> list[str]:
        """The checkpoints of the finished run that are ahead of the resumed one must be somewhere in the folder."""
        (folder,) = scene.output.iterdir()
        kept = {hashlib.sha256(file.read_bytes()).digest() for file in folder.rglob("*.pth")}
        names = ("last.pth", "best.pth", "epoch-002.pth")
        return [
            f"{name} is lost"
            for name in names
            if hashlib.sha256((scene.trained / name).read_bytes()).digest() not in kept
        ]

    def on_full_disk(scene: Scene) -> list[str]:
        require_mounts()
        saved = scene.run_copy()
        shutil.move(scene.output, scene.folder / "saved")
        scene.output.mkdir()
        return scene.digits(LONGER, flags=(f"-resume={saved}",))

    full = "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/a || true) 2>&-"
    return [
        Fault("resume: a full disk", on_full_disk, r"output/\S+: No space left", shell=in_namespace(full)),
        finished("resume: a folder, the last is damaged", in_folder, prints="Resume: skipped"),
        finished("resume: auto, the last is damaged", found),
        *(
            Fault(
                f"resume: {name} is a link",
                linked(name),
                rf"{re.escape(name)}: is a link to \S+elsewhere; .*delete",
                (2,),
            )
            for name in (".lock", "log.txt")
        ),
        finished("resume: metrics.jsonl is a link", linked("metrics.jsonl")),
        finished("resume: auto, no text files", without_texts, prints="Resume: missing in"),
        finished("resume: from behind", from_behind, prints=r"epoch 2, step 44.*moved to \S+step-000044", check=lost),
    ]


def sharded_faults() -> list[Fault]:
    two, in_evaluation = two_ranks(training, FSDP), two_ranks(evaluating, FSDP)
    on_sigterm = send(signal.SIGTERM)
    disk = in_namespace("mount -t tmpfs -o size=256k tmpfs output")
    faults = [
        *rank_deaths(FSDP, may_cut_save=True),
        Fault("SIGTERM", two, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("SIGTERM in evaluation", in_evaluation, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("a disk that fills up while saving", _on_small_disk, "No space left", (1,), MULTI, shell=disk),
    ]
    return [replace(fault, name=f"sharded run: {fault.name}") for fault in faults]


def _on_small_disk(scene: Scene) -> list[str]:
    scene.output.mkdir()
    return two_ranks(training, FSDP)(scene)
