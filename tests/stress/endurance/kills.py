"""Processes that are killed at random moments: while they save, while they train, while they evaluate."""

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from endurance.resume import new_scene, train
from faults.processes import MULTI, Running, start
from faults.runner import Fault, run_fault
from faults.runs import evaluating, training, two_ranks
from faults.saved import has_good_checkpoint, state_hash
from faults.scene import Scene
from faults.sharded import FSDP
from results import Result, show_progress

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.shard_writer import ShardWriter
from engine.checkpoint.writer import CheckpointWriter
from utils.distributed import single_process


def kills_while_saving(
    trained: Path, folder: Path, make_writer: Callable[[Path], Any], count: int, seed: int
) -> Result:
    """Kills a process that saves without pause. There must always be a good checkpoint."""
    shutil.copytree(trained, folder)
    rng, state, result = random.Random(seed), load_checkpoint(folder / "last.pth"), Result("", count)
    killed_in_writing = 0
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                writer = make_writer(folder)
                for save in itertools.count():
                    writer.save(state, is_best=save % 3 == 0, periodic=f"epoch-{save:03d}")
            finally:
                os._exit(1)  # an error must not run the rest of the parent's program here
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed_in_writing += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            result.failures.append(f"kill {number}")
    result.figures["killed while writing"] = killed_in_writing
    return result


def file_writer(folder: Path) -> CheckpointWriter:
    return CheckpointWriter(folder, keep=2, on_written=lambda *_: None)


def part_writer(folder: Path) -> ShardWriter:
    """Writes sharded checkpoints of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return ShardWriter(folder, 2, lambda *_: None, single_process(), 60)


def signals_at_random(root: Path, trained: Path, count: int, seed: int) -> Result:
    """Sends SIGTERM to two ranks, in training and in evaluation. Each run must stop with a checkpoint."""
    rng, result, slowest = random.Random(seed), Result("", count), 0.0
    for number in range(count):
        pause = rng.uniform(0, 3)

        def act(running: Running, pause: float = pause) -> None:
            running.wait_for("Epoch[001")
            time.sleep(pause)
            running.send(signal.SIGTERM)

        provoke = two_ranks(evaluating if number % 2 else training)
        fault = Fault(f"SIGTERM {number}", provoke, None, (143,), MULTI, act, state="interrupted")
        (folder := root / f"signal-{number}").mkdir()
        outcome = run_fault(fault, Scene(folder, trained))
        saved = any(has_good_checkpoint(path.parent) for path in folder.glob("output/*/last.pth"))
        problems = outcome.problems + ([] if saved else ["no checkpoint"])
        result.failures += [f"{number}: {'; '.join(problems)}"] if problems else []
        slowest = max(slowest, outcome.seconds)
        show_progress(f"SIGTERM {number + 1} of {count}: {outcome.seconds:.1f} s {problems or ''}")
        shutil.rmtree(folder)
    result.figures["seconds until the end, at most"] = f"{slowest:.1f}"
    return result


def killed_and_resumed(root: Path, count: int, seed: int) -> Result:
    """Kills one or both of two ranks that save parts of checkpoints after every step, until the run has ended.

    The last checkpoint must equal the last one of an undisturbed run, and some kills must leave a part of a save.
    """
    options = [FSDP, "TRAIN.NUM_EPOCHS=6", "SAVE_FREQ_STEPS=1", "TRAIN.MODEL_EMA=true"]
    reference = state_hash(train(new_scene(root / "reference"), 2, *options) / "last.shards")
    rng, result, scene, killed_in_writing = random.Random(seed), Result("", count), new_scene(root / "killed"), 0
    for number in range(count):
        running = start(scene, MULTI, scene.digits(*options, flags=("-ngpus=2", "-resume=auto")))
        before = _saves(scene)
        while running.process.poll() is None and _saves(scene) <= before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        ranks = running.ranks()
        for rank in rng.sample(ranks, rng.choice(range(1, len(ranks) + 1))) if ranks else []:
            os.kill(rank, signal.SIGKILL)
        running.process.wait()
        (folder,) = scene.output.iterdir()
        killed_in_writing += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            result.failures.append(f"kill {number}")
        show_progress(f"sharded run: kill {number + 1} of {count}")
    folder = train(scene, 2, *options, flags=("-resume=auto",))
    if state_hash(folder / "last.shards") != reference:
        result.failures.append("the resumed run differs from the undisturbed one")
    result.figures["killed while writing"] = killed_in_writing
    return result


def _saves(scene: Scene) -> int:
    return sum(path.read_text().count("Save model") for path in scene.output.glob("*/log.txt"))
