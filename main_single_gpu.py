"""Trains or evaluates a model in one process, on the first visible GPU or else on the CPU (-device cuda, cpu).

    CUDA_VISIBLE_DEVICES=0 python main_single_gpu.py -cfg=./configs/vit_base_patch16_224.yaml \
        -dataset=imagenet2012 -batch_size=64 -data_path=/dataset/imagenet -amp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

if __name__ == "__main__":
    from utils.processes.first_process import leave_first_process

    leave_first_process()  # before the imports, which take seconds

from configs.command_line import parse_command_line
from configs.flags import requested_device
from utils.errors import UserError
from utils.processes.entry import run_script
from utils.processes.launch import check_is_alone
from utils.system import limit_spinning, without_collections

SCRIPT = "main_single_gpu.py"


def main(argv: list[str]) -> int:
    limit_spinning(requested_device(argv))
    command = parse_command_line(argv, SCRIPT)
    command.require_selection()
    if command.flags.ngpus not in (None, 1):
        raise UserError(f"-ngpus {command.flags.ngpus}: this script uses one process; start main_multi_gpu.py")
    check_is_alone()
    with without_collections():  # after the options are checked: importing torch takes seconds
        from utils.torch_compat import import_dynamo_late

        import_dynamo_late()
        from datasets.loading.workers import start_worker_server
        from engine.commands.run import run
        from engine.plan.recipe import choose_recipe
        from utils.distributed import single_process

    if command.needs_worker_server:
        start_worker_server(may_fork=True)
    context = single_process(command.flags.device)
    return run(choose_recipe(command, context), context)


if __name__ == "__main__":
    run_script(main)
