"""Batch norms over the batches of all ranks: PARALLEL.SYNC_BN."""

from timm.layers import convert_sync_batchnorm
from torch import nn

from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.torch_compat import BatchNorm


def synchronize_batch_norms(model: nn.Module, context: ProcessContext) -> nn.Module:
    """The model whose batch norms, in training, have the mean and variance of the batches of all ranks.

    By timm's conversion to torch's SyncBatchNorm. Names and values of the state dict stay.

    Raises:
        UserError: the model has no batch norms; the devices are CPUs, for which torch has no kernels.
    """
    if not any(isinstance(module, BatchNorm) for module in model.modules()):
        raise UserError("PARALLEL.SYNC_BN: this model has no batch norms; set it to false")
    if context.device.type != "cuda":
        raise UserError("PARALLEL.SYNC_BN: torch has no kernels for CPUs; set it to false")
    return convert_sync_batchnorm(model)
