"""torchrun with the exit status of the first rank that failed, or 128 + signal; torchrun's own status is always 1.

python scripts/kubernetes/torchrun.py --nproc_per_node=2 main_multi_gpu.py -cfg=configs/vit_digits.yaml
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

if __name__ == "__main__":
    from utils.processes.first_process import leave_first_process

    leave_first_process()  # before the imports, which take seconds

from torch.distributed import run
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing import PContext, SignalException, start_processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_started = []  # the ranks of this host, after a restart the new ones


def main(argv: list[str]) -> int:
    local_elastic_agent.start_processes = _start_processes
    try:
        run.main(argv)
    except ChildFailedError as error:
        return _status_of(error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return _status_after(error.sigval)
    return 0


def _start_processes(**arguments: Any) -> PContext:
    _started.append(start_processes(**arguments))
    return _started[-1]


def _status_of(exitcode: int) -> int:
    return exitcode if exitcode > 0 else 128 - exitcode


def _status_after(number: int) -> int:
    """The status of a rank that did not save after the signal, else 128 + signal."""
    ended = _started[-1].wait(0) if _started else None
    if not ended:  # the signal came before the ranks
        return 128 + number
    statuses = [_status_of(failure.exitcode) for failure in ended.failures.values()]
    return min(statuses, key=lambda status: status == 128 + number, default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
