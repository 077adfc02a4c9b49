"""Exports a trained model: python scripts/export.py RUN|FILE -format FORMAT [-output PATH]

    python scripts/export.py output/vit_digits-20260101-12-00 -format onnx
    python scripts/export.py best.pth -cfg=configs/vit_digits.yaml -format hf -output digits

RUN is the folder of a run: its best.pth, or its newest valid checkpoint. FILE is any file that -pretrained reads. The
weights are the average where there is one, in fp32. The export is loaded again and compared with the model on
validation images, or on the images and logits of -check FILE.npz; if a logit differs by more than 1e-3, nothing is
written.
"""

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.flags import add_flag
from scripts.exporting.formats import FORMATS, check_target
from scripts.flags import find_source, script_parser, split_flags, split_sources
from utils.errors import UserError
from utils.processes.entry import run_script
from utils.system import require

SCRIPT = "scripts/export.py"


def main(argv: list[str]) -> int:
    sources, argv = split_sources(argv)
    usage = "RUN|FILE -format FORMAT [-output PATH] [-check NPZ|-no_check] [-no_paths] [flags of main_single_gpu.py]"
    what = "the weights of RUN, the folder of a run, or of FILE, any file that -pretrained reads"
    parser = script_parser("export.py", usage, f"Exports {what}, and checks the result on validation images.")
    formats = "; ".join(f"{name}: {kind.title}" for name, kind in FORMATS.items())
    add_flag(parser, "format", type=str.lower, choices=FORMATS, help=formats)
    output = "file or folder to write (default: beside the weights, with their name)"
    add_flag(parser, "output", type=Path, metavar="PATH", help=output)
    check = "images (N, C, S, S), normalized, and logits (N, classes) to compare with, in place of validation images"
    add_flag(parser, "check", type=Path, metavar="NPZ", help=check)
    no_check = "write the export without a comparison; needs no validation images"
    add_flag(parser, "no_check", action="store_true", help=no_check)
    no_paths = "leave out the folder of the data and the names of its held-out images"
    add_flag(parser, "no_paths", action="store_true", help=no_paths)
    flags, rest = split_flags(parser, argv)
    if len(sources) != 1 or flags.format is None:
        path = shlex.quote(sources[0]) if sources else "output/RUN"
        raise UserError(
            "give the folder of a run, or a weight file, as the first argument, and -format: "
            f"python {SCRIPT} {path} -format {flags.format or 'onnx'} (formats: {', '.join(FORMATS)})"
        )
    source = find_source(sources[0])
    if flags.check and flags.no_check:
        raise UserError("-check and -no_check contradict each other; remove one of them")
    if flags.output:
        check_target(flags.output, flags.format, source)
    command = parse_command_line(["-eval", f"-pretrained={source}", *rest], SCRIPT)
    require(f"-format {flags.format}", *FORMATS[flags.format].packages)
    from scripts.exporting.run import run_export  # after the checks: importing torch and timm takes seconds

    return run_export(source, command, flags)


if __name__ == "__main__":
    run_script(main)
