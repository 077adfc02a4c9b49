"""Runs that are stopped and resumed, with the same options and any number of workers."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

from faults.processes import MULTI, SINGLE, finish
from faults.saved import state_hash
from faults.scene import Scene
from results import Result, show_progress

# Options that use all sources of randomness.
RANDOM_OPTIONS = ["MODEL.DROPOUT=0.1", "TRAIN.MIXUP_ALPHA=0.2", "TRAIN.MODEL_EMA=true", "DATA.AFFINE_DEGREES=10"]
PRECISIONS = {
    "fp32": ["AMP.ENABLED=false"],
    "bf16": ["AMP.ENABLED=true", "AMP.DTYPE=bfloat16"],
    "fp16": ["AMP.ENABLED=true", "AMP.DTYPE=float16", "AMP.INCR_EVERY_N_STEPS=5"],
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
