"""Compares how long OpenMP's threads spin before they sleep: CPU training beside other programs, and alone.

    python scripts/benchmarks/benchmark_busy.py -json busy.json
    python scripts/benchmarks/benchmark_busy.py -loops 0,9 -spins 300000,1000 -rounds 5

A turn trains configs/vit_tiny_patch16_224.yaml on random images in memory, with one value of libgomp's GOMP_SPINCOUNT,
beside a number of busy loops. 300000 is libgomp's default; 0 is OMP_WAIT_POLICY=passive. The turns of all numbers of
loops and all values alternate, in reverse order in every second round. Other programs of the machine count as loops.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from scripts.benchmarks.common import print_result
from scripts.benchmarks.programs import add_turn_flags, entry_program, run_turn
from scripts.benchmarks.turns import figures_table, ratio_table, speed, speed_ratios, take_turns
from scripts.flags import add_flag, flag_parser, split_flags
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_busy.py"
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=8"]


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config = parse_command_line([*DEFAULTS, *rest]).config
    turns = {_name(loops, spins): (loops, spins) for loops in flags.loops for spins in flags.spins}
    with TemporaryDirectory() as folder:
        program = entry_program([*DEFAULTS, *rest], flags.interval, Path(folder), data=None)

        def measure(name: str, _: int) -> dict[str, float]:
            loops, spins = turns[name]
            command = ["env", f"GOMP_SPINCOUNT={spins}", *program.command]
            with ExitStack() as busy:
                for _ in range(loops):
                    loop = busy.enter_context(Popen([sys.executable, "-Sc", "while True: pass"]))
                    busy.callback(loop.kill)
                return run_turn(
                    program._replace(command=command), flags.warmup, flags.steps, flags.limit, config.data.batch_size
                )

        figures = take_turns(list(turns), flags.rounds, measure, flags.json)
    others = [(loops, spins) for loops, spins in turns.values() if spins != flags.spins[0]]
    ratios = speed_ratios(figures, [(_name(*one), _name(one[0], flags.spins[0])) for one in others])
    texts = [figures_table(figures, {"images/s": speed}), ratio_table(ratios)]
    print_result(SCRIPT, argv, config.data.batch_size, texts, flags.json, figures=figures, ratios=ratios)
    return 0


def _name(loops: int, spins: int) -> str:
    return f"{loops} busy loops, {spins} spins"


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares how long OpenMP's threads spin, in CPU training beside busy loops.")
    add_flag(parser, "loops", type=_numbers, default="0,2,9", metavar="A,B", help="busy loops (default: 0,2,9)")
    spins = "values of GOMP_SPINCOUNT; ratios to the first one (default: 300000,0,1000,10000)"
    add_flag(parser, "spins", type=_numbers, default="300000,0,1000,10000", metavar="A,B", help=spins)
    add_turn_flags(parser, rounds=3, warmup=2, steps=6)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
