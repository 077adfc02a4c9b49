"""Predicts what a training run costs, before it is paid for: memory, largest batch, images/s, hours.

    python scripts/plan.py -cfg=configs/vit_huge_patch14_224.yaml -amp -batch_size=64 -devices 8xH100 -nodes 4
    python scripts/plan.py -cfg=... -devices 8xH200 -calibrate output/RUN

Nothing is trained, and no GPU is needed: the model runs without memory, and datasheets give the speed of the devices.
The figures are for DDP, FSDP and HSDP, with and without gradient checkpointing. Without -calibrate the share of the
peak that the model reaches is assumed. With it, the share is that of a measured run, such as one of 200 steps on one
device (TRAIN.MAX_STEPS=200).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.command_line import parse_command_line
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.errors import UserError, escape_control_characters
from utils.processes.entry import run_and_report_errors

SCRIPT = "plan.py"
IMAGENET_IMAGES = 1_281_167


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    if flags.devices is None:
        raise UserError("give the GPUs of a host with -devices, such as -devices 8xH100")
    config = parse_command_line(rest, f"scripts/{SCRIPT}").config

    # After the checks: importing torch and timm takes seconds.
    from scripts.planning.calibration import calibrate
    from scripts.planning.devices import parse_cluster
    from scripts.planning.json_file import write_plan
    from scripts.planning.plan import make_plan
    from scripts.planning.text import plan_text

    cluster = parse_cluster(flags.devices, flags.nodes, flags.network)
    calibration = calibrate(flags.calibrate) if flags.calibrate else None
    plan = make_plan(config, cluster, flags.images, calibration)
    print(escape_control_characters(plan_text(plan)))
    write_plan(flags.json, plan)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Predicts the memory, the speed and the hours of a training run.")
    add_flag(parser, "devices", metavar="NxGPU", help="GPUs of a host, such as 8xH100")
    add_flag(parser, "nodes", type=positive, default=1, metavar="N", help="number of hosts (default: 1)")
    network = "Gbit/s of a host (default: that of NVIDIA's DGX with this GPU, else 100 for 8 GPUs)"
    add_flag(parser, "network", type=_speed, metavar="GBIT", help=network)
    images = f"training images of an epoch (default: {IMAGENET_IMAGES}, ImageNet-1k)"
    add_flag(parser, "images", type=positive, default=IMAGENET_IMAGES, metavar="N", help=images)
    calibrate = "folder, or result.json, of a measured run: its share of the peak is taken"
    add_flag(parser, "calibrate", type=Path, metavar="RUN", help=calibrate)
    return parser


def _speed(text: str) -> float:
    """argparse type: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
