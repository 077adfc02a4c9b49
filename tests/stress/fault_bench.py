"""Provokes faults that happen in practice, and checks the reaction of the entry scripts.

    python tests/stress/fault_bench.py                      # the catalogue, as a Markdown table
    python tests/stress/fault_bench.py -only 'SIGTERM|rank' -json faults.json
    python tests/stress/fault_bench.py -matrix -saves 200 -flips 1000 -truncations 200 -signals 20
    python tests/stress/fault_bench.py -sharded 20 -soak 20

A fault passes if the processes end in time, with the right exit status, with one line that names the problem and
without a traceback; and if they leave no process, no temporary file, and a good checkpoint. Faults that cannot be
provoked on a machine are skipped. The faults are in tests/stress/faults/, listed in catalogue.py.
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

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "datasets" / "shards"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from faults import endurance, shard_endurance
from faults.catalogue import all_faults
from faults.runner import SINGLE, Fault, Outcome, finish, run_fault
from faults.scene import Scene
from faults.soak import soak

from configs.reading.flags import Parser
from scripts.benchmarks.common import print_progress, write_json
from scripts.flags import add_flag, new_file, positive
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.tables import markdown_table

LIMIT_SECONDS = 15.0


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    endurance_flags = (
        flags.matrix,
        flags.saves,
        flags.flips,
        flags.truncations,
        flags.signals,
        flags.sharded,
        flags.soak,
    )
    is_endurance = any(endurance_flags)
    faults = [] if is_endurance else chosen_faults(flags.only)
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        root = Path(temporary)
        trained = train_once(root / "trained")
        if is_endurance:
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
        faults = [fault for fault in all_faults() if re.search(pattern, fault.name)]
    except re.error as error:
        raise UserError(f"-only {pattern}: is not a regular expression ({error})") from None
    if not faults:
        raise UserError(f"-only {pattern}: matches no fault")
    return faults


def run_catalogue(faults: list[Fault], root: Path, trained: Path, limit_seconds: float) -> list[Outcome]:
    outcomes = []
    for number, fault in enumerate(faults, 1):
        (folder := root / str(number)).mkdir()
        outcomes.append(run_fault(fault, folder, trained, limit_seconds))
        print_progress(f"{number}/{len(faults)} {fault.name}: {verdict(outcomes[-1])}")
        shutil.rmtree(folder)
    return outcomes


def run_endurance(flags: argparse.Namespace, root: Path, trained: Path) -> dict[str, dict[str, Any]]:
    """Runs the tests that the flags select. Returns the figures of each, with its 'failures'."""
    rng, result = random.Random(flags.seed), {}
    if flags.matrix:
        result["matrix"] = endurance.resume_matrix(root / "matrix")
    if flags.saves:
        result["saves"] = endurance.kills_while_saving(root, trained, flags.saves, rng)
        result["saves, shards"] = shard_endurance.kills_while_saving(root, trained, flags.saves, rng)
    if flags.flips:
        result["flips"] = endurance.damaged_checkpoints(root, trained, flags.flips, 0, rng)
        result["flips, shards"] = shard_endurance.damaged_folders(root / "flips", trained, flags.flips, 0, rng)
    if flags.truncations:
        result["truncations"] = endurance.damaged_checkpoints(root, trained, 0, flags.truncations, rng)
        cut = shard_endurance.damaged_folders(root / "cuts", trained, 0, flags.truncations, rng)
        result["truncations, shards"] = cut
    if flags.signals:
        result["signals"] = endurance.signals_at_random(root, trained, flags.signals, rng)
    if flags.sharded:
        result["sharded, other ranks"] = shard_endurance.resumed_by_others(root)
        result["sharded"] = shard_endurance.killed_and_resumed(root, flags.sharded, rng)
    if flags.soak:
        result["soak"] = soak(root / "soak", flags.soak, rng)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tests/stress/fault_bench.py", description="Provokes faults and checks the reaction of the entry scripts."
    )
    add_flag(parser, "only", default="", metavar="REGEX", help="only faults whose name matches")
    add_flag(parser, "matrix", action="store_true", help="stop and resume 24 runs: equal bit for bit?")
    add_flag(parser, "saves", type=positive, metavar="N", help="kill while saving: always a good checkpoint?")
    add_flag(parser, "flips", type=positive, metavar="N", help="flip single bits of a checkpoint: all detected?")
    add_flag(parser, "truncations", type=positive, metavar="N", help="cut a checkpoint short: all detected?")
    add_flag(parser, "signals", type=positive, metavar="N", help="send SIGTERM to two ranks: always saved?")
    add_flag(parser, "sharded", type=positive, metavar="N", help="kill a sharded run N times; other ranks resume it")
    add_flag(parser, "soak", type=float, metavar="MINUTES", help="kill and resume: same result as without kills?")
    add_flag(parser, "seed", type=int, default=0, metavar="N", help="of the random choices (default: 0)")
    add_flag(parser, "limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="per fault (default: 15)")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="also write the outcomes to this file")
    add_flag(parser, "debug", action="store_true", help="show the traceback of an error in this script")
    return parser


def train_once(folder: Path) -> Path:
    """Trains the run from which the faults take their checkpoints. Returns its folder."""
    folder.mkdir()
    scene = Scene(folder, folder)
    finish(SINGLE, scene.digits(), folder / "printed")
    (run,) = scene.output.iterdir()
    return run


def verdict(outcome: Outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    return f"failed: {'; '.join(outcome.problems)}" if outcome.problems else "as expected"


def table(outcomes: list[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        text = outcome.observed if len(outcome.observed) < 200 else f"{outcome.observed[:200]} ..."
        observed = re.sub(r"\|", r"\\|", text)
        rows.append([outcome.name, outcome.expected, observed, f"{outcome.seconds:.1f}", verdict(outcome)])
    return markdown_table(["fault", "expected", "observed", "seconds", "verdict"], rows)


def summary(outcomes: list[Outcome]) -> str:
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    passed = len(outcomes) - failed - skipped
    return f"{len(outcomes)} faults: {passed} as expected, {failed} failed, {skipped} skipped"


def endurance_table(result: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, one in result.items():
        figures = ", ".join(f"{key} {value}" for key, value in one.items() if key not in ("cases", "failures"))
        failures = "; ".join(one["failures"][:5]) or "none"
        rows.append([name, str(one["cases"]), str(len(one["failures"])), failures, figures])
    return markdown_table(["test", "cases", "failed", "failures", "figures"], rows)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
