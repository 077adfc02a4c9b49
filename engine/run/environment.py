"""Records the environment of a run: versions, commit, hardware, hosts, and variables that contain no credentials."""

import os
import platform
import shlex
import subprocess
import sys
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

import torch

from engine.run.facts import Environment, read_environment
from engine.run.log import RunLogger
from utils.device import device_name
from utils.distributed import ProcessContext, gather_objects
from utils.errors import hide_passwords

PACKAGES = (  # the required ones, and decoders, which may change pixels
    "torch", "torchvision", "timm", "pydantic", "pyyaml", "tqdm", "numpy", "pillow", "safetensors",
    "nvidia-nvimgcodec-cu13", "torchcodec",
)  # fmt: skip
_VARIABLES = (  # exact names from documentation: another variable with such a prefix may contain a password
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "GOMP_SPINCOUNT", "LD_PRELOAD", "MASTER_ADDR", "MASTER_PORT",
    "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_CROSS_NIC", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "TORCHELASTIC_RESTART_COUNT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
)  # fmt: skip
_DRIVER = Path("/sys/module/nvidia/version")  # nvidia-smi may take seconds
_CLONE = Path(__file__).parents[2]
_GIT_SECONDS = 5.0


def record_environment(context: ProcessContext, logger: RunLogger, resumed: Path | None = None) -> None:
    """Records the environment, and warns if it differs from the last start of the run in `resumed`; collective."""
    devices = gather_objects(device_name(context.device), context)
    if not context.is_main:
        return
    found = _versions(on_gpu=context.device.type == "cuda") | {"commit": _commit()}
    found["devices"] = " and ".join(f"{number} x {name}" for name, number in Counter(devices).items())
    parts = {name: str(part) for name, part in found.items() if part}
    variables = {name: hide_passwords(os.environ[name]) for name in _VARIABLES if name in os.environ}
    before = (read_environment(resumed) if resumed else {}).get("parts", parts)
    if changed := [name for name in parts | before if parts.get(name) != before.get(name)]:
        changes = ", ".join(f"{name} {before.get(name, 'none')} -> {parts.get(name, 'none')}" for name in changed)
        logger.warn(f"Resume: the environment has changed, so the resume may not be bit-exact: {changes}")
    logger.record(
        Environment(
            command=hide_passwords(shlex.join(sys.orig_argv)),
            parts=parts,
            hosts=list(context.hosts or [context.host]),
            variables=variables,
        )
    )


def _versions(on_gpu: bool) -> dict[str, object]:
    """By name; False or None if a version is not known."""
    found: dict[str, object] = {"Python": platform.python_version()}
    found |= {name: package.version for name in PACKAGES for package in reversed([*distributions(name=name)])}
    if on_gpu:
        found |= {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
        found["NCCL"] = torch.distributed.is_nccl_available() and ".".join(map(str, torch.cuda.nccl.version()))
        found |= {"driver": _DRIVER.exists() and _DRIVER.read_text().strip(), "host": device_name(torch.device("cpu"))}
    return found


def _commit() -> str:
    """The commit of the program's clone, with '-dirty' if a tracked file differs; '' if git does not tell in time.

    It runs no hook, writes no index, and ignores repositories around the clone and those that variables name.
    """
    clone = [f"--git-dir={_CLONE / '.git'}", f"--work-tree={_CLONE}", "--no-optional-locks", "-c", "core.fsmonitor="]
    command = ["git", *clone, "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--no-renames"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        status = subprocess.run(command, env=variables, capture_output=True, timeout=_GIT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    head, *others = status.decode(errors="replace").splitlines()
    return head.removeprefix("# branch.oid ") + "-dirty" * any(not line.startswith("#") for line in others)
