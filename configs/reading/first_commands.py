"""The answer to a command line without a recipe, data or a model: the usage, and three commands to start with."""

import sys

from configs.reading.command_line import Command
from configs.reading.flags import entry_parser

_TEXT = """
-cfg, -dataset and -data_path are missing. Three commands to start with:

  a small ViT on the embedded digits, in one minute on a CPU
    python {prog} -cfg=configs/vit_digits.yaml -amp
  your own images, one folder per class
    python {prog} -cfg=configs/folder_small.yaml -data_path=FOLDER
  PaddleViT's recipe of ViT-Base on ImageNet
    python {prog} -cfg=configs/vit_base_patch16_224.yaml -dataset=imagenet2012 \\
        -data_path=/dataset/imagenet -batch_size=64 -amp

-h lists the flags.
"""


def require_selection(command: Command, prog: str, is_main: bool = True) -> None:
    """Exits with status 2 if the command line names no YAML file, data set or model; the main process prints how to.

    Raises:
        SystemExit: nothing is selected.
    """
    if command.selects_run:
        return
    if is_main:
        print(entry_parser(prog).format_usage() + _TEXT.format(prog=prog), end="", file=sys.stderr)
    raise SystemExit(2)
