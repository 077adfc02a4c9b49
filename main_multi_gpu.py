"""Trains or evaluates a model with one process per device.

torchrun, srun or mpirun start one process per device. Without a launcher this script starts one process per visible
GPU itself, or, without a GPU or with `-device cpu`, `-ngpus N` processes on the CPU.

    CUDA_VISIBLE_DEVICES=0,1,2,3 python main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml \
        -dataset=imagenet2012 -batch_size=64 -data_path=/dataset/imagenet -amp
    torchrun --nproc_per_node=4 main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml ... -amp
"""

import os
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
from utils.processes.forks import call_in_fork
from utils.processes.launch import detect_launcher, exit_with_launcher
from utils.processes.ranks import launch_ranks
from utils.system import available_bytes, limit_spinning, without_collections

SCRIPT = "main_multi_gpu.py"
_PROGRAM_BYTES = 4e8  # of torch alone
_FORK_BYTES = 1e8  # of the smallest training


def main(argv: list[str]) -> int:
    limit_spinning(requested_device(argv))
    if detect_launcher() is None:
        command = parse_command_line(argv, SCRIPT)
        command.require_selection()
        status = _launch(command, argv)
        if status is not None:
            return status
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


def _launch(command: Command, argv: list[str]) -> int | None:
    """Starts the ranks, and returns their exit status; None in a rank, which then runs as under another launcher."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as in `exit_with_launcher`
    own_imports = "; ".join(_reasons_against_forks(command))
    with without_collections():
        import torch  # noqa: F401

        if not own_imports:
            _import_for_ranks(command)
        from utils.device import visible_gpus

    device = command.flags.device
    gpus = visible_gpus(device) if own_imports else call_in_fork(visible_gpus, device)
    folder = TemporaryFolder("launch")

    def record_end(**values: Any) -> str | None:
        from engine.run.record import record_end_of_ranks

        return record_end_of_ranks(Path(folder.name), **values)

    notes.on_run_end = record_end
    number = num_processes(command.flags.ngpus, gpus, _PROGRAM_BYTES if own_imports else _FORK_BYTES)
    status = launch_ranks([__file__, *argv], number, folder.name, own_imports)
    if status is None:
        notes.on_run_end = notes.without_run
    return status


def _reasons_against_forks(command: Command) -> list[str]:
    """Why each rank imports its modules, for log.txt; none if the ranks can be forks of the launcher."""
    return notes.texts_of(
        (sys.platform != "linux", f"forks are not safe on {sys.platform}"),
        (command.config.plugins, "-plugin may start threads, or use a GPU"),
        (command.config.train.compiles, "TRAIN.COMPILE starts processes"),
    )


def _import_for_ranks(command: Command) -> None:
    """Imports what each rank of a command needs, in its order."""
    from utils.torch_compat import import_dynamo, import_dynamo_late

    import_dynamo_late()
    import engine.plan.recipe  # noqa: F401
    from engine.commands.run import import_command

    import_command(command.name)
    import_dynamo()  # a process group needs it


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


def num_processes(requested: int | None, gpus: int, rank_bytes: float) -> int:
    """The requested number, else one per visible GPU, else one. rank_bytes: that each takes on a CPU at least."""
    number = requested or gpus or 1
    if 0 < gpus < number:
        raise Unavailable(f"-ngpus {number}: only {gpus} GPU(s) are visible; see CUDA_VISIBLE_DEVICES")
    free = available_bytes()
    if not gpus and 0 < free < number * rank_bytes:
        problem = f"-ngpus {number}: a process takes {rank_bytes / 1e9:g} GB of host memory or more"
        raise Unavailable(f"{problem}, and {free / 1e9:.1f} GB are free; lower -ngpus")
    return number


if __name__ == "__main__":
    run_script(main)
