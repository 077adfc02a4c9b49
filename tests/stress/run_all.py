"""Runs all programs of this folder, and prints one table. Needs no network and no GPU.

    python tests/stress/run_all.py -quick     # faults below ten seconds: about 5 minutes on two cores
    python tests/stress/run_all.py            # about 40 minutes: all faults, launchers

The exit status is 1 if a test fails. A test is skipped, with the reason, where a program or root's rights are missing.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from results import Result, parser, report, show_progress

_QUICK = (("fault_bench.py", "-quick"), ("fuzz.py", "-n", "30"))
_ALL = (("fault_bench.py",), ("fuzz.py",), ("try_clusters.py",))


def main() -> int:
    flags = parser("Runs all stress tests.")
    flags.add_argument(
        "-quick",
        action="store_true",
        help="faults below ten seconds and few damaged files: about 5 minutes on two cores",
    )
    flags = flags.parse_args()
    results = []
    for program in _QUICK if flags.quick else _ALL:
        results += _run((*program, "-seed", str(flags.seed)))
    return report(results, flags.json)


def _run(command: tuple[str, ...]) -> list[Result]:
    """Returns the results of a program, and a failure if it ends without one."""
    name, started = " ".join(command), time.monotonic()
    show_progress(f"--- {name}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        script = str(Path(__file__).parent / command[0])
        process = subprocess.run([sys.executable, script, *command[1:], "-json", str(file)], stdout=2)
        results = [Result(**one) for one in json.loads(file.read_text())] if file.exists() else []
    seconds = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    show_progress(f"--- {name}: {seconds:.0f} s; {usage.ru_utime + usage.ru_stime:.0f} CPU seconds so far")
    if process.returncode and not any(result.failures for result in results):
        results.append(Result(name, 1, [f"ended with status {process.returncode}"], seconds=seconds))
    return results


if __name__ == "__main__":
    sys.exit(main())
