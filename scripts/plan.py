"""Predicts the cost of a training run before it is paid for: memory, largest batch, images/s, hours.

    python scripts/plan.py -cfg=configs/vit_huge_patch14_224.yaml -amp -batch_size=64 -devices 8xH100 -nodes 4
    python scripts/plan.py -cfg=... -devices 8xH200 -price 3.5

Nothing is trained, and no GPU is needed: the model runs without memory, and datasheets give the speed of the devices.
The MFU, the share of the peak that the model reaches, is assumed.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.command_line import parse_command_line
from scripts.flags import add_flag, positive, positive_number, script_parser, split_flags
from utils.errors import UserError, print_escaped
from utils.processes.entry import run_and_report_errors

SCRIPT = "scripts/plan.py"
IMAGENET_IMAGES = 1_281_167


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    command = parse_command_line(rest, SCRIPT)
    config = command.config
    if not config.data.batch_size:
        raise UserError("-batch_size=auto: is found by the run; give a size here, the plan has the largest one")
    if command.name == "probe":
        raise UserError("MODEL.TUNE probe: is one pass over the images, not a training; plan MODEL.TUNE=head")
    from scripts.planning.estimate import plan_text  # after the checks: importing torch and timm takes seconds

    print_escaped(plan_text(config, flags))
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = "-devices NxGPU -cfg FILE [flags] [flags of main_single_gpu.py]"
    parser = script_parser("plan.py", usage, "Predicts the memory, the speed and the hours of a training run.")
    add_flag(parser, "devices", required=True, metavar="NxGPU", help="GPUs of a host, such as 8xH100")
    add_flag(parser, "nodes", type=positive, default=1, metavar="N", help="number of hosts (default: 1)")
    network = "Gbit/s of a host (default: as NVIDIA's DGX with this GPU, else 100 for 8 GPUs)"
    add_flag(parser, "network", type=positive_number, metavar="GBIT", help=network)
    images = f"training images of an epoch (default: {IMAGENET_IMAGES}, ImageNet-1k)"
    add_flag(parser, "images", type=positive, default=IMAGENET_IMAGES, metavar="N", help=images)
    add_flag(parser, "price", type=positive_number, metavar="PRICE", help="of one GPU for one hour, in any currency")
    return parser


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
