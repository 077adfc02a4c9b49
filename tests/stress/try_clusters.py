"""Runs on real launchers: Slurm, Open MPI, torchrun over two network namespaces of this machine.

    python tests/stress/try_clusters.py                # as root, about ten minutes
    python tests/stress/try_clusters.py slurm mpirun

A trial is skipped if its program is missing.
"""

import sys
import tempfile
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from clusters import mpirun_trial, slurm_trial, two_hosts_trial
from faults.processes import reset_signals
from results import Result, check_names, measure, parser, report

from utils.processes.entry import run_and_report_errors

_TRIALS = {"slurm": slurm_trial, "mpirun": mpirun_trial, "two_hosts": two_hosts_trial}


def main(argv: list[str]) -> int:
    flags = parser("Trains under real launchers.")
    flags.add_argument("names", nargs="*", metavar="TRIAL", help=", ".join(_TRIALS))
    flags = flags.parse_args(argv)
    check_names(flags.names, _TRIALS)
    reset_signals()
    results = [result for name in flags.names or _TRIALS for result in _try(name, _TRIALS[name])]
    return report(results, flags.json)


def _try(launcher: str, module: ModuleType) -> list[Result]:
    if reason := module.missing_program():
        return [Result(launcher, 0, skipped=[reason])]
    results = []
    for name, trial in module.TRIALS.items():
        with tempfile.TemporaryDirectory(prefix=f"{launcher}-") as folder:
            results.append(measure(f"{launcher}: {name}", trial, Path(folder)))
    return results


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
