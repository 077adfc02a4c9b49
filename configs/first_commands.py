"""The answer to a command line that does not say what to train: the usage, and three commands to start with."""

import sys

from configs.command_line import Command, entry_parser

_TEXT = """
-cfg, -dataset and -data_path are missing. Three commands to start with:

  a small ViT on the embedded digits, in one minute on a CPU
    python {prog} -cfg=configs/vit_digits.yaml -amp
  your own images, one folder per class; here 5 classes and a pretrained ResNet-50 of timm
    python {prog} -dataset=folder -data_path=FOLDER -batch_size=16 \\
        -opts TRAIN.NUM_EPOCHS=20 TRAIN.WARMUP_EPOCHS=1 TRAIN.BASE_LR=1e-4 \\
        MODEL='{{TYPE: timm, NAME: resnet50, NUM_CLASSES: 5, PRETRAINED: timm}}'
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
