"""Predicts the cost of a training run before it is paid for: memory, largest batch, images/s, hours.

    python scripts/plan.py -cfg=configs/vit_huge_patch14_224.yaml -amp -batch_size=64 -devices 8xH100 -nodes 4
    python scripts/plan.py -cfg=... -devices 8xH200 -price 3.5 -calibrate output/RUN

Nothing is trained, and no GPU is needed: the model runs without memory, and datasheets give the speed of the devices.
Without -calibrate the MFU (the share of the peak that the model reaches) is assumed. With it, the MFU is measured: give
a run of 200 steps on one device (TRAIN.MAX_STEPS=200).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.command_line import parse_command_line
from configs.resolve import resolve
from configs.schema import Config
from scripts.flags import add_flag, flag_parser, positive, positive_number, split_flags
from utils.atomic_file import atomic_write
from utils.errors import UserError, escape_control_characters
from utils.processes.entry import run_and_report_errors

SCRIPT = "plan.py"
IMAGENET_IMAGES = 1_281_167
ASSUMED_MFU, ASSUMED_ERROR = 0.33, (-0.25, 0.35)  # published ViTs have an MFU of 25% to 45%
CALIBRATED_ERROR = (-0.08, 0.08)


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    if flags.devices is None:
        raise UserError("give the GPUs of a host with -devices, such as -devices 8xH100")
    plan = make_plan(parse_command_line(rest, f"scripts/{SCRIPT}").config, flags)
    from scripts.planning.text import plan_text

    print(escape_control_characters(plan_text(plan)))
    if flags.json:
        atomic_write(flags.json, (json.dumps(plan, indent=2) + "\n").encode())
    return 0


def make_plan(config: Config, flags: argparse.Namespace) -> dict[str, Any]:
    """All figures: bytes, seconds, images/s, GPU hours; of each strategy, with and without gradient checkpointing.

    Raises:
        UserError: the model, the optimizer, the batch size or the device has no plan.
    """
    # After the checks: importing torch and timm takes seconds.
    from engine.precision.policy import precision_name
    from scripts.planning.calibration import calibrate
    from scripts.planning.devices import parse_cluster
    from scripts.planning.estimate import estimate, strategies
    from scripts.planning.workload import GPU, measure_workload

    cluster = parse_cluster(flags.devices, flags.nodes, flags.network)
    mfu, error, source = ASSUMED_MFU, ASSUMED_ERROR, f"an MFU of {ASSUMED_MFU:.0%} is assumed; use -calibrate RUN"
    if flags.calibrate:
        mfu, device, model = calibrate(flags.calibrate)
        error = CALIBRATED_ERROR if device == cluster.device else ASSUMED_ERROR
        source = f"an MFU of {mfu:.1%} in compute, of {model} on {device}"
    workload, batch_size = measure_workload(config), config.data.batch_size
    accumulation = resolve(config, None, cluster.size).train.accum_iter
    rows = [
        estimate(workload, strategy, batch_size, accumulation, mfu, checkpointing)._asdict()
        for strategy in strategies(workload, config.parallel, cluster).values()
        for checkpointing in workload.passes
    ]
    for row in rows:
        row["epoch_seconds"] = flags.images / row["images_per_second"]
        row["gpu_hours"] = row["epoch_seconds"] * config.train.num_epochs * cluster.size / 3600
    return {
        "model": config.model.name,
        "optimizer": f"{config.train.optimizer.name}{', average' if config.train.model_ema else ''}",
        "precision": precision_name(workload.precision.options, GPU),
        "parameters": workload.parameters,
        "trained": workload.trained,
        "flops_per_image": workload.flops_per_image,
        "sharding_problem": workload.sharding_problem,
        "cluster": str(cluster),
        "devices": cluster.size,
        "memory_bytes": cluster.memory_bytes,
        "peak": cluster.peak(workload.precision),
        "price": flags.price,
        "batch_size": batch_size,
        "global_batch": batch_size * accumulation * cluster.size,
        "images_per_epoch": flags.images,
        "epochs": config.train.num_epochs,
        "mfu": mfu,
        "error": error,
        "mfu_source": source,
        "strategies": rows,
    }


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Predicts the memory, the speed and the hours of a training run.")
    add_flag(parser, "devices", metavar="NxGPU", help="GPUs of a host, such as 8xH100")
    add_flag(parser, "nodes", type=positive, default=1, metavar="N", help="number of hosts (default: 1)")
    network = "Gbit/s of a host (default: as NVIDIA's DGX with this GPU, else 100 for 8 GPUs)"
    add_flag(parser, "network", type=positive_number, metavar="GBIT", help=network)
    images = f"training images of an epoch (default: {IMAGENET_IMAGES}, ImageNet-1k)"
    add_flag(parser, "images", type=positive, default=IMAGENET_IMAGES, metavar="N", help=images)
    add_flag(parser, "price", type=positive_number, metavar="PRICE", help="of one GPU for one hour, in any currency")
    calibrate = "folder, or result.json, of a measured run: its share of the peak is taken"
    add_flag(parser, "calibrate", type=Path, metavar="RUN", help=calibrate)
    return parser


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
