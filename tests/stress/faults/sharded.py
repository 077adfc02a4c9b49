"""Faults of sharded runs, whose checkpoints are folders of parts: kills, full disks, damaged parts."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.processes import MULTI, SINGLE, Running
from faults.runner import Fault, Provoke
from faults.runs import SHORT_TIMEOUT, evaluating, training, two_ranks
from faults.scene import Scene, flipped, truncated
from shard_files import to_shards

FSDP = "PARALLEL.STRATEGY=fsdp"
LONGER = "TRAIN.NUM_EPOCHS=3"
PART = "shard-00002-model-00001-of-00001.safetensors"


def sharded_faults() -> list[Fault]:
    two, stopped = _sharded(training), two_ranks(training, FSDP, SHORT_TIMEOUT)
    full = r"(last\.shards: cannot be saved: No space left|No space left)"
    mount = 'unshare -rm sh -c \'mount -t tmpfs -o size=256k tmpfs output && exec "$@"\' sh "$@"'
    ended = (1, 137)
    return [
        Fault("sharded run: rank 0 killed", two, r"rank 0", ended, MULTI, _signal_to(signal.SIGKILL, 0), "failed"),
        Fault("sharded run: rank 1 killed", two, r"rank 1", ended, MULTI, _signal_to(signal.SIGKILL, 1), "failed"),
        Fault("sharded run: rank 1 stopped", stopped, r"rank 1", ended, MULTI, _signal_to(signal.SIGSTOP, 1), "failed"),
        Fault("sharded run: SIGTERM", two, None, (143,), MULTI, _signal_to(signal.SIGTERM), "interrupted"),
        Fault(
            "sharded run: SIGTERM in evaluation",
            _sharded(evaluating),
            None,
            (143,),
            MULTI,
            _signal_to(signal.SIGTERM, after="Epoch[001"),
            "interrupted",
        ),
        Fault("sharded run: a disk that fills up while saving", _on_small_disk, full, (1,), MULTI, shell=mount),
        Fault(
            "sharded run: a part with a bit flipped, the folder is resumed",
            _in_folder(lambda folder: flipped(folder / PART)),
            None,
            (0,),
            MULTI,
            state="finished",
            prints=r"Resume: skipped: .*is damaged",
        ),
        Fault(
            "sharded run: a missing part, one process resumes",
            _in_folder(lambda folder: (folder / PART).unlink(), ranks=1),
            None,
            (0,),
            SINGLE,
            state="finished",
            prints=r"Resume: skipped: .*is missing",
        ),
        Fault(
            "sharded run: a manifest that is cut short, -resume=auto",
            _in_folder(lambda folder: truncated(folder / "manifest.json"), resume="auto"),
            None,
            (0,),
            MULTI,
            state="finished",
        ),
        Fault(
            "sharded run: named, no manifest",
            _named(lambda folder: (folder / "manifest.json").unlink()),
            r"has no manif",
        ),
        Fault(
            "sharded run: named, a file too many",
            _named(lambda folder: (folder / "x").touch()),
            r"'x' is not part of it",
        ),
        Fault(
            "sharded run: named, of another model", _named(lambda _: None, "MODEL.EMBED_DIM=32"), r"is of another model"
        ),
    ]


def _sharded(provoke: Provoke) -> Provoke:
    return two_ranks(provoke, FSDP)


def _on_small_disk(scene: Scene) -> list[str]:
    scene.output.mkdir()
    return _sharded(training)(scene)


def _signal_to(number: int, *ranks: int, after: str = "Epoch[002") -> Callable[[Running], None]:
    def act(running: Running) -> None:
        running.wait_for(after)
        running.send(number, *(running.ranks()[rank] for rank in ranks))

    return act


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


def _named(change: Callable[[Path], Any], *options: str) -> Provoke:
    def provoke(scene: Scene) -> list[str]:
        last = sharded_copy(scene) / "last.shards"
        change(last)
        return scene.digits(*options, flags=(f"-resume={last}",))

    return provoke
