"""Loading workers: their number, the server that forks them, their end, and errors about workers that fail."""

import atexit
import errno
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from torch.utils.data import DataLoader

from utils.errors import Unavailable, UserError, error_from
from utils.files import TemporaryFolder
from utils.library_compat import Spawn, close_server_pipe, replaced_spawn, set_socket_folder
from utils.processes.entry import repair_standard_streams
from utils.processes.forks import fork_alone
from utils.processes.launch import end_with_parent, inherited_import_path
from utils.signals import TERMINATION_SIGNALS, kill_children, signal_name
from utils.system import CoreShare
from utils.threads import DaemonPool
from utils.torch_compat import loader_workers, release_loader_event, start_loader

POLL_SECONDS = 5.0  # between two checks for workers that have died
START_SECONDS = 30.0  # additional time for the first batch: workers import torch
_DEATH_SECONDS = 1.0  # until the death of a worker is visible
_MAX_WORKERS = 16
_LOW_PRIORITY = 10  # of nice: a tenth of the share of a rank or a worker
_MAIN_PROCESS_CORES = 2
_PRELOADED = ["datasets.loading.loader"]
SHARED_MEMORY_FIX = "enlarge /dev/shm (docker run --shm-size), lower -num_workers, or use no workers: -num_workers=0"
_CAUSES: dict[int, str] = {
    signal.SIGKILL: "probably out of host memory; lower -num_workers, or give the job more host memory",
    signal.SIGBUS: f"probably because /dev/shm is full; {SHARED_MEMORY_FIX}",
}
# descriptors: pipes and batches of a worker; checkpoints and logs
_WORKER_FILES = 8
_OTHER_FILES = 16


def default_num_workers(share: CoreShare, on_gpu: bool) -> int:
    """One worker for each core of this rank's share.

    With a GPU, two cores remain for the threads of the rank, which launch kernels and pin batches. Without one, the
    model and the workers share all cores.
    """
    return max(1, min(_MAX_WORKERS, share.cores - _MAIN_PROCESS_CORES if on_gpu else share.cores))


def start_worker_server(may_fork: bool = False) -> None:
    """Starts Python's fork server, the parent process of the workers, unless it runs.

    The server has no threads: a fork of a process with threads can deadlock. It has the modules of the workers in
    memory, which it imports while the caller continues. Terminals and launchers send signals to all processes. Only the
    rank handles them, because it may need more batches before it ends: they are blocked in the server, and the workers
    inherit that.

    may_fork: on Linux, the server is a fork of this process: it need not import torch again. The process must have no
        GPU, no locks and no log yet.

    Raises UserError: the server cannot open its socket.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        set_socket_folder(_socket_folder().name)
        with inherited_import_path(PYTHONWARNINGS="ignore:resource_tracker"):  # of semaphores that it removes
            resource_tracker.ensure_running()  # it inherits the blocked signals, and unblocks some of them here
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        forks = may_fork and sys.platform == "linux"
        with inherited_import_path(), replaced_spawn(_forking) if forks else nullcontext():
            forkserver.ensure_running()
    except OSError as error:  # such as 'AF_UNIX path too long'
        raise error_from(
            error,
            f"TMPDIR: workers cannot open a socket in {tempfile.gettempdir()} ({error.strerror or error}); "
            "set it to a short path, such as /tmp, or use no workers: -num_workers=0",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


@functools.cache
def _socket_folder() -> TemporaryFolder:
    """As long as this process, in place of multiprocessing's own `pymp-*`, which a killed process leaves."""
    return TemporaryFolder("mp")


def _forking(start_python: Spawn) -> Spawn:
    """Forks this process, unless it has threads, instead of starting Python."""

    def fork(path: str, arguments: list[str], descriptors: list[int]) -> int:
        child = fork_alone()
        if child is None:
            return start_python(path, arguments, descriptors)
        if not child:
            _serve(*descriptors)
        return child

    return fork


def _serve(listener: int, alive: int, *key: int) -> NoReturn:
    """Runs the server as a new process would: with default signal handlers, and no other open files but `sys.stderr`.

    Descriptors: of its socket, of the pipe that closes when no process needs it, and of its key, since Python 3.14.
    """
    try:
        end_with_parent(signal.SIGKILL)
        for number in filter(lambda number: callable(signal.getsignal(number)), signal.valid_signals()):
            signal.signal(number, signal.SIG_DFL)
        kept = {0, 1, 2, sys.stderr.fileno(), listener, alive, *key}
        for opened in set(map(int, os.listdir("/proc/self/fd"))) - kept:
            with suppress(OSError):  # the one that has listed them
                os.close(opened)
        run: Any = forkserver.main
        run(listener, alive, _PRELOADED, **({"authkey_r": key[0]} if key else {}))
    finally:
        os._exit(0)


def start_worker(worker: int) -> None:
    """Runs in a worker."""
    repair_standard_streams()
    end_with_server()


def end_with_server() -> None:
    """Makes a child process of the server exit with it, even if it is stopped, and the server with the rank.

    The server exits when no process has its pipe open (Python 3.11 to 3.14).
    """
    end_with_parent(signal.SIGKILL)
    close_server_pipe()


