"""The soak test: a run on two ranks that is killed and resumed many times must end like an undisturbed run."""

import os
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from faults.endurance import RANDOM_OPTIONS, new_scene, state_hash, train
from faults.runner import MULTI, Running, has_good_checkpoint, marked_processes, start
from faults.scene import Scene

from scripts.benchmarks.common import print_progress
from utils.errors import UserError

_TIMEOUT = ["TIMEOUT_SECONDS=10"]
_MAX_END_SECONDS = 25.0
_KINDS = ("a rank", "the launcher", "all", "SIGTERM")
_CALIBRATION_EPOCHS = 40


def soak(root: Path, minutes: float, rng: random.Random) -> dict[str, Any]:
    """Trains once undisturbed, recording memory and open files; then once with kills for `minutes`."""
    epochs = _epochs_for(root / "calibration", minutes * 60 / 2)
    options = [*RANDOM_OPTIONS, *_TIMEOUT, "SAVE_FREQ_STEPS=7", "VALIDATE_FREQ=5", f"TRAIN.NUM_EPOCHS={epochs}"]
    print_progress(f"soak: {epochs} epochs undisturbed")
    undisturbed = new_scene(root / "undisturbed")
    growth = _train_undisturbed(undisturbed, options)
    (folder,) = undisturbed.output.iterdir()
    expected = state_hash(folder / "last.pth")
    disturbed = new_scene(root / "disturbed")
    kills, failures, starts = _train_with_kills(disturbed, options, minutes * 60, rng)
    (folder,) = disturbed.output.iterdir()
    actual = state_hash(folder / "last.pth")
    failures += [] if actual == expected else [f"ends with state {actual}, not {expected}"]
    failures += growth.pop("failures")
    return {"cases": starts, "kills": kills, "epochs": epochs, "hash": actual, **growth, "failures": failures}


def _epochs_for(folder: Path, seconds: float) -> int:
    scene = new_scene(folder)
    started = time.monotonic()
    train(scene, 2, *RANDOM_OPTIONS, "TRAIN.NUM_EPOCHS=1")
    one = time.monotonic() - started
    for run in scene.output.iterdir():
        run.rename(scene.folder / run.name)
    started = time.monotonic()
    train(scene, 2, *RANDOM_OPTIONS, f"TRAIN.NUM_EPOCHS={_CALIBRATION_EPOCHS}", "VALIDATE_FREQ=5")
    per_epoch = (time.monotonic() - started - one) / (_CALIBRATION_EPOCHS - 1)
    return max(10, round(seconds / max(per_epoch, 0.01)))


def _train_undisturbed(scene: Scene, options: list[str]) -> dict[str, Any]:
    """Returns the open files and the memory of the ranks, in the second and in the last quarter of the run."""
    argv = scene.digits(*options, flags=("-ngpus=2",))
    process, marker = start(MULTI, argv, scene.folder / "printed", {})
    running, samples = Running(process, scene, marker), []
    while process.poll() is None:
        samples += [sample] if (sample := _sample(running)) else []
        time.sleep(1.0)
    if process.returncode:
        raise UserError(f"the undisturbed run failed: {(scene.folder / 'printed').read_text().strip()[-300:]}")
    quarter = max(len(samples) // 4, 1)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    files = [statistics.median(files for files, _ in part) for part in (early, late)]
    memory = [statistics.median(memory for _, memory in part) for part in (early, late)]
    failures = [f"open files grew from {files[0]} to {files[1]}"] if files[1] > files[0] + 2 else []
    failures += [f"memory grew from {memory[0]} to {memory[1]}"] if memory[1] > 1.03 * memory[0] + (8 << 20) else []
    return {"open_files": files, "memory_bytes": memory, "failures": failures}


def _sample(running: Running) -> tuple[int, int] | None:
    """Open files and resident bytes of all ranks; None unless both ranks are running."""
    try:
        ranks = running.ranks()
        files = sum(len(os.listdir(f"/proc/{rank}/fd")) for rank in ranks)
        pages = sum(int(Path(f"/proc/{rank}/statm").read_text().split()[1]) for rank in ranks)
    except OSError:
        return None
    return (files, pages * os.sysconf("SC_PAGESIZE")) if len(ranks) == 2 else None


def _train_with_kills(
    scene: Scene, options: list[str], seconds: float, rng: random.Random
) -> tuple[int, list[str], int]:
    """Kills and resumes the run for `seconds`, then waits for its end. Returns kills, failures, starts."""
    deadline, kills, failures, starts = time.monotonic() + seconds, 0, [], 0
    while True:
        starts += 1
        printed = scene.folder / f"printed-{starts}"
        process, marker = start(MULTI, scene.digits(*options, flags=("-ngpus=2", "-resume=auto")), printed, {})
        running = Running(process, scene, marker)
        pause = rng.uniform(4, 30)
        try:
            process.wait(pause if time.monotonic() < deadline else None)
        except subprocess.TimeoutExpired:
            kind = rng.choice(_KINDS)
            failures += [f"kill {kills}, {kind}: {problem}" for problem in _kill(running, kind, rng)]
            kills += 1
            print_progress(f"soak: kill {kills} after {pause:.0f} s: {kind} {failures[-1:]}")
            continue
        if process.returncode:
            failures.append(f"start {starts} failed: {printed.read_text().strip()[-200:]}")
        return kills, failures, starts


def _kill(running: Running, kind: str, rng: random.Random) -> list[str]:
    ranks = running.ranks()
    if kind == "all":
        running.send_to_all(signal.SIGKILL)
        for process in marked_processes(running.marker):
            os.kill(process, signal.SIGKILL)
    elif kind == "a rank" and ranks:
        running.send(signal.SIGKILL, rng.choice(ranks))
    else:
        running.send(signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
    problems = []
    while marked_processes(running.marker):
        if time.monotonic() - running.fault_time > _MAX_END_SECONDS:
            problems.append(f"{len(marked_processes(running.marker))} processes left")
            for process in marked_processes(running.marker):
                os.kill(process, signal.SIGKILL)
            break
        time.sleep(0.05)
    running.process.wait()
    saved = {path.parent for path in running.scene.output.glob("*/*.pth")}
    return problems + [f"no good checkpoint in {folder.name}" for folder in saved if not has_good_checkpoint(folder)]
