"""The switches of torch that hold for the whole process."""

import torch

from configs.schema import Config
from configs.schema.compute import Amp
from models.kernels import CUDNN, allow_kernels
from utils.device import use_deterministic_algorithms


def uses_tf32(options: Amp) -> bool:
    """Returns whether a GPU computes fp32 matrix products and convolutions in TF32."""
    return options.enabled if options.tf32 is None else options.tf32


def set_process_switches(config: Config, device: torch.device) -> list[str]:
    """Sets deterministic algorithms, TF32, cuDNN's choice of algorithms, and the attention kernels.

    Call it before the first operation of a model. Without DETERMINISTIC, cuDNN times its algorithms for each new shape
    of a convolution. Returns a line for the log if a switch of a GPU differs from torch's default.

    Raises:
        UserError: `MODEL.ATTENTION: cudnn` without a GPU.
    """
    on_gpu, tf32 = device.type == "cuda", uses_tf32(config.amp)
    use_deterministic_algorithms(config.deterministic)
    allow_kernels(config.model.attention, device)
    # The older of torch's two interfaces: torch's compiler reads it, and reading raises after the newer one was set.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = on_gpu and not config.deterministic
    switches = {
        "deterministic algorithms": config.deterministic,
        "TF32": on_gpu and tf32,
        "cuDNN times its algorithms (not with DETERMINISTIC)": torch.backends.cudnn.benchmark,
        "attention by cuDNN alone": config.model.attention == CUDNN,
    }
    used = [name for name, is_on in switches.items() if is_on]
    return [f"Process: {', '.join(used)}"] if used else []
