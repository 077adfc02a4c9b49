"""Random sequences of kills, deletions and resumes, on one and on two ranks: each must end like an undisturbed run."""

import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from endurance.resume import new_scene
from faults.processes import MULTI, SINGLE, start
from faults.scene import Scene
from results import Result, show_progress

from engine.checkpoint.reader import load_checkpoint

_OPTIONS = (
    "TRAIN.OPTIMIZER.NAME=SGD", "TRAIN.BASE_LR=0.05", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9",
    "DATA.GLOBAL_BATCH_SIZE=64", "SAVE_FREQ_STEPS=5", "KEEP_CHECKPOINTS=9", "TRAIN.NUM_EPOCHS=4",
)  # fmt: skip
_TEXTS = ("log.txt", "metrics.csv", "metrics.jsonl", "run.json", "config.yaml", "status.json")
_MAX_DIFFERENCE = 1e-5  # of a weight: two ranks sum the gradients in another order
_TWO_RANKS = 0.25  # share of the starts
_MAX_SAVES = 16  # of a start, before its signal; a run has about 20


def sequences(root: Path, count: int, seed: int) -> Result:
    """Each sequence: up to four starts that are killed, with deletions and resumes from behind between them."""
    reference = new_scene(root / "reference")
    _run(reference, 1, "auto")
    expected, result = load_checkpoint(_folder(reference) / "last.pth"), Result("", count)
    result.figures |= {"starts": 0, "on two ranks": 0, "from behind": 0, "largest difference": 0.0}
    for number in range(count):
        scene, rng = new_scene(root / f"sequence-{number}"), random.Random(f"{seed} {number}")
        try:
            difference = _one(scene, rng, expected, result)
        except Exception as error:
            result.failures.append(f"sequence {number}: {type(error).__name__}: {str(error)[-300:]}")
            continue
        result.figures["largest difference"] = max(result.figures["largest difference"], difference)
        if difference > _MAX_DIFFERENCE:
            result.failures.append(f"sequence {number}: weights differ by {difference:.1e}")
        show_progress(f"sequences: {number + 1} of {count}, {len(result.failures)} failed")
    return result


def _one(scene: Scene, rng: random.Random, expected: dict, result: Result) -> float:
    """The largest difference of a weight at the end of a sequence."""
    for _ in range(rng.randint(1, 4)):
        resume = "auto"
        if scene.output.is_dir() and any(scene.output.glob("*/last.pth")):
            folder = _folder(scene)
            _delete(folder, rng)
            earlier = sorted(folder.glob("epoch-*.pth"))[:-1]
            if earlier and rng.random() < 0.3:
                resume = str(rng.choice(earlier))
                result.figures["from behind"] += 1
        result.figures["starts"] += 1
        ranks = 2 if rng.random() < _TWO_RANKS else 1
        result.figures["on two ranks"] += ranks == 2
        _run(scene, ranks, resume, rng)
    _run(scene, 2 if rng.random() < _TWO_RANKS else 1, "auto")
    state = load_checkpoint(_folder(scene) / "last.pth")
    if state["epoch"] != expected["epoch"]:
        raise RuntimeError(f"ends in epoch {state['epoch']}")
    pairs = [
        (state[key][name], tensor) for key in ("model", "state_dict_ema") for name, tensor in expected[key].items()
    ]
    return max((one - other).abs().max().item() for one, other in pairs)


def _saves(scene: Scene) -> int:
    return sum(log.read_text(errors="replace").count("Save model") for log in scene.output.glob("*/log.txt"))


def _folder(scene: Scene) -> Path:
    """The only run: all starts continue it."""
    (folder,) = [path for path in scene.output.iterdir() if any(path.glob("*.pth"))]
    return folder


def _delete(folder: Path, rng: random.Random) -> None:
    """Deletes text files, and at most one of the checkpoints that a resume may need."""
    names = [name for name in _TEXTS if rng.random() < 0.2] + [rng.choice(("last.pth", "previous.pth", "best.pth", ""))]
    has_both = all((folder / name).exists() for name in ("last.pth", "previous.pth"))
    for name in filter(None, names):
        if name in _TEXTS or has_both or name == "best.pth":
            (folder / name).unlink(missing_ok=True)


def _run(scene: Scene, ranks: int, resume: str, rng: random.Random | None = None) -> None:
    """Trains to the end, or with `rng` until a signal after some saves. Raises RuntimeError if the run fails."""
    flags = (f"-resume={resume}", f"-batch_size={64 // ranks}", *([f"-ngpus={ranks}"] if ranks > 1 else []))
    running = start(scene, MULTI if ranks > 1 else SINGLE, scene.digits(*_OPTIONS, flags=flags))
    number = rng.choice((signal.SIGKILL, signal.SIGTERM)) if rng else 0
    if rng:
        with suppress(TimeoutError):
            running.wait_for("moved to" if resume != "auto" else "Model: ")
        last = _saves(scene) + rng.randint(0, _MAX_SAVES)
        while running.process.poll() is None and _saves(scene) < last:
            time.sleep(rng.uniform(0, 0.1))
        if running.process.poll() is None:
            running.send_to_all(number)
    status = running.process.wait()
    running.kill_leftovers(60)
    if status not in (0, -number, 128 + number, 1 if ranks > 1 and number else 0):
        raise RuntimeError(f"status {status}: {(scene.folder / 'printed').read_text(errors='replace')[-300:]}")
