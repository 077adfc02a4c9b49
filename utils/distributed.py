"""The process context of a run, of one process or of the processes that a launcher started; and collectives."""

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from utils.device import check_runs_kernels, find_shortage, visible_gpus
from utils.errors import Unavailable, UserError
from utils.processes.launch import (
    LOOPBACK,
    has_launcher,
    loopback_listener,
    open_loopback_store,
    report_lost_rank,
    torchrun_variables,
)
from utils.signals import Interrupted, PendingSignal, exit_now, handle_signals, raise_on_signals
from utils.system import CoreShare, own_share, share_on_host
from utils.threads import DaemonPool, wait_for

T = TypeVar("T")

_UNKNOWN = "unknown"
_NCCL_EXTRA_SECONDS = 60  # after its own timeout NCCL aborts the process; gloo's raises an error
_SIGN_OF_LIFE_SECONDS = 1.0
_ATTEMPT_SECONDS = 3.0  # of a connection to the store
_STORE_SECONDS = 3.0  # the store answers within this time, unless the network is cut
_EXIT_SECONDS = 20.0  # a rank that has failed exits within this time: its exit may wait for a GPU or a thread
_LOST_CONNECTION = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exit|(?P<timeout>timed out waiting \d+ms|operation timeout)"
    r"|no route to host|(network|host) is (unreachable|down)|connection timed out",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ProcessContext:
    """One process of a run. `local_*` are the rank and the number of processes on this host.

    is_counted: the launcher did not tell `local_world_size`, or not all ranks: the ranks with one host name and boot id
        were counted.
    hosts: the name of each rank's host; empty in a run of one process without a launcher.
    core_share: CPU cores of this rank; by default all that this process may use.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    hosts: tuple[str, ...] = ()
    core_share: CoreShare = field(default_factory=own_share)
    is_counted: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks see the same files. Counted ranks may be in containers of one name."""
        return self.world_size == (1 if self.is_counted else self.local_world_size)

    @property
    def host(self) -> str:
        return self.hosts[self.rank] if self.hosts else socket.gethostname()

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.hosts[rank]})"


def single_process(wanted: str | None = None) -> ProcessContext:
    """The context of a run of one process, on the first visible GPU or else on the CPU. wanted: of -device.

    Raises UserError as `visible_gpus` and `check_runs_kernels`; the GPU is full.
    """
    device = torch.device("cpu")
    if visible_gpus(wanted):
        device = torch.device("cuda:0")
        with _report_full_gpu():
            check_runs_kernels(device)
    return ProcessContext(0, 0, 1, 1, device)


