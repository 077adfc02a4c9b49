"""torchrun with the exit status of the first rank that failed, or 128 + signal; torchrun's own status is always 1.

python scripts/kubernetes/torchrun.py --nproc_per_node=2 main_multi_gpu.py -cfg=configs/vit_digits.yaml
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

if __name__ == "__main__":
    from utils.processes.first_process import leave_first_process

    leave_first_process()  # before torch is imported

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: list[str]) -> int:
    try:
        run.main(argv)
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 128 - status
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
