"""Two runs of two processes for test_slow_ranks.py: `python slow_rank_worker.py FOLDER`. Rank 1 is slow."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from utils.processes.entry import run_and_report_errors
from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if detect_launcher():
    exit_with_launcher()

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from configs.reading.command_line import parse_command_line
from datasets.loading.loader import Loader
from engine.commands.run import run
from tests.conftest import GREY, TINY_VIT
from utils.distributed import process_group

SECONDS = 0.05


def train(folder: Path, context) -> None:
    options = [*TINY_VIT, *GREY, "TRAIN.NUM_EPOCHS=9", "TRAIN.MAX_STEPS=56", "VALIDATE_FREQ=100", "SAVE_FREQ=100"]
    flags = ["-dataset=digits", "-batch_size=64", f"-output={folder}"]
    assert run(parse_command_line([*flags, "-opts", *options]), context) == 0


def main(argv: list[str]) -> int:
    if detect_launcher() is None:
        return launch_processes(__file__, argv, num_processes=2)
    with process_group() as context:
        folder, to_device = Path(argv[0]), Loader._to_device

        def slow_to_device(loader: Loader, batch):
            time.sleep(SECONDS)
            return to_device(loader, batch)

        def sleep_in_the_model(module: nn.Module, inputs: tuple) -> None:
            if type(module).__name__ == "VisionTransformer":
                time.sleep(SECONDS)

        if context.rank == 1:
            Loader._to_device = slow_to_device
        train(folder / "loading", context)
        Loader._to_device = to_device
        if context.rank == 1:
            register_module_forward_pre_hook(sleep_in_the_model)
        train(folder / "forward", context)
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
