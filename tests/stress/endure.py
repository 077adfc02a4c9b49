"""Endurance tests: many kills, many damaged checkpoints, many resumed runs.

python tests/stress/endure.py                        # all but the soak test, with few cases
python tests/stress/endure.py saves damage -n 1000
python tests/stress/endure.py soak -minutes 20
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "datasets" / "shards"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from endurance import resume
from endurance.damage import damaged_checkpoint
from endurance.kills import file_writer, killed_and_resumed, kills_while_saving, part_writer, signals_at_random
from endurance.soak import soak
from fault_bench import train_once
from faults.processes import reset_signals
from results import Result, check_names, measure, parser, report
from shard_files import to_shards

from utils.processes.entry import run_and_report_errors

_CASES = {"saves": 100, "damage": 500, "signals": 10, "sharded": 5}
_NAMES = (*_CASES, "resume", "soak")


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    check_names(flags.names, _NAMES)
    reset_signals()
    with tempfile.TemporaryDirectory(prefix="endurance-") as temporary:
        root = Path(temporary)
        trained, _ = train_once(root / "trained")
        tests = _tests(root, trained, flags.n, flags.seed, flags.minutes)
        chosen = flags.names or _NAMES[:-1]
        results = [measure(part, test) for name in chosen for part, test in tests[name].items()]
    return report(results, flags.json)


def _parser():
    flags = parser("Endurance tests: kills, damaged checkpoints, resumed runs.")
    flags.add_argument("names", nargs="*", metavar="TEST", help=", ".join(_NAMES))
    flags.add_argument("-n", type=int, metavar="N", help="cases of each test, without resume and soak")
    flags.add_argument("-minutes", type=float, default=5.0, metavar="N", help="of kills in the soak test (default: 5)")
    return flags


def _tests(
    root: Path, trained: Path, count: int | None, seed: int, minutes: float
) -> dict[str, dict[str, Callable[[], Result]]]:
    cases = {name: count or default for name, default in _CASES.items()}

    def damage(as_parts: bool) -> Result:
        (folder := root / f"damaged-{as_parts}").mkdir()
        last = Path(shutil.copy(trained / "last.pth", folder))
        return damaged_checkpoint(to_shards(last) if as_parts else last, cases["damage"], cases["damage"] // 5, seed)

    def saves(name: str, writer: Callable) -> Callable[[], Result]:
        return lambda: kills_while_saving(trained, root / name, writer, cases["saves"], seed)

    return {
        "saves": {
            "kills while saving a file": saves("file", file_writer),
            "kills while saving parts": saves("parts", part_writer),
        },
        "damage": {
            "damaged checkpoint files": lambda: damage(False),
            "damaged checkpoint parts": lambda: damage(True),
        },
        "signals": {
            "SIGTERM to two ranks": lambda: signals_at_random(root, trained, cases["signals"], seed),
        },
        "sharded": {
            "kills of a sharded run": lambda: killed_and_resumed(root / "sharded", cases["sharded"], seed),
            "sharded run resumed by other ranks": lambda: resume.resumed_by_other_ranks(root / "others"),
        },
        "resume": {"stopped and resumed runs": lambda: resume.resume_matrix(root / "matrix")},
        "soak": {f"soak of {minutes:g} minutes": lambda: soak(root / "soak", minutes, seed)},
    }


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
