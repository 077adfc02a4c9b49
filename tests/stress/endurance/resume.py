"""Runs that are stopped and resumed: the same options, other workers, other ranks."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

from faults.checkpoints import FSDP
from faults.processes import MULTI, SINGLE, finish
from faults.saved import state_hash
from faults.scene import Scene
from results import Result, show_progress

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import LAST, saved_path

# Options that use all sources of randomness.
RANDOM_OPTIONS = ["MODEL.DROPOUT=0.1", "TRAIN.MIXUP_ALPHA=0.2", "TRAIN.MODEL_EMA=true", "DATA.AFFINE_DEGREES=10"]
PRECISIONS = {
    "fp32": ["AMP.ENABLED=false"],
    "bf16": ["AMP.ENABLED=true", "AMP.DTYPE=bfloat16"],
    "fp16": ["AMP.ENABLED=true", "AMP.DTYPE=float16", "AMP.INCR_EVERY_N_STEPS=5"],
}
_END = "TRAIN.MAX_STEPS=22"
_OTHER_RANKS = {
    "fsdp at 3": (3, (FSDP,)),
    "fsdp at 2": (2, (FSDP,)),
    "hsdp at 2": (2, ("PARALLEL.STRATEGY=hsdp",)),
    "ddp at 3": (3, ("PARALLEL.STRATEGY=ddp",)),
    "one process": (1, ()),
}


def new_scene(folder: Path) -> Scene:
    folder.mkdir(parents=True)
    return Scene(folder, folder)


def train(scene: Scene, ranks: int, *options: str, flags: Sequence[str] = ()) -> Path:
    """Trains a run to its end. Returns its folder."""
    script, more = (MULTI, (f"-ngpus={ranks}",)) if ranks > 1 else (SINGLE, ())
    finish(scene, script, scene.digits(*options, flags=(*more, *flags)))
    (folder,) = scene.output.iterdir()
    return folder


def resume_matrix(root: Path) -> Result:
    """Stops and resumes 24 runs, within an epoch or at its end. Each must end like the run that was not stopped."""
    result, references = Result("", 0), {}
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
            result.cases += 1
            if state_hash(folder / "last.pth") != references[ranks, precision]:
                result.failures.append(f"{name}: not equal")
            show_progress(f"resumed {result.cases} of 24 runs, {len(result.failures)} not equal")
            shutil.rmtree(scene.folder)
    return result


def resumed_by_other_ranks(root: Path) -> Result:
    """A run of 3 ranks, stopped within an epoch and resumed by others for five steps: bit for bit, or within 1e-6.

    The optimizer is SGD, since Adam amplifies the rounding of sums in another order.
    """
    unbroken = load_checkpoint(train(new_scene(root / "unbroken"), 3, FSDP, *_options(3), _END) / "last.shards")
    stopped = train(new_scene(root / "stopped"), 3, FSDP, *_options(3), "TRAIN.MAX_STEPS=17")  # an epoch has 14
    result = Result("", len(_OTHER_RANKS))
    for name, (ranks, options) in _OTHER_RANKS.items():
        scene = new_scene(root / name.replace(" ", "-"))
        folder = Path(shutil.copytree(stopped, scene.output / stopped.name))
        train(scene, ranks, *_options(ranks), *options, _END, flags=(f"-resume={folder}",))
        state = load_checkpoint(saved_path(folder / LAST))
        weights = [
            (state[key][name], tensor) for key in ("model", "state_dict_ema") for name, tensor in unbroken[key].items()
        ]
        difference = max((one - other).abs().max().item() for one, other in weights)
        result.figures[name] = f"{difference:.1e}"
        if difference > (0 if name == "fsdp at 3" else 1e-6):
            result.failures.append(f"{name}: differs by {difference:.1e}")
    return result


def _options(ranks: int) -> list[str]:
    sgd = ["TRAIN.OPTIMIZER.NAME=SGD", "TRAIN.BASE_LR=0.05"]
    return [*sgd, "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9", f"DATA.BATCH_SIZE={96 // ranks}"]
