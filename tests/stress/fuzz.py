"""Fuzzes the readers of files: each input must give a result or a one-line error, within a second and a gigabyte.

    python tests/stress/fuzz.py                            # 200 cases of each kind
    python tests/stress/fuzz.py images configs -n 100000

A forked process reads the cases of tests/stress/fuzz_cases.py. If it hangs, dies or uses too much memory, a new one
replaces it and the case is a finding. The script saves the findings.
"""

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzz_cases import KINDS, make_case
from results import Result, check_names, measure, parser, report, show_progress

from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SLOW_SECONDS = 1.0  # CPU time, so that other processes do not matter
HANG_SECONDS = 60.0
MAX_BYTES = 1 << 30
_ADDRESS_SPACE_BYTES = 4 << 30  # in addition to the child's own; an allocation that is not used counts here only


def main(argv: list[str]) -> int:
    flags = parser("Reads damaged inputs; reports all but results and one-line errors.")
    flags.add_argument("kinds", nargs="*", metavar="KIND", help=f"kind of input (default: all): {', '.join(KINDS)}")
    flags.add_argument("-n", type=int, default=200, metavar="N", help="cases of each kind (default: 200)")
    flags.add_argument("-output", type=Path, default=Path("output/fuzz"), metavar="FOLDER", help="for the findings")
    flags = flags.parse_args(argv)
    check_names(flags.kinds, KINDS)
    kinds = flags.kinds or list(KINDS)
    return report(
        [measure(f"fuzz: {kind}", fuzz, kind, flags.seed, flags.n, flags.output) for kind in kinds], flags.json
    )


def try_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """'accepted', 'refused', or 'finding: problem'."""
    data = make_case(kind, seed, number)
    try:
        KINDS[kind].read(data, folder)
    except UserError:
        return "refused"
    except BaseException as error:
        return f"finding: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "accepted"


def read_cases(kind: str, seed: int, numbers: range) -> Iterator[tuple[int, float, int, str]]:
    """Runs in the child: number, seconds, bytes and outcome of each case."""
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
            own_bytes, started = _peak_bytes(), time.process_time()
            outcome = try_case(kind, seed, number, Path(folder))
            seconds, more_bytes = time.process_time() - started, _peak_bytes() - own_bytes
            if more_bytes > MAX_BYTES:
                outcome = f"finding: used {more_bytes / 2**30:.1f} GB"
            elif seconds > SLOW_SECONDS:
                outcome = f"finding: took {seconds:.1f} s"
            yield number, seconds, more_bytes, outcome


def _peak_bytes() -> int:
    """Peak memory of this process; `getrusage` would include the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def fuzz(kind: str, seed: int, count: int, output: Path) -> Result:
    """Reads the cases 0 to count - 1. Forks a new child after each case that ends one. Saves the findings."""
    make_case(kind, seed, 0)  # the children inherit the examples
    outcomes: Counter[str] = Counter()
    result, done, peak_bytes, slowest = Result("", count), 0, 0, (0.0, 0)
    while done < count:
        for number, seconds, more_bytes, outcome in _read_in_child(kind, seed, range(done, count)):
            done, peak_bytes, slowest = number + 1, max(peak_bytes, more_bytes), max(slowest, (seconds, number))
            verdict, _, problem = outcome.partition(": ")
            outcomes[verdict] += 1
            if problem:
                output.mkdir(parents=True, exist_ok=True)
                path = output / f"{kind}-{seed}-{number}"
                path.write_bytes(make_case(kind, seed, number))
                result.failures.append(f"{path}: {problem}")
            if done % 10_000 == 0:
                show_progress(f"{kind}: {done} of {count}, {len(result.failures)} finding(s)")
    result.figures = {
        "accepted": outcomes["accepted"],
        "refused": outcomes["refused"],
        "slowest": f"{slowest[0] * 1e3:.0f} ms (case {slowest[1]})",
        "memory": f"{peak_bytes / 2**20:.0f} MB",
    }
    return result


def _read_in_child(kind: str, seed: int, numbers: range) -> Iterator[tuple[int, float, int, str]]:
    """The outcomes of `read_cases` in a child, and of the case that made the child hang or die."""
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _send_cases(sender, kind, seed, numbers)
    sender.close()
    number, problem = numbers.start, ""
    with contextlib.suppress(EOFError), receiver:  # the child has ended
        while receiver.poll(HANG_SECONDS):
            yield (case := receiver.recv())
            number = case[0] + 1
        problem = f"hung for {HANG_SECONDS:.0f} s"
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        yield number, 0.0, 0, f"finding: {problem or f'died with status {status}'}"


def _send_cases(sender: Connection, kind: str, seed: int, numbers: range) -> None:
    """Runs in the child, and ends it."""
    try:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _ADDRESS_SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for case in read_cases(kind, seed, numbers):
            sender.send(case)
        os._exit(0)
    finally:
        os._exit(1)  # an error must not run the rest of the parent's program here


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
