"""Measures a machine with a GPU in calls of nine minutes, without a network.

    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures

gpu/plan.py has a line for each part, the most important first. A part starts if its time limit fits into the time left
of `-minutes`, so one that fails or hangs stops no other. The files `figures.md` and `figures.json` in the output folder
are rewritten after every part; FOLDER.tar.gz has all files of the folder. The next call with the same output folder
runs the parts that have not run yet; `-parts` repeats parts. See docs/benchmarks.md, GPU.
"""

import argparse
import shlex
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from scripts.benchmarks.benchmark_train import NO_DROPOUT, check_supported
from scripts.benchmarks.gpu.plan import TABLES, TIMED_IMAGES, Records, build_parts, page, run_part
from scripts.benchmarks.programs import parse_names
from scripts.benchmarks.timm_command import add_timm_flag
from scripts.benchmarks.turns import write_json
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import visible_gpus
from utils.files import atomic_write, read_json
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_gpu.py"
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
RESERVED_SECONDS = 15  # to stop the last part


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes - RESERVED_SECONDS
    check_supported(parse_command_line([*DEFAULTS, *rest]).config.train)  # before the measurements
    parts = build_parts(flags, [*DEFAULTS, *rest])
    file = flags.output / "figures.json"
    records: Records = read_json(file)
    left = [name for name in parts if name not in records]
    names = flags.parts and flags.parts.replace("tables", ",".join(TABLES))
    selected = parse_names("parts", names, parts) if names else left
    if not visible_gpus():
        print("warning: no GPU is visible; the parts run on the CPU", file=sys.stderr)
    flags.output.mkdir(parents=True, exist_ok=True)
    has_failed, command = False, f"python scripts/{SCRIPT} {shlex.join(argv)}"
    for name in selected:
        if parts[name].limit_seconds <= deadline - time.monotonic():
            records[name] = run_part(name, parts[name], flags.output)
            for path in (file, flags.json):
                write_json(path, records)
            atomic_write(flags.output / "figures.md", page(records, command))
            print(f"{name}: {records[name]['outcome']}", file=sys.stderr, flush=True)
            has_failed |= not records[name]["outcome"].startswith("done")
    print(page(records, command))
    shutil.make_archive(str(flags.output), "gztar", flags.output)
    if left := [name for name in parts if name not in records]:
        print(f"Not run yet: {', '.join(left)}. The same command without -parts runs them.")
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    parser.usage = "%(prog)s [-cfg FILE] [flags] [flags of main_single_gpu.py]"
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    parts = "names of gpu/plan.py, or tables (default: all that have not run, in its order)"
    add_flag(parser, "parts", metavar="A,B", help=parts)
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "small_batch", type=positive, default=64, metavar="N", help="of `_small` parts (default: 64)")
    add_flag(parser, "large_batch", type=positive, default=256, metavar="N", help="of the other parts (default: 256)")
    images = f"images per timed turn of a program (default: {TIMED_IMAGES}; a quarter in fp32)"
    add_flag(parser, "timed_images", type=positive, default=TIMED_IMAGES, metavar="N", help=images)
    add_timm_flag(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
