"""What goes wrong in practice, done on purpose: is each fault answered as it should be?

    python scripts/fault_bench.py                      # the catalogue, as a table in Markdown
    python scripts/fault_bench.py -only 'SIGTERM|rank' -json faults.json

A fault passes if the processes end in time with the right status and one line that says what is wrong, without a
traceback, and leave no process, no half-written file, and a good checkpoint. What cannot be provoked on a machine is
skipped, and counts as neither. The faults: scripts/faults/inputs.py and scripts/faults/runs.py.
"""

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.load import Parser
from scripts.benchmarking import add_flag, markdown_table, new_file, tell, write_json
from utils.errors import UserError, exit_status

LIMIT_SECONDS = 15.0


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    from scripts.faults.inputs import input_faults
    from scripts.faults.runner import run_fault
    from scripts.faults.runs import run_faults

    faults = [fault for fault in (*input_faults(), *run_faults()) if re.search(flags.only, fault.name)]
    if not faults:
        raise UserError(f"-only {flags.only}: matches no fault")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        trained = train_once(Path(temporary) / "trained")
        for number, fault in enumerate(faults, 1):
            (folder := Path(temporary) / str(number)).mkdir()
            outcome = run_fault(fault, folder, trained, flags.limit)
            outcomes.append(outcome)
            tell(f"{number}/{len(faults)} {fault.name}: {verdict(outcome)}")
            shutil.rmtree(folder)
    print(table(outcomes))
    failed = [outcome for outcome in outcomes if outcome.problems]
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    passed = len(outcomes) - len(failed) - len(skipped)
    print(f"\n{len(outcomes)} faults: {passed} as expected, {len(failed)} not, {len(skipped)} skipped")
    write_json(flags.json, {"faults": [asdict(outcome) for outcome in outcomes]})
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="scripts/fault_bench.py", description="Provokes faults and looks at what comes of them.")
    add_flag(parser, "only", default="", metavar="REGEX", help="the faults whose name matches")
    add_flag(parser, "limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="for each (default: 15)")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="write the outcomes there as well")
    add_flag(parser, "debug", action="store_true", help="show the traceback of an error of this script")
    return parser


def train_once(folder: Path) -> Path:
    """The folder of a finished run that faults take their checkpoints from."""
    from scripts.faults.runner import SINGLE, start
    from scripts.faults.scene import Scene

    folder.mkdir()
    scene = Scene(folder, folder)
    process, _ = start(SINGLE, scene.digits(), folder / "printed", {})
    if process.wait():
        raise UserError(f"a run without a fault failed: {(folder / 'printed').read_text().strip()[-300:]}")
    (run,) = scene.output.glob("train-*")
    return run


def verdict(outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    return f"no: {'; '.join(outcome.problems)}" if outcome.problems else "as expected"


def table(outcomes: list) -> str:
    rows = []
    for outcome in outcomes:
        seen = re.sub(r"\|", r"\\|", outcome.seen if len(outcome.seen) < 200 else f"{outcome.seen[:200]} ...")
        rows.append([outcome.name, outcome.expected, seen, f"{outcome.seconds:.1f}", verdict(outcome)])
    return markdown_table(["fault", "expected", "seen", "seconds", "verdict"], rows)


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
