"""Averages the weights of checkpoints, evaluates the average, and writes it as a checkpoint for -pretrained.

    python scripts/average_checkpoints.py RUN -best 5
    python scripts/average_checkpoints.py -greedy RUN RUN RUN -output soup.pth

Of one run: the uniform average of the checkpoints with the best validation top-1. A run keeps its newest checkpoints
only; -opts SAVE_FREQ=1 KEEP_CHECKPOINTS=10 keeps more. With -greedy: the greedy soup (Wortsman et al., 2022) of the
best weights of several runs of one model, such as runs that fine-tune the same weights with other options; a run joins
the average if the validation top-1 does not fall. Where a checkpoint has averaged weights (TRAIN.MODEL_EMA), these are
used. All flags of main_single_gpu.py may follow, such as -data_path.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.command_line import parse_command_line
from configs.reading.flags import Parser
from scripts.flags import positive, split_flags, split_source
from scripts.weights.source import find_source
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "scripts/average_checkpoints.py"


def main(argv: list[str]) -> int:
    run, argv = split_source(argv)
    flags, rest = split_flags(_parser(), argv)
    if (run is None) == (flags.greedy is None):
        raise UserError("give either RUN with -best N, or -greedy RUN RUN ...")
    if flags.best < 2:
        raise UserError("-best 1: an average needs two checkpoints or more; raise it")
    if output := flags.output:
        if output.suffix != ".pth":
            raise UserError(f"-output {output}: must end with .pth; add it")
        if output.is_dir() or not output.parent.is_dir():
            raise UserError(f"-output {output}: is a folder, or its folder does not exist; give the name of a new file")
    sources = list(dict.fromkeys(map(find_source, flags.greedy or [run])))
    if flags.greedy and len(sources) < 2:
        raise UserError("-greedy: a soup needs two runs or more; name them after the flag")
    if run and not sources[0].is_dir():
        raise UserError(f"{run}: is a file; give the folder of a run, or several files after -greedy")
    command = parse_command_line(["-eval", f"-pretrained={sources[0]}", *rest], SCRIPT)
    from scripts.weights.averages import write_soup, write_uniform  # importing torch and timm takes seconds

    if flags.greedy:
        write_soup(sources, command, output)
    else:
        write_uniform(sources[0], flags.best, command, output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=SCRIPT,
        usage="%(prog)s RUN [-best N] | -greedy RUN RUN ... [-output FILE] [flags of main_single_gpu.py]",
        description="Averages the weights of checkpoints of RUN, the folder of a run, and evaluates the average.",
    )
    best = "number of checkpoints, those with the highest validation top-1, or mAP (default: 5)"
    parser.add_argument("-best", "--best", type=positive, default=5, metavar="N", help=best)
    greedy = "greedy soup of these runs, or of files that -pretrained reads"
    parser.add_argument("-greedy", "--greedy", nargs="+", metavar="RUN", help=greedy)
    output = "checkpoint to write (default: average.pth or soup.pth in the first run's folder)"
    parser.add_argument("-output", "--output", type=Path, metavar="FILE", help=output)
    return parser


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
