"""The soak test: a run on two ranks that is killed and resumed many times must end like an undisturbed run."""

import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from endurance.resume import RANDOM_OPTIONS, new_scene
from faults.processes import MULTI, Running, start
from faults.runner import GRACE_SECONDS
from faults.saved import has_good_checkpoint, state_hash
from faults.scene import Scene
from results import Result, show_progress

from utils.errors import UserError

_KINDS = ("a rank", "the launcher", "all", "SIGTERM")
_EPOCHS_PER_KILL = 20


def soak(root: Path, kills: int, seed: int, *options: str) -> Result:
    """Trains once undisturbed, recording memory and open files; then once with kills."""
    epochs = kills * _EPOCHS_PER_KILL
    options = (*RANDOM_OPTIONS, "VALIDATE_FREQ=5", f"TRAIN.NUM_EPOCHS={epochs}", *options)
    result = Result("", 0, figures={"epochs": epochs, "killed while writing": 0})
    undisturbed, disturbed = new_scene(root / "undisturbed"), new_scene(root / "disturbed")
    _train_undisturbed(undisturbed, options, result)
    _train_with_kills(disturbed, options, kills, random.Random(seed), result)
    expected, actual = (state_hash(*scene.output.glob("*/last.*")) for scene in (undisturbed, disturbed))
    if actual != expected:
        result.failures.append(f"ends with state {actual}, not {expected}")
    return result


def _train_undisturbed(scene: Scene, options: Sequence[str], result: Result) -> None:
    """Compares the open files and the memory of the ranks in the second and in the last quarter of the run."""
    running, samples = start(scene, MULTI, scene.digits(*options, flags=("-ngpus=2",))), []
    while running.process.poll() is None:
        samples += [sample] if (sample := _sample(running)) else []
        time.sleep(1.0)
    if running.process.returncode:
        raise UserError(f"the undisturbed run failed: {(scene.folder / 'printed').read_text().strip()[-300:]}")
    quarter = max(len(samples) // 4, 1)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    files = [statistics.median(files for files, _ in part) for part in (early, late)]
    memory = [statistics.median(memory for _, memory in part) for part in (early, late)]
    result.figures |= {"open files": files, "memory bytes": memory}
    if files[1] > files[0] + 2:
        result.failures.append(f"open files grew from {files[0]} to {files[1]}")
    if memory[1] > 1.03 * memory[0] + (8 << 20):
        result.failures.append(f"memory grew from {memory[0]} to {memory[1]}")


def _sample(running: Running) -> tuple[int, int] | None:
    """Open files and resident bytes of all ranks; None unless both ranks are running."""
    try:
        ranks = running.ranks()
        files = sum(len(os.listdir(f"/proc/{rank}/fd")) for rank in ranks)
        pages = sum(int(Path(f"/proc/{rank}/statm").read_text().split()[1]) for rank in ranks)
    except OSError:
        return None
    return (files, pages * os.sysconf("SC_PAGESIZE")) if len(ranks) == 2 else None


def _train_with_kills(scene: Scene, options: Sequence[str], kills: int, rng: random.Random, result: Result) -> None:
    """Kills and resumes the run up to `kills` times, then waits for its end."""
    for start_number in range(1, kills + 2):
        printed = f"printed-{start_number}"
        running = start(scene, MULTI, scene.digits(*options, flags=("-ngpus=2", "-resume=auto")), printed)
        try:
            running.process.wait(rng.uniform(4, 30) if start_number <= kills else None)
            break
        except subprocess.TimeoutExpired:
            kind = rng.choice(_KINDS)
            result.failures += [f"kill {start_number}, {kind}: {problem}" for problem in _kill(running, kind, rng)]
            result.cases += 1
            result.figures["killed while writing"] += any(scene.output.glob("*/.*.tmp"))
            show_progress(f"soak: kill {start_number}: {kind}; failures: {result.failures}")
    if running.process.returncode:
        result.failures.append(f"start {start_number} failed: {(scene.folder / printed).read_text().strip()[-200:]}")


def _kill(running: Running, kind: str, rng: random.Random) -> list[str]:
    ranks = running.ranks()
    if kind == "all":
        running.send_to_all(signal.SIGKILL)
        running.kill_leftovers(grace_seconds=0)
    elif kind == "a rank" and ranks:
        running.send(signal.SIGKILL, rng.choice(ranks))
    else:
        running.send(signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
    left = running.kill_leftovers(GRACE_SECONDS)
    running.process.wait()
    saved = {path.parent for path in running.scene.output.glob("*/last.*")}
    problems = [f"no good checkpoint in {folder.name}" for folder in saved if not has_good_checkpoint(folder)]
    return problems + ([f"{len(left)} process(es) left: {left[0]}"] if left else [])
