"""The catalogue of faults: all faults of this folder."""

from dataclasses import replace

from faults.checkpoints import resume_faults, sharded_faults
from faults.inputs import input_faults
from faults.runner import Fault
from faults.runs import output_faults, rank_faults, signal_faults, worker_faults
from faults.tar import tar_faults

from utils.errors import MAY_PASS

_SUBJECTS = (
    input_faults, tar_faults, resume_faults, sharded_faults, output_faults, signal_faults, rank_faults, worker_faults,
)  # fmt: skip


# The exit status says that a retry may cure them. Of the others, those with an error line are refused.
_MAY_PASS = (
    "a GPU that is named but missing", "command line: not enough memory",
    "tar: no writable place for the index", "tar server: goes away", "tar server: shards are replaced during the run",
    "weights: an unreachable Hub", "resume: a full disk",
    "output: a file", "output: no folder for files", "output: read-only", "output: a full disk",
    "output: a disk that fills up while saving", "output: a limit on the file size", "output: the folder is moved",
    "the folder of the shell is deleted", "worker killed", "worker stopped",
    "evaluation worker killed", "evaluation worker stopped",
)  # fmt: skip


def all_faults() -> list[Fault]:
    faults = {fault.name: fault for subject in _SUBJECTS for fault in subject()}
    return list((faults | {name: replace(faults[name], status=(MAY_PASS,)) for name in _MAY_PASS}).values())
