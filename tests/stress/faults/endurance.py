"""Endurance tests: many kills, many damaged files, many resumed runs."""

import hashlib
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from faults.runner import MULTI, SINGLE, Fault, Running, finish, has_good_checkpoint, is_good, run_fault
from faults.runs import evaluating, training, two_ranks
from faults.scene import Scene

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.writer import CheckpointWriter
from scripts.benchmarks.common import print_progress

STATE = ("model", "ema", "optimizer", "precision", "sums", "epoch", "done_steps", "best")
# Options that use all sources of randomness.
RANDOM_OPTIONS = ["MODEL.DROPOUT=0.1", "TRAIN.MIXUP_ALPHA=0.2", "TRAIN.MODEL_EMA=true", "DATA.AFFINE_DEGREES=10"]
PRECISIONS = {
    "fp32": ["AMP.ENABLED=false"],
    "bf16": ["AMP.ENABLED=true", "AMP.DTYPE=bfloat16"],
    "fp16": ["AMP.ENABLED=true", "AMP.DTYPE=float16", "AMP.INCR_EVERY_N_STEPS=5"],
}


def state_hash(checkpoint: Path) -> str:
    """A hash of everything in a checkpoint that determines the further training."""
    digest = hashlib.sha256()
    content = load_checkpoint(checkpoint)
    for part in _leaf_bytes([content[name] for name in STATE]):
        digest.update(part)
    return digest.hexdigest()[:16]


def _leaf_bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in value:
            yield repr(key).encode()
            yield from _leaf_bytes(value[key])
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(map(_leaf_bytes, value))
    else:
        yield repr(value).encode()


def train(scene: Scene, ranks: int, *options: str, flags: Sequence[str] = ()) -> Path:
    """Trains a run to its end. Returns its folder."""
    script, more = (MULTI, (f"-ngpus={ranks}",)) if ranks > 1 else (SINGLE, ())
    finish(script, scene.digits(*options, flags=(*more, *flags)), scene.folder / "printed")
    (folder,) = scene.output.iterdir()
    return folder


def resume_matrix(root: Path) -> dict[str, Any]:
    """Stops and resumes 24 runs, within an epoch or at its end. Each must end like the run that was not stopped."""
    unequal, cases, references = [], [], {}
    steps_per_epoch = {1: 22, 2: 11}
    for workers, ranks, (precision, options) in itertools.product((0, 2), (1, 2), PRECISIONS.items()):
        options = [*RANDOM_OPTIONS, *options, f"DATA.NUM_WORKERS={workers}"]
        if (ranks, precision) not in references:  # independent of the number of workers
            folder = train(new_scene(root / f"reference-{ranks}-{precision}"), ranks, *options)
            references[ranks, precision] = state_hash(folder / "last.pth")
        for stop, step in (("mid-epoch", steps_per_epoch[ranks] + 4), ("epoch end", steps_per_epoch[ranks])):
            name = f"{workers} workers, {ranks} rank(s), {precision}, {stop}"
            scene = new_scene(root / name)
            folder = train(scene, ranks, *options, f"TRAIN.MAX_STEPS={step}")
            train(scene, ranks, *options, flags=(f"-resume={folder}",))
            is_equal = state_hash(folder / "last.pth") == references[ranks, precision]
            cases.append(name)
            unequal += [] if is_equal else [name]
            print_progress(f"resume: {name}: {'equal' if is_equal else 'NOT equal'}")
            shutil.rmtree(scene.folder)
    return {"cases": len(cases), "failures": unequal}


def new_scene(folder: Path) -> Scene:
    folder.mkdir(parents=True)
    return Scene(folder, folder)


def kills_while_saving(root: Path, trained: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """Kills a process that saves without pause. There must always be a good checkpoint."""
    folder = Path(shutil.copytree(trained, root / "saves"))
    state, failures = load_checkpoint(folder / "last.pth"), []
    killed_in_writing = 0
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                writer = CheckpointWriter(folder, keep=2, on_written=lambda *_: None)
                for save in itertools.count():
                    writer.save(state, is_best=save % 3 == 0, periodic=f"epoch-{save:03d}")
            finally:
                os._exit(1)  # an error must not run the rest of the parent's program here
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed_in_writing += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            failures.append(f"kill {number}")
    return {"cases": count, "killed_in_writing": killed_in_writing, "failures": failures}


def damaged_checkpoints(root: Path, trained: Path, flips: int, truncations: int, rng: random.Random) -> dict[str, Any]:
    """Flips single bits, and cuts files short, at random positions. Each file must be refused."""
    original = (trained / "last.pth").read_bytes()
    failures, damaged = [], root / "damaged.pth"
    for number in range(flips + truncations):
        data = bytearray(original)
        if number < flips:
            position = rng.randrange(8 * len(original))
            data[position // 8] ^= 1 << position % 8
        else:
            position = rng.randrange(len(original))
            del data[position:]
        damaged.write_bytes(data)
        if is_good(damaged):
            failures.append(f"{'bit' if number < flips else 'cut at byte'} {position}")
    return {"cases": flips + truncations, "bytes": len(original), "failures": failures}


def signals_at_random(root: Path, trained: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """Sends SIGTERM to two ranks, in training and in evaluation. Each run must stop with a checkpoint."""
    failures, slowest = [], 0.0
    for number in range(count):
        pause = rng.uniform(0, 3)

        def act(running: Running, pause: float = pause) -> None:
            running.wait_for("Epoch[001")
            time.sleep(pause)
            running.send(signal.SIGTERM)

        provoke = two_ranks(evaluating if number % 2 else training)
        fault = Fault(f"SIGTERM {number}", provoke, None, (143,), MULTI, act, state="interrupted")
        (folder := root / f"signal-{number}").mkdir()
        outcome = run_fault(fault, folder, trained, limit_seconds=15)
        saved = any(has_good_checkpoint(path.parent) for path in folder.glob("output/*/last.pth"))
        problems = outcome.problems + ([] if saved else ["no checkpoint"])
        failures += [f"{number}: {'; '.join(problems)}"] if problems else []
        slowest = max(slowest, outcome.seconds)
        print_progress(f"SIGTERM {number + 1} of {count}: {outcome.seconds:.1f} s {problems or ''}")
        shutil.rmtree(folder)
    return {"cases": count, "slowest_seconds": slowest, "failures": failures}
