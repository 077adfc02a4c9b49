"""What goes wrong in practice, done on purpose: is each fault answered as it should be?

    python tests/stress/fault_bench.py                      # the catalogue, as a table in Markdown
    python tests/stress/fault_bench.py -only 'SIGTERM|rank' -json faults.json
    python tests/stress/fault_bench.py -matrix -saves 200 -flips 1000 -truncations 200 -signals 20
    python tests/stress/fault_bench.py -soak 20

A fault passes if the processes end in time with the right status and one line that says what is wrong, without a
traceback, and leave no process, no half-written file, and a good checkpoint. What cannot be provoked on a machine is
skipped, and counts as neither. The faults: tests/stress/faults/inputs.py and tests/stress/faults/runs.py.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from faults import endurance
from faults.inputs import input_faults
from faults.runner import SINGLE, Fault, Outcome, run_fault, start
from faults.runs import run_faults
from faults.scene import Scene
from faults.soak import soak

from configs.command_line import Parser
from scripts.benchmarks.common import add_flag, markdown_table, new_file, positive, tell, write_json
from utils.errors import UserError, run_and_report_errors

LIMIT_SECONDS = 15.0


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    endures = any((flags.matrix, flags.saves, flags.flips, flags.truncations, flags.signals, flags.soak))
    faults = [] if endures else chosen_faults(flags.only)
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        root = Path(temporary)
        trained = train_once(root / "trained")
        if endures:
            result = run_endurance(flags, root, trained)
            failed = any(one["failures"] for one in result.values())
            print(endurance_table(result))
        else:
            outcomes = run_catalogue(faults, root, trained, flags.limit)
            result = {"faults": [asdict(outcome) for outcome in outcomes]}
            failed = any(outcome.problems for outcome in outcomes)
            print(table(outcomes), summary(outcomes), sep="\n\n")
    write_json(flags.json, result)
    return 1 if failed else 0


def chosen_faults(pattern: str) -> list[Fault]:
    try:
        faults = [fault for fault in (*input_faults(), *run_faults()) if re.search(pattern, fault.name)]
    except re.error as error:
        raise UserError(f"-only {pattern}: is no regular expression ({error})") from None
    if not faults:
        raise UserError(f"-only {pattern}: matches no fault")
    return faults


def run_catalogue(faults: list[Fault], root: Path, trained: Path, limit_seconds: float) -> list[Outcome]:
    outcomes = []
    for number, fault in enumerate(faults, 1):
        (folder := root / str(number)).mkdir()
        outcomes.append(run_fault(fault, folder, trained, limit_seconds))
        tell(f"{number}/{len(faults)} {fault.name}: {verdict(outcomes[-1])}")
        shutil.rmtree(folder)
    return outcomes


def run_endurance(flags: argparse.Namespace, root: Path, trained: Path) -> dict[str, dict[str, Any]]:
    """What the flags ask for: figures by the name of the flag, 'failures' among them."""
    rng, result = random.Random(flags.seed), {}
    if flags.matrix:
        result["matrix"] = endurance.resume_matrix(root / "matrix")
    if flags.saves:
        result["saves"] = endurance.kills_while_saving(root, trained, flags.saves, rng)
    if flags.flips:
        result["flips"] = endurance.damaged_checkpoints(root, trained, flags.flips, 0, rng)
    if flags.truncations:
        result["truncations"] = endurance.damaged_checkpoints(root, trained, 0, flags.truncations, rng)
    if flags.signals:
        result["signals"] = endurance.signals_at_random(root, trained, flags.signals, rng)
    if flags.soak:
        result["soak"] = soak(root / "soak", flags.soak, rng)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="tests/stress/fault_bench.py", description="Provokes faults and looks at what comes of them.")
    add_flag(parser, "only", default="", metavar="REGEX", help="the faults whose name matches")
    add_flag(parser, "matrix", action="store_true", help="24 runs stopped and resumed: the same, bit for bit?")
    add_flag(parser, "saves", type=positive, metavar="N", help="kills while saving: always a good checkpoint?")
    add_flag(parser, "flips", type=positive, metavar="N", help="single bits flipped in a checkpoint: all detected?")
    add_flag(parser, "truncations", type=positive, metavar="N", help="checkpoints cut short: all detected?")
    add_flag(parser, "signals", type=positive, metavar="N", help="SIGTERMs to two ranks: does each stop and save?")
    add_flag(parser, "soak", type=float, metavar="MINUTES", help="kills and resumes: the result of an unbroken run?")
    add_flag(parser, "seed", type=int, default=0, metavar="N", help="of what is drawn at random (default: 0)")
    add_flag(parser, "limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="for each (default: 15)")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="write the outcomes there as well")
    add_flag(parser, "debug", action="store_true", help="show the traceback of an error of this script")
    return parser


def train_once(folder: Path) -> Path:
    """The folder of a finished run that faults take their checkpoints from."""
    folder.mkdir()
    scene = Scene(folder, folder)
    process, _ = start(SINGLE, scene.digits(), folder / "printed", {})
    if process.wait():
        raise UserError(f"a run without a fault failed: {(folder / 'printed').read_text().strip()[-300:]}")
    (run,) = scene.output.glob("train-*")
    return run


def verdict(outcome: Outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    return f"no: {'; '.join(outcome.problems)}" if outcome.problems else "as expected"


def table(outcomes: list[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        seen = re.sub(r"\|", r"\\|", outcome.seen if len(outcome.seen) < 200 else f"{outcome.seen[:200]} ...")
        rows.append([outcome.name, outcome.expected, seen, f"{outcome.seconds:.1f}", verdict(outcome)])
    return markdown_table(["fault", "expected", "seen", "seconds", "verdict"], rows)


def summary(outcomes: list[Outcome]) -> str:
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    passed = len(outcomes) - failed - skipped
    return f"{len(outcomes)} faults: {passed} as expected, {failed} not, {skipped} skipped"


def endurance_table(result: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, one in result.items():
        figures = ", ".join(f"{key} {value}" for key, value in one.items() if key not in ("cases", "failures"))
        failures = "; ".join(one["failures"][:5]) or "none"
        rows.append([name, str(one["cases"]), str(len(one["failures"])), failures, figures])
    return markdown_table(["what", "cases", "failed", "which", "figures"], rows)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
