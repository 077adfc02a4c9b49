"""Flags of the scripts. This file needs no torch, so that wrong flags are reported at once."""

import argparse
import itertools
from pathlib import Path

from configs.flags import Parser, entry_parser
from configs.weights import find_weights
from utils.errors import UserError, did_you_mean, error_from
from utils.files import atomic_write


def script_parser(script: str, usage: str, description: str) -> Parser:
    """A parser of the own flags of scripts/`script`; `split_flags` returns the other flags unparsed."""
    epilog = "All other flags, including -opts KEY=VALUE, are flags of main_single_gpu.py: see its -h."
    return Parser(prog=f"scripts/{script}", usage=f"%(prog)s {usage}", description=description, epilog=epilog)


def split_flags(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits `argv` into the script's own flags and the entry scripts' flags; raises UserError for other flags."""
    flags, rest = parser.parse_known_args(argv)
    others, unknown = entry_parser(parser.prog).parse_known_args(rest)
    if unknown:
        flag = unknown[0].partition("=")[0]
        parser.error(f"unknown flag {flag}{did_you_mean(flag, (f'-{name}' for name in vars(flags) | vars(others)))}")
    if others.device:
        parser.error("-device is a flag of the entry scripts only; CUDA_VISIBLE_DEVICES chooses the device of this one")
    return flags, rest


def split_sources(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before the first flag, and the others.

    argparse would take the value of an unknown flag, such as the value of -opts, for a missing argument.
    """
    sources = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv))
    return sources, argv[len(sources) :]


def find_source(path: str) -> Path:
    """`path` if it is the folder of a run, else the weight file at `path`; raises UserError without any weights."""
    folder = Path(path)
    if not folder.is_dir():
        return find_weights(path)
    if not any(folder.glob("*.pth")):
        runs = ", ".join(str(file.parent) for file in sorted(folder.glob("*/best.pth")))
        raise UserError(f"{path}: has no checkpoint; give the folder of a run, or a weight file{runs and f': {runs}'}")
    return folder


def write_output(path: Path, content: str | bytes) -> None:
    """Writes the file of -output. Raises UserError: it cannot be written."""
    try:
        atomic_write(path, content)
    except OSError as error:
        raise error_from(
            error, f"{path}: cannot be written ({error.strerror}); give another file with -output"
        ) from error


def new_file(text: str) -> Path:
    """argparse type: an output file. A wrong path is reported before the measurements start."""
    path = Path(text)
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a regular file, or its folder does not exist")
    return path
