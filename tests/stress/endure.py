"""Endurance tests: many kills, many damaged checkpoints, many resumed runs.

python tests/stress/endure.py                        # all tests, with few cases
python tests/stress/endure.py saves damage -n 1000
python tests/stress/endure.py soak -n 60
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
from endurance.checkpoints import damaged_checkpoint, file_writer, kills_while_saving, part_writer
from endurance.soak import soak
from fault_bench import train_once
from faults.processes import reset_signals
from faults.sharded import FSDP
from results import Result, check_names, measure, parser, report
from shard_files import to_shards

from utils.processes.entry import run_and_report_errors

_CASES = {"saves": 100, "damage": 500, "soak": 15, "sharded soak": 5}
_NAMES = ("saves", "damage", "resume", "soak")


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

    def damage(as_parts: bool) -> Result:
        (folder := root / f"damaged-{as_parts}").mkdir()
        last = Path(shutil.copy(trained / "last.pth", folder))
        return damaged_checkpoint(to_shards(last) if as_parts else last, cases["damage"], cases["damage"] // 5, seed)

    def saves(name: str, writer: Callable) -> Callable[[], Result]:
        return lambda: kills_while_saving(trained, root / name, writer, cases["saves"], seed)

    return {
        "saves": {
            "killed saves, files": saves("file", file_writer),
            "killed saves, parts": saves("parts", part_writer),
        },
        "damage": {"damaged files": lambda: damage(False), "damaged parts": lambda: damage(True)},
        "resume": {
            "stopped and resumed runs": lambda: resume.resume_matrix(root / "matrix"),
            "sharded runs, resumed by other ranks": lambda: resume.resumed_by_other_ranks(root / "others"),
        },
        "soak": {
            "soak": lambda: soak(root / "soak", cases["soak"], seed, "SAVE_FREQ_STEPS=7"),
            "soak, sharded": lambda: soak(root / "sharded", cases["sharded soak"], seed, FSDP, "SAVE_FREQ_STEPS=1"),
        },
    }


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
