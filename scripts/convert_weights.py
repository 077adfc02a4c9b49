"""Converts weights: python scripts/convert_weights.py IN OUT [-cfg=FILE]

    python scripts/convert_weights.py vit_base_patch16_224.pdparams vit_base.safetensors
    python scripts/convert_weights.py RUN/best.pth digits.pdparams

The extensions choose the kinds: .safetensors and .pth (timm's names), .npz (Google's), .pdparams (PaddleViT's). Every
file that -pretrained reads can become .safetensors or .pth; a ViT also .npz; a ViT, and the families whose names can be
inverted, also .pdparams. The run in whose folder IN is gives the model, else -cfg or -model. OUT is read back and
compared with IN bit by bit before it is kept.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.command_line import parse_command_line
from configs.reading.flags import Parser
from configs.reading.option_layers import find_run_options
from models.weights.find import find_weights
from scripts.flags import split_flags
from utils.errors import UserError, escape_control_characters
from utils.processes.entry import run_and_report_errors

SCRIPT = "scripts/convert_weights.py"
NAMELESS = (".npz", ".pdparams")  # their files hold arrays only
KINDS = (".safetensors", ".pth", *NAMELESS)


def main(argv: list[str]) -> int:
    paths, argv = argv[:2], argv[2:]
    _, rest = split_flags(_parser(), argv if len(paths) == 2 else [*paths, *argv])
    if len(paths) < 2 or any(path.startswith("-") for path in paths):
        raise UserError("the first two arguments must be the file to convert and the file to write")
    source, target = find_weights(paths[0]), Path(paths[1])
    num_tensors = convert(source, target, rest)
    size = f"{num_tensors} tensors, {target.stat().st_size / 1e6:.2f} MB"
    print(escape_control_characters(f"Converted: {source} -> {target}, {size}; read back and equal bit by bit"))
    if target.suffix.lower() in NAMELESS:
        run_options = find_run_options(None, str(source)) or "RUN/config.yaml"
        print(
            escape_control_characters(
                f"Note: class names and preprocessing are not kept in {target.suffix}; give -cfg={run_options} with "
                f"-pretrained={target}"
            )
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    return Parser(
        prog=SCRIPT,
        usage="%(prog)s IN OUT [-cfg FILE | -model X] [-opts KEY=VALUE ...]",
        description="Converts weights between .safetensors, .pth, .npz (Google's ViT) and .pdparams (PaddleViT).",
        epilog="-cfg, -model and -opts say which model it is, as for main_single_gpu.py. A file in the folder of a "
        "run, such as RUN/best.pth, needs none of them.",
    )


def convert(source: Path, target: Path, argv: list[str]) -> int:
    """Writes `target` from `source`; returns the number of tensors.

    Raises:
        UserError: an unknown kind; the model has no names of this kind; the weights belong to another model.
    """
    kind = target.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{target}: unknown file extension; give one of {', '.join(KINDS)}")
    if target.resolve() == source.resolve() or target.is_dir():
        raise UserError(f"{target}: is the file to convert, or a folder; give another name")
    config = parse_command_line(["-eval", f"-pretrained={source}", *argv], SCRIPT).config
    from scripts.weights.conversion import write_converted  # after the checks: importing torch and timm takes seconds

    return write_converted(source, target, config)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