def call_in_background(function: Callable[..., Any], *arguments: Any) -> connection.Connection:
    """Calls a function in a child process of the server, of low priority, which sends the result, or the UserError."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    start_worker_server()
    server = multiprocessing.get_context("forkserver")
    server.Process(target=_answer, args=(sender, function, arguments), daemon=True).start()
    sender.close()  # the receiver then learns of the death of the process
    kill_children_at_exit()
    return receiver


def _answer(sender: connection.Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    repair_standard_streams()
    end_with_server()
    os.nice(_LOW_PRIORITY)
    try:
        sender.send(function(*arguments))
    except UserError as error:
        sender.send(error)


def kill_children_at_exit() -> None:
    """Kills processes that hang at exit, for which Python would wait without a limit, first: in reverse order."""
    atexit.unregister(kill_children)
    atexit.register(kill_children)


def iter_with_timeout(batches: DataLoader[Any], limit_seconds: float) -> Iterator[Any]:
    """Starts the workers of a DataLoader, or restarts the workers of its last iteration, and returns its batches in
    order. If not exhausted, it kills the workers.

    Raises UserError: a worker was killed, none has answered for `limit_seconds`, or a system resource is exhausted.
    """
    wait = _WorkerWait(batches.timeout, limit_seconds + START_SECONDS)
    try:
        with ExitStack() as reserved:  # a worker that loses its rank while it starts prints a traceback
            for _ in range(_WORKER_FILES * batches.num_workers + _OTHER_FILES):
                reserved.enter_context(open(os.devnull))
        with wait.killing_workers():
            iterator = start_loader(batches, wait.receive)
    except (OSError, EOFError) as error:
        otherwise = f"loading workers cannot start ({error!r}); use no workers: -num_workers=0"
        raise Unavailable(_exhausted_resource(error) or otherwise) from error
    kill_children_at_exit()

    def limited_batches() -> Iterator[Any]:
        with wait.killing_workers():
            wait.attach(iterator)
            for batch in iterator:
                wait.limit_seconds = limit_seconds
                yield batch

    return limited_batches()


@dataclass
class _WorkerWait:
    """Every wait for a message of a worker: a batch, or the answer of one that starts again.

    It counts polls: a rank that was itself stopped, or had no processor, does not count its own pause.

    A thread receives the messages: it waits without a limit for the end of one that has begun, which never comes if the
    worker is killed or stopped while it sends.
    """

    poll_seconds: float
    limit_seconds: float
    _workers: list[BaseProcess] = field(default_factory=list)
    _iterator: Callable[[], Any] = lambda: None
    _thread: DaemonPool = field(default_factory=partial(DaemonPool, 1))

    @contextmanager
    def killing_workers(self) -> Iterator[None]:
        """The workers are killed if the block raises."""
        try:
            yield
        except BaseException:
            for worker in self._workers:
                worker.kill()
            iterator = self._iterator()
            if iterator is not None:  # else it has ended with its workers
                release_loader_event(iterator)
            raise

    def attach(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._workers = loader_workers(iterator)

    def receive(self, iterator: Any, receive: Callable[[], Any]) -> Any:
        """The next message; `receive` raises an error after `poll_seconds` without one."""
        self.attach(iterator)
        seconds = 0.0
        message = self._thread.submit(receive)
        while seconds < self.limit_seconds:
            try:
                return message.result(2 * self.poll_seconds)
            except TimeoutError as error:  # the message has begun, and does not end
                seconds += 2 * self.poll_seconds
                if death := _death_message(self._workers):
                    raise Unavailable(death) from error
            except Exception as error:
                if not str(error).startswith("DataLoader timed out"):
                    problem = _exhausted_resource(error) or _death_message(self._workers)
                    if not problem:
                        raise
                    raise Unavailable(problem) from error
                seconds += self.poll_seconds
                message = self._thread.submit(receive)
        raise Unavailable(
            f"no loading worker has answered for {self.limit_seconds:.0f} s; "
            "check that the disk of DATA.DATA_PATH responds, or raise TIMEOUT_SECONDS"
        )


def _exhausted_resource(error: Exception) -> str | None:
    code = getattr(error, "errno", None)
    if code == errno.EMFILE or str(error).startswith("Too many open files"):
        return "too many open files for loading workers; raise the limit (ulimit -n 65536), or lower -num_workers"
    if code == errno.ENOSPC:
        return f"shared memory is full: no room for loading workers; {SHARED_MEMORY_FIX}"
    return None


def _death_message(workers: list[BaseProcess]) -> str | None:
    """Describes the death of a worker; None if all are alive. torch reports that a worker died, but not why."""
    connection.wait([worker.sentinel for worker in workers], _DEATH_SECONDS)
    dead = [(worker.pid, worker.exitcode) for worker in workers if worker.exitcode is not None]
    if not dead:
        return None
    worker, status = dead[0]
    if status >= 0:
        return f"loading worker {worker} exited with status {status}; for details, use no workers: -num_workers=0"
    cause = _CAUSES.get(-status, "perhaps by a damaged file; for details, use no workers: -num_workers=0")
    return f"loading worker {worker} was killed by {signal_name(-status)}, {cause}"