@contextmanager
def process_group(wanted: str | None = None, limit_seconds: float = 600) -> Iterator[ProcessContext]:
    """Joins the launcher's processes and yields the context of this one. At its end it waits for all processes.

    Call `exit_with_launcher` before it. wanted: of -device. limit_seconds: how long this process waits for another one
    that does not respond.

    A process that fails closes its connections when it exits; then the collectives of the others fail, or else at their
    timeout. Of processes that raise a UserError, one prints it.
    Raises UserError: the processes cannot connect, there are fewer GPUs than processes, only some processes have one,
    a GPU is full or not usable, or another process has ended or does not respond.
    """
    place = torchrun_variables()
    os.environ.update(place)
    if place["MASTER_ADDR"] in LOOPBACK:  # without an interface, gloo listens on the address of the host's name
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, local_rank, world_size = (int(place[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    store = connect_store(place, limit_seconds)
    with _report_failure(store, rank, local_rank, limit_seconds):
        meet = partial(_meet, store, rank, world_size, limit_seconds)
        host_ids = meet("host", _host_id())
        hosts = tuple(host_id.split()[0] for host_id in host_ids)
        on_host = [other for other, host_id in enumerate(host_ids) if host_id == host_ids[rank]]
        is_counted = _UNKNOWN in meet("local world size", place.get("LOCAL_WORLD_SIZE", _UNKNOWN))  # on any rank
        local_world_size = len(on_host) if is_counted else int(place["LOCAL_WORLD_SIZE"])
        os.environ["LOCAL_WORLD_SIZE"] = str(local_world_size)
        with _report_full_gpu():
            device = _claim_device(store, local_rank, local_world_size, wanted)
            _check_devices(meet("device", device.type), hosts)
            options: dict[str, Any] = {"backend": "gloo", "timeout": timedelta(seconds=limit_seconds)}
            if device.type == "cuda":
                limit = timedelta(seconds=limit_seconds + _NCCL_EXTRA_SECONDS)
                options = {"backend": "nccl", "timeout": limit, "device_id": device}
            dist.init_process_group(store=store, rank=rank, world_size=world_size, **options)
        raise_on_signals()
        cores = share_on_host(store, rank, on_host)
        yield ProcessContext(rank, local_rank, world_size, local_world_size, device, hosts, cores, is_counted)
        dist.barrier()  # an early exit would close connections that other processes still use
    dist.destroy_process_group()


@contextmanager
def _report_failure(store: dist.Store, rank: int, local_rank: int, limit_seconds: float) -> Iterator[None]:
    """Turns the error of a lost connection into an Unavailable. Of ranks that raise a UserError, one prints it."""
    try:
        yield
    except (Interrupted, RuntimeError, UserError) as error:
        if lost := _has_lost_connection(error):
            problem = f"lost its connection ({lost[0]}) to another rank, which has ended"
            if lost["timeout"]:
                problem = f"waited {limit_seconds:g} s (TIMEOUT_SECONDS) for another rank, which hangs or is stopped"
            name = f"rank {rank} ({socket.gethostname()})"
            cut = f"and received {error}" if isinstance(error, Interrupted) else "or the network is cut"
            failure: UserError = Unavailable(f"{name} {problem}, {cut}")
        elif isinstance(error, UserError):
            failure = error
        else:
            raise
        handle_signals(PendingSignal().receive)  # a launcher that has noticed the failure ends the other ranks
        timer = threading.Timer(_EXIT_SECONDS, exit_now, (failure.status,))
        timer.daemon = True
        timer.start()
        if lost and has_launcher():
            report_lost_rank(str(failure), timed_out=bool(lost["timeout"]))
            failure.is_printed = True
        else:
            thread = DaemonPool(1)
            number = 0  # of the failures so far; 0 if the network is cut: the store is silent
            try:
                number = thread.submit(store.add, "failures", 1).result(_STORE_SECONDS)
            except (dist.DistError, TimeoutError):
                time.sleep(min(0.5 * local_rank, 3.0))  # a launcher terminates the other ranks when one has ended
            if rank == 0:  # it may own the store
                time.sleep(1.0)
            failure.is_printed = number > 1
        raise failure from error


def _has_lost_connection(error: BaseException) -> re.Match[str] | None:
    """The words by which torch tells that another rank closed its connections, or did not answer; None without them.

    The launcher's signal may arrive while such an error is handled.
    """
    cause = error.__context__ if isinstance(error, Interrupted) else error
    return _LOST_CONNECTION.search(str(cause)) if isinstance(cause, RuntimeError) else None


def _host_id() -> str:
    """The name of this host and the id of its boot: the names of two hosts may be equal."""
    boot_id = ""
    with suppress(OSError):  # not on macOS
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot_id}"


def _meet(
    store: dist.Store, rank: int, world_size: int, limit_seconds: float, subject: str, value: str
) -> tuple[str, ...]:
    """The values of all ranks, after each has come. Raises Unavailable: a rank has not come within the limit.

    Rank 0 reads the value of each rank, and the others its list: one server answers all of them.
    """
    keys = [f"{subject} of rank {other}" for other in range(world_size)]
    of_all = f"{subject} of all ranks"
    store.set(keys[rank], value)

    def describe() -> str:
        of_ranks = keys[:1] if rank else keys
        absent = [str(other) for other, key in enumerate(of_ranks) if not store.check([key])]
        waits = f"rank {', '.join(absent)}" if absent else "the ranks that rank 0 names"
        return f"WORLD_SIZE is {world_size}: rank {rank} waits for {waits}"

    awaited = [of_all] if rank else keys
    if not wait_for(
        lambda: store.check(awaited),
        limit_seconds,
        None if rank else lambda: f"{describe()}, at most {limit_seconds:g} s",
    ):
        raise Unavailable(
            f"{describe()}, for {limit_seconds:g} s now; read the output there, and "
            "compare RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all ranks"
        )
    if rank == 0:
        store.set(of_all, json.dumps([text.decode() for text in store.multi_get(keys)]))
    return tuple(json.loads(store.get(of_all)))


def _check_devices(types: Sequence[str], hosts: Sequence[str]) -> None:
    """Raises UserError: some ranks have a GPU and others have none, and they would wait for each other."""
    for other, of_other in enumerate(types):
        if of_other != types[0]:
            raise UserError(
                f"rank 0 ({hosts[0]}) uses {types[0]}, but rank {other} ({hosts[other]}) uses {of_other}; "
                "start all with the same -device and with GPUs on every host, or on none"
            )


def connect_store(place: Mapping[str, str], limit_seconds: float) -> dist.Store:
    """The key-value store of all ranks, separate for each restart of the run. place: of `torchrun_variables`.

    torchrun's agents share one store over all restarts, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set; then each
    start has its own. Agents that joined a run at different times have counted different numbers of restarts.
    Raises Unavailable: the store cannot be opened, or another program has its port.
    """
    rank = place["RANK"]
    address = place["MASTER_ADDR"]
    port = int(place["MASTER_PORT"])
    has_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # of torchrun: one of them owns the store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if has_agents else "0"
    is_server = rank == "0" and not has_agents

    def accepts() -> bool:
        socket.create_connection((address, port), timeout=_ATTEMPT_SECONDS).close()
        return True

    def connect() -> dist.Store:
        if is_server:
            if address in LOOPBACK:
                return open_loopback_store(loopback_listener(address, port), limit_seconds)
        elif not wait_for(accepts, limit_seconds):  # torch would log each attempt at length
            accepts()  # raises the reason
        timeout = timedelta(seconds=limit_seconds)
        return dist.TCPStore(address, port, None, is_server, timeout, wait_for_workers=False, multi_tenant=True)

    waits = f"rank {rank} waits for rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT), at most {limit_seconds:g} s"
    thread = DaemonPool(1)  # torch waits without a limit for an answer
    store = thread.submit(connect)
    own_limit = limit_seconds + 3 * _ATTEMPT_SECONDS  # `connect` reaches its limit first
    if not wait_for(store.done, own_limit, (lambda: waits) if place["LOCAL_RANK"] == "0" else None):
        problem = f"another program listens at {address}:{port}: it does not answer rank {rank} as rank 0 does"
    elif isinstance(error := store.exception(), OSError | dist.DistError):
        reason = getattr(error, "strerror", None) or str(error).rpartition("message: ")[2]
        problem = f"rank {rank} cannot {'open' if is_server else 'connect to'} {address}:{port} ({reason})"
    else:
        return dist.PrefixStore(f"attempt {attempt}", store.result())
    raise Unavailable(f"MASTER_ADDR, MASTER_PORT: {problem}; set them to the host of rank 0 and a free port on it")


def all_reduce_sum(tensor: Tensor, context: ProcessContext) -> Tensor:
    """Sums `tensor` over all processes, in place, and returns it."""
    if context.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def broadcast_object(value: T, context: ProcessContext, source: int = 0) -> T:
    """The `value` of the rank `source` on every process, sent as a pickle."""
    if context.world_size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def gather_objects(value: T, context: ProcessContext) -> list[T]:
    """The values of all processes in the order of ranks, on every process, sent as pickles."""
    if context.world_size == 1:
        return [value]
    values: list[Any] = [None] * context.world_size
    dist.all_gather_object(values, value)
    return values


def gather_to_main(tensor: Tensor, context: ProcessContext) -> list[Tensor] | None:
    """The tensors of all processes, of one shape, in the order of ranks; None except on the main process."""
    if context.world_size == 1:
        return [tensor]
    gathered = [torch.empty_like(tensor) for _ in range(context.world_size)] if context.is_main else None
    dist.gather(tensor, gathered, dst=0)
    return gathered


def work_while_others_wait(work: Callable[[], T], context: ProcessContext) -> T:
    """The result of `work`, after all processes have done theirs, however long one of them takes.

    Every second they tell each other that they are alive, so that none reaches the timeout of a collective.
    """
    if context.world_size == 1:
        return work()
    thread = DaemonPool(1)
    result = thread.submit(work)
    num_done = 0
    while num_done < context.world_size:
        wait([result], timeout=_SIGN_OF_LIFE_SECONDS)
        num_done = int(all_reduce_sum(torch.tensor(int(result.done()), device=context.device), context))
    return result.result()


def call_on_main(call: Callable[[], T], context: ProcessContext) -> T | None:
    """The result of `call` on the main process, whose UserError every process raises; None on the others.

    `call` may take any time, see `work_while_others_wait`.
    """

    def outcome() -> tuple[T | None, UserError | None]:
        try:
            return (call() if context.is_main else None), None
        except UserError as error:
            return None, error

    result, error = work_while_others_wait(outcome, context)
    if error := broadcast_object(error, context):
        error.is_shared = True
        raise error
    return result


def find_on_main(find: Callable[[], T], context: ProcessContext) -> T:
    """`call_on_main`, whose result every process gets."""
    return broadcast_object(call_on_main(find, context), context)  # type: ignore[return-value]


class RankExchange:
    """The greatest request and the times of all ranks, one call late, so that ranks do not wait for each other.

    A rank waits only for one that is more than a call behind, at most `timeout_seconds`. The exchange uses gloo between
    hosts, in parallel with the collectives of the devices.
    """

    def __init__(self, context: ProcessContext, timeout_seconds: float) -> None:
        self._rank = context.rank
        self._ranks = context.world_size
        self._group: Any = None
        self._pending: tuple[Any, Tensor, bool] | None = None  # the previous call
        if context.world_size > 1:
            try:
                dist.barrier()  # unlike it, `new_group` waits on for a rank that a signal has ended
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            except RuntimeError as error:  # NCCL may use another network than gloo
                if _has_lost_connection(error):
                    raise
                if "Too many open files" in str(error):
                    raise Unavailable(
                        "too many open files for the connections between ranks; raise the limit (ulimit -n 65536)"
                    ) from error
                raise Unavailable(
                    f"the hosts of this run cannot reach each other ({error}); "
                    "set GLOO_SOCKET_IFNAME to the name of their common network interface"
                ) from error

    def swap(self, request: int, seconds: Sequence[float] | None = None) -> tuple[int, Tensor | None]:
        """Sends the request; returns the greatest request of the previous call, 0 at first, and the times of all ranks.

        All ranks must call it equally often. In a run of one process the results are of this call.

        seconds: of this rank in a step: waiting for data, in the forward pass; all ranks give them, or none. The times
        (ranks, 2) are None if the previous call gave none.
        """
        values = torch.zeros(1 + 2 * self._ranks, dtype=torch.float64)  # every rank fills its own two places
        values[0] = request
        if seconds is not None:
            values[1 + 2 * self._rank : 3 + 2 * self._rank] = torch.tensor(seconds, dtype=torch.float64)
        has_seconds = seconds is not None
        if self._group is not None:
            previous = self._pending
            work = dist.all_reduce(values, dist.ReduceOp.MAX, self._group, async_op=True)
            self._pending = work, values, has_seconds
            if previous is None:
                return 0, None
            work, values, has_seconds = previous
            work.wait()
        return int(values[0]), values[1:].view(-1, 2) if has_seconds else None


@contextmanager
def _report_full_gpu() -> Iterator[None]:
    """CUDA and NCCL allocate GPU memory when they start."""
    try:
        yield
    except RuntimeError as error:
        shortage = find_shortage(error)
        if not (shortage and shortage.on_gpu):
            raise
        raise Unavailable(
            f"out of GPU memory at the start ({shortage.reason}); "
            "another process may use the GPU: end it (see nvidia-smi), or set CUDA_VISIBLE_DEVICES to other GPUs"
        ) from error


def _claim_device(store: dist.Store, local_rank: int, local_world_size: int, wanted: str | None = None) -> torch.device:
    """A GPU that no other process uses, or the CPU if no GPU is visible or wanted; raises UserError if one uses it.

    Some launchers make one GPU visible to each process, others make all GPUs visible to all processes.
    """
    gpus = visible_gpus(wanted)
    if gpus == 0:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    check_runs_kernels(device)
    identity = torch.cuda.get_device_properties(device).uuid
    if store.add(f"processes on {identity}", 1) > 1:
        raise Unavailable(
            f"GPUs: {local_world_size} processes on this host, but {gpus} visible to rank {os.environ['RANK']}; "
            "start one process per GPU"
        )
    torch.cuda.set_device(device)
    return device
