"""The catalogue of faults: all faults of this folder."""

from faults.checkpoints import checkpoint_faults, resume_faults
from faults.command_line import command_line_faults, recipe_faults
from faults.data import data_set_faults, list_faults
from faults.distillation import distillation_faults
from faults.images import image_faults
from faults.prediction import prediction_faults
from faults.runner import Fault
from faults.runs import output_faults, rank_faults, signal_faults, worker_faults
from faults.sharded import sharded_faults
from faults.tar import tar_faults
from faults.tar_cache import cache_faults
from faults.tar_servers import server_faults
from faults.weights import weights_faults

_SUBJECTS = (
    command_line_faults, recipe_faults, list_faults, data_set_faults, image_faults, tar_faults, server_faults,
    cache_faults, weights_faults, distillation_faults, prediction_faults, checkpoint_faults, resume_faults,
    sharded_faults, output_faults, signal_faults, rank_faults, worker_faults,
)  # fmt: skip


def all_faults() -> list[Fault]:
    return [fault for faults in _SUBJECTS for fault in faults()]
