"""Faults of sharded runs, whose checkpoints are folders of parts: kills, full disks, damaged parts."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.processes import MULTI
from faults.runner import Fault, Provoke, finished
from faults.runs import SHORT_TIMEOUT, evaluating, send, training, two_ranks
from faults.scene import Scene, flipped, in_namespace, truncated
from shard_files import to_shards

FSDP = "PARALLEL.STRATEGY=fsdp"
LONGER = "TRAIN.NUM_EPOCHS=3"
PART = "shard-00002-model-00001-of-00001.safetensors"


def sharded_faults() -> list[Fault]:
    two, stopped = two_ranks(training, FSDP), two_ranks(training, FSDP, SHORT_TIMEOUT)
    in_evaluation = two_ranks(evaluating, FSDP)
    ended, on_sigterm = (1, 137), send(signal.SIGTERM)
    full = r"(last\.shards: cannot be saved: No space left|No space left)"
    disk = in_namespace("mount -t tmpfs -o size=256k tmpfs output")
    flipped_part = _in_folder(lambda folder: flipped(folder / PART))
    without_part = _in_folder(lambda folder: (folder / PART).unlink(), ranks=1)
    cut_manifest = _in_folder(lambda folder: truncated(folder / "manifest.json"), resume="auto")
    faults = [
        Fault("rank 0 killed", two, r"rank 0", ended, MULTI, send(signal.SIGKILL, 0), "failed", may_cut_save=True),
        Fault("rank 1 killed", two, r"rank 1", ended, MULTI, send(signal.SIGKILL, 1), "failed", may_cut_save=True),
        Fault("rank 1 stopped", stopped, r"rank 1", ended, MULTI, send(signal.SIGSTOP, 1), "failed", may_cut_save=True),
        Fault("SIGTERM", two, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("SIGTERM in evaluation", in_evaluation, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("a disk that fills up while saving", _on_small_disk, full, (1,), MULTI, shell=disk),
        finished("a part with a bit flipped", flipped_part, script=MULTI, prints=r"Resume: skipped: .*is damaged"),
        finished("a missing part, one process resumes", without_part, prints=r"Resume: skipped: .*is missing"),
        finished("a manifest that is cut short, -resume=auto", cut_manifest, script=MULTI),
    ]
    return [replace(fault, name=f"sharded run: {fault.name}") for fault in faults]


def _on_small_disk(scene: Scene) -> list[str]:
    scene.output.mkdir()
    return two_ranks(training, FSDP)(scene)


def sharded_copy(scene: Scene) -> Path:
    """A copy of the finished run whose last two checkpoints are folders of two parts."""
    folder = scene.run_copy()
    for name in ("last.pth", "previous.pth"):
        to_shards(folder / name)
    for file in folder.glob("*.pth"):
        file.unlink()
    return folder


def _in_folder(change: Callable[[Path], Any], ranks: int = 2, resume: str | None = None) -> Provoke:
    def provoke(scene: Scene) -> list[str]:
        folder = sharded_copy(scene)
        change(folder / "last.shards")
        flags = (f"-resume={resume or folder}", f"-batch_size={64 // ranks}")
        return scene.digits(LONGER, FSDP, flags=(*flags, *([f"-ngpus={ranks}"] if ranks > 1 else [])))

    return provoke
