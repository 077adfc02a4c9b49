"""Endurance tests of folders of shards: many kills, many damaged folders, a sharded run that is killed and resumed."""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from faults.endurance import new_scene, state_hash, train
from faults.runner import MULTI, Running, has_good_checkpoint, is_good, start
from faults.scene import Scene
from faults.shards import FSDP
from shard_files import write_shards

from engine.checkpoint.paths import LAST, saved_path
from engine.checkpoint.reader import FORMAT, load_checkpoint
from engine.checkpoint.shard_writer import ShardWriter
from scripts.benchmarks.common import print_progress
from utils.distributed import single_process


def kills_while_saving(root: Path, trained: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """Kills a process that saves folders without pause. There must always be a good checkpoint."""
    folder = Path(shutil.copytree(trained, root / "saved-shards"))
    state, failures, in_writing = load_checkpoint(folder / "last.pth"), [], 0
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                _save_without_end(folder, state)
            finally:
                os._exit(1)  # an error must not run the rest of the parent's program here
        time.sleep(rng.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        in_writing += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            failures.append(f"kill {number}")
    return {"cases": count, "killed_in_writing": in_writing, "failures": failures}


def _save_without_end(folder: Path, state: dict[str, Any]) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    writer, save = ShardWriter(folder, 2, lambda *_: None, single_process(), 60), 0
    while True:
        writer.save(state, is_best=save % 3 == 0, periodic=f"epoch-{save:03d}")
        save += 1


def damaged_folders(root: Path, trained: Path, flips: int, truncations: int, rng: random.Random) -> dict[str, Any]:
    """Flips single bits, and cuts files short, at random positions of a folder. Each must be refused."""
    content = {"format": FORMAT} | load_checkpoint(trained / "last.pth")
    folder = write_shards(root / "damaged.shards", content)
    files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    failures, total = [], sum(map(len, files.values()))
    for number in range(flips + truncations):
        # Every third case is in a small file: the shards are nearly all of the bytes.
        position = rng.randrange(total) if number % 3 else None
        path = rng.choice(sorted(files)) if position is None else _file_at(files, position)
        data = bytearray(files[path])
        if number < flips:
            bit = rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        else:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        if is_good(folder):
            failures.append(f"case {number}: {path.name}")
        path.write_bytes(files[path])
    if not is_good(folder):
        failures.append("the undamaged folder")
    return {"cases": flips + truncations, "bytes": total, "failures": failures}


def _file_at(files: dict[Path, bytes], position: int) -> Path:
    for path, content in files.items():
        if position < len(content):
            return path
        position -= len(content)
    raise IndexError(position)


def killed_and_resumed(root: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """Kills one or both of two ranks that save after every step, at random moments, until the run has ended.

    The last checkpoint must equal that of an undisturbed run, and some kills must leave a part of a save.
    """
    options = [FSDP, "TRAIN.NUM_EPOCHS=6", "SAVE_FREQ_STEPS=1", "TRAIN.MODEL_EMA=true"]
    reference = state_hash(train(new_scene(root / "sharded-reference"), 2, *options) / "last.shards")
    failures, in_writing, scene = [], 0, new_scene(root / "sharded-killed")
    for number in range(count):
        argv = scene.digits(*options, flags=("-ngpus=2", "-resume=auto"))
        process, marker = start(MULTI, argv, scene.folder / "printed", {})
        running = Running(process, scene, marker)
        before = _saves(scene)
        while process.poll() is None and _saves(scene) <= before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        ranks = running.ranks()
        for rank in rng.sample(ranks, rng.choice(range(1, len(ranks) + 1))) if ranks else []:
            os.kill(rank, signal.SIGKILL)
        process.wait()
        folders = list(scene.output.iterdir())
        in_writing += any(folders[0].glob(".*.tmp"))
        if not has_good_checkpoint(folders[0]):
            failures.append(f"kill {number}")
        print_progress(f"sharded run: kill {number + 1} of {count}")
    folder = train(scene, 2, *options, flags=("-resume=auto",))
    if state_hash(folder / "last.shards") != reference:
        failures.append("the resumed run differs from the undisturbed one")
    return {"cases": count, "killed_in_writing": in_writing, "failures": failures}


def resumed_by_others(root: Path) -> dict[str, Any]:
    """A run of 3 ranks, stopped within an epoch and resumed by others for five steps: bit for bit, or within 1e-6.

    With SGD: Adam amplifies the rounding of sums in another order.
    """
    unbroken = load_checkpoint(_train_shards(root / "unbroken", 3, _END) / "last.shards")
    stopped = _train_shards(root / "stopped", 3, "TRAIN.MAX_STEPS=17")  # an epoch has 14
    failures, figures = [], {}
    for name, (ranks, options) in _OTHERS.items():
        scene = new_scene(root / name.replace(" ", "-"))
        folder = Path(shutil.copytree(stopped, scene.output / stopped.name))
        train(scene, ranks, *_options(ranks), *options, _END, flags=(f"-resume={folder}",))
        state = load_checkpoint(saved_path(folder / LAST))
        weights = [(state[key][name], tensor) for key in ("model", "ema") for name, tensor in unbroken[key].items()]
        figures[name] = difference = max((one - other).abs().max().item() for one, other in weights)
        if difference > (0 if name == "fsdp at 3" else 1e-6):
            failures.append(name)
        print_progress(f"resumed by {name}: {difference:.1e}")
    return {"cases": len(_OTHERS), "failures": failures} | figures


_END = "TRAIN.MAX_STEPS=22"
_OTHERS = {
    "fsdp at 3": (3, (FSDP,)),
    "fsdp at 2": (2, (FSDP,)),
    "hsdp at 2": (2, ("PARALLEL.STRATEGY=hsdp",)),
    "ddp at 3": (3, ("PARALLEL.STRATEGY=ddp",)),
    "one process": (1, ()),
}


def _options(ranks: int) -> list[str]:
    sgd = ["TRAIN.OPTIMIZER.NAME=SGD", "TRAIN.BASE_LR=0.05"]
    return [*sgd, "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9", f"DATA.BATCH_SIZE={96 // ranks}"]


def _train_shards(folder: Path, ranks: int, *options: str) -> Path:
    return train(new_scene(folder), ranks, FSDP, *_options(ranks), *options)


def _saves(scene: Scene) -> int:
    return sum(path.read_text().count("Save model") for path in scene.output.glob("*/log.txt"))
