"""Averages the weights of checkpoints, evaluates the average, and writes it for -pretrained.

    python scripts/average_checkpoints.py RUN
    python scripts/average_checkpoints.py RUN RUN RUN -output soup.pth

This is the uniform soup (Wortsman et al., 2022): of the checkpoints of one run, or of the best weights of several runs
of one model, such as runs that fine-tune the same weights with other options. A run keeps its newest checkpoints only;
-opts SAVE_FREQ=1 KEEP_CHECKPOINTS=10 keeps more. Where a checkpoint has averaged weights (TRAIN.MODEL_EMA), these are
used. All flags of main_single_gpu.py may follow, such as -data_path.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from scripts.flags import add_flag, find_source, script_parser, split_flags, split_sources
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "scripts/average_checkpoints.py"


def main(argv: list[str]) -> int:
    paths, argv = split_sources(argv)
    usage = "RUN [RUN ...] [-output FILE] [flags of main_single_gpu.py]"
    what = "the checkpoints of RUN, or the best weights of several runs or files"
    parser = script_parser("average_checkpoints.py", usage, f"Averages {what}.")
    output = "checkpoint to write (default: average.pth in the first run's folder)"
    add_flag(parser, "output", type=Path, metavar="FILE", help=output)
    flags, rest = split_flags(parser, argv)
    sources = list(dict.fromkeys(map(find_source, paths)))
    if not sources or (len(sources) == 1 and not sources[0].is_dir()):
        raise UserError("give the folder of a run, or several runs or weight files, as the first arguments")
    if output := flags.output:
        if output.suffix != ".pth":
            raise UserError(f"-output {output}: must end with .pth; add it")
        if output.is_dir() or not output.parent.is_dir():
            raise UserError(f"-output {output}: is a folder, or its folder does not exist; give the name of a new file")
    command = parse_command_line(["-eval", f"-pretrained={sources[0]}", *rest], SCRIPT)
    from scripts.weights.averages import write_average  # importing torch and timm takes seconds

    write_average(sources, command, output)
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
