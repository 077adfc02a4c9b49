"""Fuzzes the readers of files: each input must give a result or a one-line error, within a second and a gigabyte.

    python tests/stress/fuzz.py images -n 100000
    python tests/stress/fuzz.py checkpoints pdparams weights -n 10000 -seed 1 -json fuzz.json

A child process reads the cases. If it hangs, dies or uses too much memory, a new one replaces it and the case is a
finding. The script saves the findings and then exits with status 1. The cases are in tests/stress/fuzz_cases.py.
"""

import argparse
import json
import os
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.flags import Parser
from scripts.benchmarks.common import print_progress, write_json
from scripts.flags import add_flag, new_file, positive
from utils.errors import UserError, did_you_mean
from utils.processes.entry import run_and_report_errors
from utils.tables import markdown_table

SLOW_SECONDS = 1.0  # CPU time, so that other processes do not matter
HANG_SECONDS = 10.0
MAX_BYTES = 1 << 30
_ADDRESS_SPACE_BYTES = 8 << 30  # in addition to the child's own; an allocation that is not used counts here only


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    from fuzz_cases import KINDS, make_case

    for kind in flags.kinds:
        if kind not in KINDS:
            raise UserError(f"unknown kind {kind}{did_you_mean(kind, KINDS)} (known: {', '.join(KINDS)})")
    if flags.child is not None:
        read_cases(flags.kinds[0], flags.seed, range(flags.child, flags.n))
        return 0
    results = {kind: fuzz(kind, flags.seed, flags.n) for kind in flags.kinds}
    for kind, result in results.items():
        for finding in result["findings"]:
            flags.output.mkdir(parents=True, exist_ok=True)
            path = flags.output / f"{kind}-{flags.seed}-{finding['case']}"
            path.write_bytes(make_case(kind, flags.seed, finding["case"]))
            print(f"finding: {path}: {finding['problem']}")
    print(_table(results))
    write_json(flags.json, {"seed": flags.seed, "kinds": results})
    return 1 if any(result["findings"] for result in results.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tests/stress/fuzz.py", description="Reads damaged inputs; reports all but results and one-line errors."
    )
    parser.add_argument(
        "kinds", nargs="+", metavar="KIND", help="kind of input: see KINDS in tests/stress/fuzz_cases.py"
    )
    add_flag(parser, "n", type=positive, default=10_000, metavar="N", help="cases of each kind (default: 10000)")
    add_flag(parser, "seed", type=int, default=0, metavar="N", help="seed of the cases (default: 0)")
    add_flag(parser, "output", type=Path, default=Path("output/fuzz"), metavar="FOLDER", help="folder for the findings")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="also write the figures to this file")
    add_flag(parser, "child", type=int, metavar="N", help=argparse.SUPPRESS)
    add_flag(parser, "debug", action="store_true", help="show the traceback of an error")
    return parser


def try_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """'accepted', 'refused: reason', or 'finding: problem'."""
    from fuzz_cases import KINDS, make_case

    data = make_case(kind, seed, number)
    try:
        KINDS[kind].read(data, folder)
    except UserError as error:
        return f"refused: {_reason(error, folder)}"
    except BaseException as error:
        return f"finding: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "accepted"


def _reason(error: UserError, folder: Path) -> str:
    """The message without names and numbers, which differ from case to case."""
    if isinstance(error.__cause__, MemoryError) or "not enough memory" in str(error.__cause__):
        return "needs more memory than available"
    message = " ".join(str(error).replace(str(folder), "").split())
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+|^\S+: |\([^)]*\)", "", message)[:60].strip()


