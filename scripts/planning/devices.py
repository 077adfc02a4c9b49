"""`-devices 8xH100 -nodes 4`: the GPUs, their links, and the network."""

import re
from typing import NamedTuple

import torch

from engine.precision.policy import Precision
from engine.run.mfu.device_peaks import PEAKS, Peaks, model_name, peak_flops_per_second
from utils.errors import UserError, did_you_mean

_SHORT = {"A100": "A100 SXM4", "V100": "V100 SXM2", "RTX6000ADA": "RTX 6000 ADA GENERATION"}


class Cluster(NamedTuple):
    """Hosts with equal GPUs.

    device: key of `PEAKS`. per_node: GPUs of a host.
    memory_bytes: of a GPU, for tensors: the datasheet's GB as 1e9 bytes. A GPU has 7% more (a GB of a datasheet is
        2**30 bytes), which the CUDA context, NCCL and fragmentation take.
    network: bytes/s of one GPU's share in the network of its host.
    """

    device: str
    gpu: Peaks
    per_node: int
    nodes: int
    memory_bytes: float
    network: float

    @property
    def size(self) -> int:
        return self.per_node * self.nodes

    def peak(self, precision: Precision) -> float:
        """FLOP/s of one GPU. Raises UserError if the datasheets have no figure."""
        peak = peak_flops_per_second(self.device, precision.dtype, precision.tf32)
        if peak is None:
            name = str(precision.dtype).removeprefix("torch.")
            other = "-amp_dtype=float16" if precision.dtype == torch.bfloat16 else "-amp or AMP.TF32=true"
            raise UserError(f"-devices {self.device}: its datasheet has no speed for {name}; use {other}")
        return peak

    def __str__(self) -> str:
        hosts = f"{self.nodes} hosts x " if self.nodes > 1 else ""
        return f"{hosts}{self.per_node} x {self.device}"


def parse_cluster(devices: str, nodes: int, network_gbit: float | None = None, origin: str = "-devices") -> Cluster:
    """The cluster of `-devices 8xH100` (or H100: one) and `-nodes 4`.

    A GPU has a name such as H100, A100-40GB, RTX4090, or the name that `torch.cuda` gives. A size in the name replaces
    the size in the table.

    Args:
        network_gbit: of a host, Gbit/s; None: the table's share of a GPU.
        origin: the flag with `devices`.

    Raises:
        UserError: wrong grammar, or a GPU without figures; the message lists the known ones.
    """
    match = re.fullmatch(r"(?:([1-9]\d{0,3})\s*[xX*]\s*)?([A-Za-z][\w .-]*)", devices.strip())
    if not match:
        raise UserError(f"{origin} {devices[:80]}: give the number and the name of the GPUs of a host, such as 8xH100")
    known = {key.replace(" ", ""): key for key in PEAKS} | _SHORT
    wanted = model_name(match[2]).replace(" ", "").upper()
    device = known.get(wanted) or known.get(f"RTX{wanted}")
    if device is None:
        hint = did_you_mean(wanted, known)
        raise UserError(f"{origin}: no figures for {match[2][:80]}{hint} (known: {', '.join(PEAKS)})")
    gpu, per_node = PEAKS[device], int(match[1] or 1)
    memory = re.search(r"(\d+)\s*GB?$", match[2], re.IGNORECASE)
    share = network_gbit / per_node if network_gbit else gpu.network_gbit_per_second
    return Cluster(device, gpu, per_node, nodes, 1e9 * (int(memory[1]) if memory else gpu.memory_gb), 1e9 / 8 * share)
