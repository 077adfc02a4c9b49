"""Trains or evaluates a model with one process per device.

torchrun, srun or mpirun start one process per device. Without a launcher this script starts one process per visible
GPU itself, or, without a GPU or with `-device cpu`, `-ngpus N` processes on the CPU.

    CUDA_VISIBLE_DEVICES=0,1,2,3 python main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml \
        -dataset=imagenet2012 -batch_size=64 -data_path=/dataset/imagenet -amp
    torchrun --nproc_per_node=4 main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml ... -amp
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

if __name__ == "__main__":
    from utils.processes.first_process import leave_first_process

    leave_first_process()  # before the imports, which take seconds

from configs.command_line import Command, parse_command_line
from configs.flags import requested_device
from utils import notes
from utils.errors import Unavailable, UserError
from utils.files import TemporaryFolder
from utils.processes.entry import run_script
from utils.processes.launch import detect_launcher, exit_with_launcher, launch_processes
from utils.system import available_bytes, limit_spinning, without_collections

SCRIPT = "main_multi_gpu.py"
_PROCESS_BYTES = 4e8  # of torch alone


def main(argv: list[str]) -> int:
    limit_spinning(requested_device(argv))
    if detect_launcher() is None:
        command = parse_command_line(argv, SCRIPT)
        command.require_selection()
        return _launch(command, argv)
    exit_with_launcher()
    with without_collections():
        from utils.torch_compat import import_dynamo_late

        import_dynamo_late()
        from engine.commands.run import run
        from engine.plan.recipe import choose_recipe
        from utils.distributed import process_group

    command, refused = _prepare(argv)
    with process_group(requested_device(argv), command.config.timeout_seconds) as context:
        if refused:
            raise refused
        command.require_selection(context.is_main)
        check_num_processes(command.flags.ngpus, context.local_world_size)
        return run(choose_recipe(command, context), context)


def _launch(command: Command, argv: list[str]) -> int:
    with without_collections():
        import torch  # noqa: F401
    folder = TemporaryFolder("launch")

    def record_end(**values: Any) -> str | None:
        from engine.run.record import record_end_of_ranks

        return record_end_of_ranks(Path(folder.name), **values)

    notes.on_run_end = record_end
    return launch_processes(__file__, argv, num_processes(command.flags.ngpus, command.flags.device), folder.name)


def _prepare(argv: list[str]) -> tuple[Command, UserError | None]:
    """The command, with its server of workers; or the default one, and the error, which all ranks report once."""
    try:
        command = parse_command_line(argv, SCRIPT)
        if command.needs_worker_server:
            from datasets.loading.workers import start_worker_server

            start_worker_server(may_fork=True)
        return command, None
    except UserError as error:
        return parse_command_line([], SCRIPT), error


def check_num_processes(requested: int | None, started: int) -> None:
    """Refuses a number of processes that differs from the launcher's on this host."""
    if requested not in (None, started):
        problem = f"-ngpus {requested}: a launcher started {started} process(es) on this host (LOCAL_WORLD_SIZE)"
        raise UserError(f"{problem}; leave -ngpus out, or start this script without a launcher")


def num_processes(requested: int | None, device: str | None = None) -> int:
    """The requested number, else one per visible GPU, else one. device: of -device."""
    from utils.device import visible_gpus

    gpus = visible_gpus(device)
    number = requested or gpus or 1
    if 0 < gpus < number:
        raise Unavailable(f"-ngpus {number}: only {gpus} GPU(s) are visible; see CUDA_VISIBLE_DEVICES")
    free = available_bytes()
    if not gpus and 0 < free < number * _PROCESS_BYTES:
        problem = f"-ngpus {number}: a process takes {_PROCESS_BYTES / 1e9:g} GB of host memory or more"
        raise Unavailable(f"{problem}, and {free / 1e9:.1f} GB are free; lower -ngpus")
    return number


if __name__ == "__main__":
    run_script(main)