def read_cases(kind: str, seed: int, numbers: range) -> None:
    """Runs in the child: prints number, seconds, bytes and outcome of each case as a line of JSON."""
    own_bytes = _peak_bytes()
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            started = time.process_time()
            outcome = try_case(kind, seed, number, Path(folder))
            seconds = time.process_time() - started
            more_bytes = _peak_bytes() - own_bytes
            if more_bytes > MAX_BYTES:
                outcome = f"finding: used {more_bytes / 2**30:.1f} GB"
            elif seconds > SLOW_SECONDS:
                outcome = f"finding: took {seconds:.1f} s"
            print(json.dumps([number, seconds, more_bytes, outcome]), flush=True)
            if more_bytes > MAX_BYTES:
                return  # all later cases would have the same peak


def _peak_bytes() -> int:
    """Peak memory of this process; the value of getrusage is inherited from the parent."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def _resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def fuzz(kind: str, seed: int, count: int) -> dict[str, Any]:
    """Reads the cases 0 to count - 1. Starts a new child process after each case that ends one."""
    outcomes: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    slowest = {"seconds": 0.0, "case": 0}
    peak_bytes, done, started = 0, 0, time.perf_counter()
    while done < count:
        first = done
        for number, seconds, more_bytes, outcome in _child_lines(kind, seed, first, count):
            done, peak_bytes = number + 1, max(peak_bytes, more_bytes)
            if seconds > slowest["seconds"]:
                slowest = {"seconds": seconds, "case": number}
            if outcome.startswith("finding: "):
                findings.append({"case": number, "problem": outcome.removeprefix("finding: ")})
            outcomes[outcome] += 1
            if done % 10_000 == 0:
                print_progress(f"{kind}: {done} of {count}, {len(findings)} finding(s)")
    return {
        "cases": count,
        "outcomes": dict(outcomes.most_common()),
        "slowest": slowest,
        "peak_bytes": peak_bytes,
        "seconds": time.perf_counter() - started,
        "findings": findings,
    }


def _child_lines(kind: str, seed: int, first: int, count: int) -> Any:
    """The lines of a child, and a line for the case that made it hang, die or use too much memory."""
    flags = ["-child", str(first), "-seed", str(seed), "-n", str(count)]
    command = [sys.executable, "-W", "ignore", __file__, kind, *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        number, problem = first, None
        for line in _lines_within(child, first_seconds=120.0):
            if isinstance(line, str):
                problem = line
                break
            yield line
            number = line[0] + 1
        child.kill() if problem else None
        child.wait()
        child.stdout.close()
        if problem or child.returncode:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            if number == first and not problem:
                raise RuntimeError(f"the child process did not start: {last}")
            yield number, 0.0, 0, f"finding: {problem or f'died with {child.returncode} {last}'}"


def _lines_within(child: subprocess.Popen, first_seconds: float) -> Any:
    """The decoded lines of the child; then a text, if it prints nothing for too long or uses too much memory."""
    deadline, buffer, own_bytes = time.monotonic() + first_seconds, b"", None
    while True:
        if select.select([child.stdout], [], [], 0.02)[0]:
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)
            deadline = time.monotonic() + HANG_SECONDS
            own_bytes = own_bytes or _resident_bytes(child.pid)
        elif time.monotonic() > deadline:
            yield f"hung for {HANG_SECONDS:.0f} s"
        elif own_bytes and _resident_bytes(child.pid) > own_bytes + 2 * MAX_BYTES:
            yield f"used more than {2 * MAX_BYTES / 2**30:.0f} GB"


def _table(results: dict[str, dict[str, Any]]) -> str:
    rows = []
    for kind, result in results.items():
        slowest = f"{result['slowest']['seconds'] * 1e3:.0f} ms (case {result['slowest']['case']})"
        accepted = result["outcomes"].get("accepted", 0)
        refused = sum(times for outcome, times in result["outcomes"].items() if outcome.startswith("refused"))
        figures = [result["cases"], accepted, refused, len(result["findings"])]
        peak = f"{result['peak_bytes'] / 2**20:.0f} MB"
        rows.append([kind, *(f"{figure:,}" for figure in figures), slowest, peak, f"{result['seconds']:.0f}"])
    header = ["kind", "cases", "accepted", "refused", "findings", "slowest", "memory", "seconds"]
    return markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
