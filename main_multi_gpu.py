"""Trains or evaluates a Vision Transformer with one process per device.

Started by torchrun, srun or mpirun it is one of their processes; started plainly it launches itself over the visible
GPUs, or as `-ngpus N` processes on the CPU where there are none.

    CUDA_VISIBLE_DEVICES=0,1,2,3 python main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml \
        -dataset=imagenet2012 -batch_size=64 -data_path=/dataset/imagenet -amp
    torchrun --nproc_per_node=4 main_multi_gpu.py -cfg=./configs/vit_base_patch16_224.yaml ... -amp
"""

import sys

from configs.load import load
from utils.errors import UserError, exit_status
from utils.launch import follow_launcher, launcher, relaunch

SCRIPT = "main_multi_gpu.py"


def main(argv: list[str]) -> int:
    if launcher() is None:
        return relaunch(__file__, argv, num_processes(load(argv, SCRIPT).num_processes))
    follow_launcher()
    from engine.run import run
    from utils.distributed import connected

    with connected() as context:
        return run(load(argv, SCRIPT), context, SCRIPT)


def num_processes(wanted: int | None) -> int:
    """As many as wanted, else one per visible GPU, else one."""
    from utils.distributed import visible_gpus

    gpus = visible_gpus()
    if gpus and wanted and wanted > gpus:
        raise UserError(f"-ngpus {wanted}: only {gpus} GPU(s) are visible; see CUDA_VISIBLE_DEVICES")
    return wanted or gpus or 1


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
