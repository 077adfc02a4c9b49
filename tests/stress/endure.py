"""Endurance tests: many kills, many damaged checkpoints, many resumed runs.

python tests/stress/endure.py                        # all tests, with few cases
python tests/stress/endure.py saves damage -n 1000
python tests/stress/endure.py soak -n 60
"""

import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from endurance import resume
from endurance.sequences import sequences
from endurance.soak import soak
from fault_bench import train_once
from faults.checkpoints import FSDP
from faults.processes import reset_signals
from faults.saved import has_good_checkpoint, is_good
from results import Result, check_names, measure, parser, report

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.writer import CheckpointWriter
from utils.processes.entry import run_and_report_errors

_CASES = {"saves": 100, "damage": 500, "sequences": 50, "soak": 15, "sharded soak": 5}
_NAMES = ("saves", "damage", "resume", "sequences", "soak")


def main(argv: list[str]) -> int:
    flags = parser("Endurance tests: kills, damaged checkpoints, resumed runs.")
    flags.add_argument("names", nargs="*", metavar="TEST", help=", ".join(_NAMES))
    flags.add_argument("-n", type=int, metavar="N", help="cases of each test, without resume")
    flags = flags.parse_args(argv)
    check_names(flags.names, _NAMES)
    reset_signals()
    with tempfile.TemporaryDirectory(prefix="endurance-") as temporary:
        root = Path(temporary)
        trained = train_once(root / "trained")
        tests = _tests(root, trained, flags.n, flags.seed)
        results = [measure(part, test) for name in flags.names or _NAMES for part, test in tests[name].items()]
    return report(results, flags.json)


def _tests(root: Path, trained: Path, count: int | None, seed: int) -> dict[str, dict[str, Callable[[], Result]]]:
    cases = {name: count or default for name, default in _CASES.items()}
    return {
        "saves": {"killed saves": lambda: kills_while_saving(trained, root / "saves", cases["saves"], seed)},
        "damage": {
            "damaged checkpoints": lambda: damaged_checkpoint(
                trained / "last.pth", root / "damaged", cases["damage"], seed
            ),
        },
        "resume": {"stopped and resumed runs": lambda: resume.resume_matrix(root / "matrix")},
        "sequences": {
            "sequences of kills, deletions and resumes": lambda: sequences(
                root / "sequences", cases["sequences"], seed
            ),
        },
        "soak": {
            "soak": lambda: soak(root / "soak", cases["soak"], seed, "SAVE_FREQ_STEPS=7"),
            "soak, sharded": lambda: soak(root / "sharded", cases["sharded soak"], seed, FSDP, "SAVE_FREQ_STEPS=1"),
        },
    }


def kills_while_saving(trained: Path, folder: Path, count: int, seed: int) -> Result:
    """Kills a process that saves without pause. There must always be a good checkpoint."""
    shutil.copytree(trained, folder)
    rng, state, result = random.Random(seed), load_checkpoint(folder / "last.pth"), Result("", count)
    result.figures["killed while writing"] = 0
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                writer = CheckpointWriter(folder, keep=2, on_written=lambda *_: None)
                for save in itertools.count():
                    writer.save(state, is_best=save % 3 == 0, periodic=f"epoch-{save:03d}")
            finally:
                os._exit(1)  # an error must not run the rest of the parent's program here
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        result.figures["killed while writing"] += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            result.failures.append(f"kill {number}")
    return result


def damaged_checkpoint(source: Path, folder: Path, flips: int, seed: int) -> Result:
    """Flips bits of a copy, and cuts it, at random positions."""
    folder.mkdir()
    checkpoint, cuts = Path(shutil.copy(source, folder)), flips // 5
    content, rng, result = checkpoint.read_bytes(), random.Random(seed), Result("", flips + cuts)
    for number in range(flips + cuts):
        data, position = bytearray(content), rng.randrange(len(content))
        if number < flips:
            data[position] ^= 1 << rng.randrange(8)
        else:
            del data[position:]
        checkpoint.write_bytes(data)
        if is_good(checkpoint):
            result.failures.append(f"{'flip' if number < flips else 'cut'} at byte {position}")
    checkpoint.write_bytes(content)
    if not is_good(checkpoint):
        result.failures.append("the undamaged checkpoint is refused")
    result.figures["bytes"] = len(content)
    return result


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
