"""Signals and kills in each phase of a training, on one and two ranks, and in each other command.

A function of the phase is made slow (`slowed/`), so that the signal arrives in it. Afterwards the same command runs
again; a training then ends with the bits of one that nobody disturbed. No temporary file is left.
"""

import shutil
import signal
import tempfile
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from conftest import assert_same_state, only_run, states
from faults.processes import MULTI, SINGLE, Running, finish
from faults.runner import Fault
from faults.scene import Provoke, Scene

_SECONDS = 60.0  # until all processes have ended: 10 on idle cores, 20 after the kill of a rank; TIMEOUT_SECONDS is 120
_STEP = "engine.training.step:forward_backward:0.3"
_WRITE = "utils.files:_Writer.write:0.01"  # the temporary file exists
_FORWARD = "engine.evaluation.evaluate:Evaluator.forward:0.3"
# By phase: the functions that are slow, and the seconds of each call. The signal comes in the last one.
_PHASES = {
    "start": "engine.training.session:build_training_session:3",
    "first step": _STEP,
    "save": _WRITE,
    "validation": "engine.training.trainer:Trainer.after_eval_batch:0.3",
    "held-out test": "engine.training.snapshot:SaveTrigger.after_last_batch:0.3",
    "page": "engine.training.end:end_of:2",
}
_SCRIPTS = {
    "export": ("scripts/export.py", "scripts.exporting.files:write_safetensors:2"),
    "average": ("scripts/average_checkpoints.py", _WRITE),
    "sweep": ("scripts/sweep.py", _STEP),
}
_STATUS = {"Ctrl-C": (130,), "SIGTERM": (143,), "SIGKILL": (137,), "SIGKILL of rank 1": (1, 137)}
_ENDS = ("Ctrl-C", "SIGTERM")  # in order


def quick_kill_faults() -> list[Fault]:
    """SIGTERM in the evaluations of two ranks, without the second run."""
    phases = ("validation", "held-out test")
    faults = [_of_training(phase, "SIGTERM", 2) for phase in phases]
    return [replace(fault, name=f"{fault.name}, once", check=None) for fault in faults]


def kill_faults() -> list[Fault]:
    faults = []
    for ranks, script in ((1, SINGLE), (2, MULTI)):
        for target in [*_STATUS][: 2 + ranks]:
            faults += [_of_training(phase, target, ranks) for phase in _PHASES]
            for command in ("eval", "predict"):
                flags = [f"-{command}", f"-ngpus={ranks}"][:ranks]
                faults.append(_of_command(command, target, ranks, script, _FORWARD, partial(_evaluation, flags)))
    for command, (script, slow) in _SCRIPTS.items():
        words = partial(_words, command)
        faults += [_of_command(command, target, 1, script, slow, words) for target in [*_STATUS][:3]]
    return faults


def _of_training(phase: str, target: str, ranks: int) -> Fault:
    script = MULTI if ranks == 2 else SINGLE
    state = "failed" if target == "SIGKILL of rank 1" else "interrupted"
    if target == "SIGKILL" and ranks == 1:
        state = "running"
    status = _STATUS[target]
    if phase == "start":
        state = None
    if phase == "page" and target in _ENDS:
        status = (0,)
    if phase == "page" and state != "running":
        state = None if target == "SIGKILL of rank 1" else "finished"

    def again(scene: Scene) -> list[str]:
        runs = [path.parent for path in scene.output.glob("*/last.pth")]
        finish(scene, script, _training(ranks, scene, *(f"-resume={run}" for run in runs)), "again")
        if runs:
            assert_same_state(states(runs[0]), _undisturbed(ranks))
        return _left(scene)

    words = partial(_training, ranks)
    return _fault(phase, target, ranks, _PHASES[phase], words, script=script, check=again, status=status, state=state)


def _of_command(command: str, target: str, ranks: int, script: str, slow: str, words: Provoke) -> Fault:
    def again(scene: Scene) -> list[str]:
        finish(scene, script, words(scene), "again")
        return _left(scene)

    return _fault(command, target, ranks, slow, words, script=script, check=again, status=_STATUS[target])


def _fault(phase: str, target: str, ranks: int, slow: str, words: Provoke, **more: Any) -> Fault:
    return Fault(
        f"{phase}: {target}, {ranks} rank{'s' * (ranks > 1)}",
        words,
        "rank 1" if target == "SIGKILL of rank 1" else None,
        act=partial(_send, target, slow.split()[-1].split(":")[1]),
        environment={"PYTHONPATH": str(Path(__file__).parent / "slowed"), "SLOWED": slow, "SLOWED_FOLDER": "."},
        may_leave_temporary=target not in _ENDS,
        **more,
    )


def _training(ranks: int, scene: Scene, *flags: str) -> list[str]:
    """A run of two epochs with held-out test images."""
    if not (scene.data / "test").exists():
        shutil.copytree(scene.data / "val", scene.data / "test")
    of_ranks = [f"-ngpus={ranks}"][: ranks - 1]
    flags = (*of_ranks, "-batch_size_eval=1", *flags)
    return scene.images("TIMEOUT_SECONDS=120", dataset="folder", flags=flags)


def _evaluation(flags: list[str], scene: Scene) -> list[str]:
    return [*flags, f"-resume={scene.trained}", "-batch_size_eval=16", f"-output={scene.output}"]


def _words(command: str, scene: Scene) -> list[str]:
    if command == "sweep":
        return ["-set", "SEED=0..1", *scene.digits()]
    if command == "average":
        return [str(scene.trained), f"-output={scene.folder / 'average.pth'}"]
    return [str(scene.trained), "-format=safetensors", f"-output={scene.folder / 'x.safetensors'}"]


def _send(target: str, function: str, running: Running) -> None:
    """Sends the signal while `function` runs; prints the seconds until all processes have ended."""
    running.wait_until(lambda: (running.scene.folder / function).exists(), f"{function} was never called")
    time.sleep(0.2)  # it is called in the other rank, too
    sent = time.monotonic()
    if target == "Ctrl-C":
        running.send_to_all(signal.SIGINT)
    elif target == "SIGKILL of rank 1":
        running.send(signal.SIGKILL, running.ranks()[1])
    else:
        running.send(signal.Signals[target])
    running.process.wait(_SECONDS)
    while running.living():
        if time.monotonic() > sent + _SECONDS:
            raise TimeoutError("processes are left")
        time.sleep(0.05)
    print(f"{time.monotonic() - sent:.1f} s, status {running.process.returncode}")


def _left(scene: Scene) -> list[str]:
    return [f"is left: {path.name}" for path in scene.folder.rglob(".*.tmp")]


@cache
def _undisturbed(ranks: int) -> dict:
    """The last checkpoint of a run that nobody disturbed."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        scene = Scene(Path(folder), Path(folder))
        finish(scene, MULTI if ranks == 2 else SINGLE, _training(ranks, scene))
        return states(only_run(scene.output))
