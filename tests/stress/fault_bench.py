"""Provokes faults that happen in practice, and checks the reaction of the entry scripts.

    python tests/stress/fault_bench.py                      # the catalogue
    python tests/stress/fault_bench.py -only 'SIGTERM|rank'

A fault passes if the processes end with the right exit status, with one line that names the problem and without a
traceback; and if they leave no process, no temporary file, and a good checkpoint. Faults that cannot be provoked on a
machine are skipped. tests/stress/faults/catalogue.py lists the faults. Two are provoked at a time.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from faults.catalogue import all_faults
from faults.processes import SINGLE, finish, reset_signals
from faults.runner import Fault, run_fault
from faults.scene import Scene
from results import Result, parser, report, show_progress

from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

_AT_A_TIME = 2
_WAITING_AT_A_TIME = 6
_SLOW = (  # ten seconds or more on two cores
    "tar cache: two ranks", "tar cache: ranks killed in a download", "rank 1 stopped", "sharded run: rank 1 stopped",
    "sharded run: SIGTERM in evaluation", "output: not shared", "torchrun restarts",
)  # fmt: skip


def main(argv: list[str]) -> int:
    flags = parser("Provokes faults and checks the reaction of the entry scripts.")
    flags.add_argument("-only", default="", metavar="REGEX", help="only faults whose name matches")
    flags.add_argument("-quick", action="store_true", help="only the faults that take little time")
    flags = flags.parse_args(argv)
    faults = chosen_faults(flags.only, flags.quick)
    reset_signals()
    with tempfile.TemporaryDirectory(prefix="faults-") as root:
        outcomes = run_catalogue(faults, Path(root))
    return report(results_by_subject(outcomes), flags.json)


def chosen_faults(only: str, quick: bool = False) -> list[Fault]:
    """The faults whose name matches, and with `quick` those of them that take little time."""
    try:
        faults = [fault for fault in all_faults() if re.search(only, fault.name)]
    except re.error as error:
        raise UserError(f"-only {only}: is not a regular expression ({error})") from None
    if quick:
        faults = [fault for fault in faults if fault.name not in _SLOW]
    if not faults:
        raise UserError(f"-only {only}: matches no fault{' of -quick' if quick else ''}")
    return faults


def train_once(folder: Path) -> Path:
    """Trains the run from which the faults take their checkpoints, and returns its folder."""
    folder.mkdir()
    scene = Scene(folder, folder)
    finish(scene, SINGLE, scene.digits())
    (run,) = scene.output.iterdir()
    return run


def run_catalogue(faults: Sequence[Fault], root: Path) -> list[Result]:
    """Provokes the faults, two at a time, and those that wait beside them."""
    trained = train_once(root / "trained")

    def provoke(number: int, fault: Fault) -> Result:
        (folder := root / str(number)).mkdir()
        result = run_fault(fault, Scene(folder, trained))
        shutil.rmtree(folder)
        verdict = "".join([*result.skipped, *result.failures]) or "as expected"
        show_progress(f"{number} of {len(faults)}, {fault.name}: {verdict} ({result.seconds:.0f} s)")
        return result

    with ThreadPoolExecutor(_AT_A_TIME) as busy, ThreadPoolExecutor(_WAITING_AT_A_TIME) as waiting:
        started = [
            (waiting if one.waits else busy).submit(provoke, number, one) for number, one in enumerate(faults, 1)
        ]
        try:
            return [future.result() for future in started]
        finally:  # Ctrl-C ends after the running faults
            for pool in (busy, waiting):
                pool.shutdown(cancel_futures=True)


def results_by_subject(results: Sequence[Result]) -> list[Result]:
    """A result for each subject: the text before the colon of the faults' names."""
    sums: dict[str, Result] = {}
    for one in results:
        subject, colon, _ = one.name.partition(":")
        name = f"faults: {subject if colon else 'signals, ranks, workers'}"
        result = sums.setdefault(name, Result(name, 0))
        result.cases += 1
        result.seconds += one.seconds
        result.skipped += [f"{one.name}: {reason}" for reason in one.skipped]
        result.failures += [f"{one.name}: {problem}" for problem in one.failures]
    return list(sums.values())


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
