"""`-devices 8xH100 -nodes 4`: the GPUs, their links, and the network."""

import re
from dataclasses import dataclass

import torch

from engine.run.mfu.device_peaks import PEAKS, Peaks, model_name, peak_flops_per_second
from utils.errors import UserError, did_you_mean

_SHORT = {"A100": "A100 SXM4", "V100": "V100 SXM2", "RTX6000ADA": "RTX 6000 ADA GENERATION"}
_MAX_DEVICES = 2**20
_GRAMMAR = "give the number and the name of the GPUs of a host, such as 8xH100"


@dataclass(frozen=True)
class Cluster:
    """Hosts with equal GPUs.

    Attributes:
        device: key of `PEAKS`. per_node: GPUs of a host.
        memory_bytes: of a GPU, for tensors: the datasheet's GB as 1e9 bytes. A GPU has 7% more (a GB of a datasheet is
            2**30 bytes), which the CUDA context, NCCL and fragmentation take.
        link: bytes/s to the GPUs of the same host, in one direction.
        network: bytes/s of one GPU's share in the network of its host.
    """

    device: str
    per_node: int
    nodes: int
    memory_bytes: float
    memory_bytes_per_second: float
    link: float
    network: float

    @property
    def size(self) -> int:
        return self.per_node * self.nodes

    def peak(self, dtype: torch.dtype, tf32: bool) -> float:
        """FLOP/s of one GPU. Raises UserError if the datasheets have no figure."""
        peak = peak_flops_per_second(self.device, dtype, tf32)
        if peak is None:
            name = str(dtype).removeprefix("torch.")
            other = "-amp_dtype=float16" if dtype == torch.bfloat16 else "-amp or AMP.TF32=true"
            raise UserError(f"-devices {self.device}: its datasheet has no speed for {name}; use {other}")
        return peak

    def __str__(self) -> str:
        hosts = f"{self.nodes} hosts x " if self.nodes > 1 else ""
        return f"{hosts}{self.per_node} x {self.device}"


def parse_cluster(devices: str, nodes: int, network_gbit: float | None = None) -> Cluster:
    """The cluster of `-devices 8xH100` (or H100: one) and `-nodes 4`.

    A size in the name, as in A100-40GB, replaces the size in the table. `network_gbit`: of a host, Gbit/s; None: the
    table's share of a GPU.

    Raises:
        UserError: wrong grammar, or a GPU without figures.
    """
    match = re.fullmatch(r"(?:(\d{1,6})\s*[xX*]\s*)?([A-Za-z][\w .-]*)", devices.strip())
    if not match or (match[1] and int(match[1]) < 1):
        raise UserError(f"-devices {devices[:80]}: {_GRAMMAR}")
    per_node = int(match[1] or 1)
    if per_node * nodes > _MAX_DEVICES:
        raise UserError(f"-devices {devices[:80]} -nodes {nodes}: more than {_MAX_DEVICES:,} devices; {_GRAMMAR}")
    device, board = find_device(match[2])
    memory = re.search(r"(\d+)\s*GB?$", match[2], re.IGNORECASE)
    share = network_gbit / per_node if network_gbit else board.network_gbit_per_second
    return Cluster(
        device,
        per_node,
        nodes,
        memory_bytes=1e9 * (int(memory[1]) if memory else board.memory_gb),
        memory_bytes_per_second=1e9 * board.memory_gb_per_second,
        link=1e9 * board.link_gb_per_second,
        network=1e9 / 8 * share,
    )


def find_device(name: str) -> tuple[str, Peaks]:
    """The entry of the table for a name such as H100, A100-SXM4-40GB, RTX4090, or the name that `torch.cuda` gives.

    Raises:
        UserError: the table has no such GPU; the message lists the known ones.
    """
    known = {key.replace(" ", ""): key for key in PEAKS} | _SHORT
    wanted = model_name(name).replace(" ", "").upper()
    key = known.get(wanted) or known.get(f"RTX{wanted}")
    if key is None:
        hint = did_you_mean(wanted, known)
        raise UserError(f"-devices: no figures for {name[:80]}{hint} (known: {', '.join(PEAKS)})")
    return key, PEAKS[key]
