"""Opening files that a user or a data set names, temporary folders of this process, locks by `flock`, atomic writes.

An atomic write writes a temporary file, syncs it and renames it.
"""

import errno
import fcntl
import functools
import hashlib
import io
import json
import logging
import math
import os
import re
import shlex
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from utils.errors import Unavailable, UserError, error_from
from utils.notes import RUN_LOG
from utils.threads import wait_for

if TYPE_CHECKING:  # imported late: it takes 500 MB, and `atomic_write` does not need it
    import torch

# a file that the owner of a folder locks within this time
_OWNER = "ampvit-owner"
_OWNER_SECONDS = 60.0


def _remove_folder(name: str, owner: IO[str]) -> None:
    owner.close()  # first: the process may have as many open files as it can
    shutil.rmtree(name, ignore_errors=True)


class TemporaryFolder:
    """A new folder `ampvit-KIND-*`, which `cleanup()` removes, or at the latest the exit of this process.

    After SIGKILL, the next one that the user creates on this host removes it: its owner no longer locks it.
    """

    def __init__(self, kind: str) -> None:
        for owner in Path(tempfile.gettempdir()).glob(f"ampvit-*/{_OWNER}"):
            with suppress(OSError), open_regular_file(owner) as file:
                is_own = file.read() == socket.gethostname().encode() and owner.parent.stat().st_uid == os.getuid()
                if is_own and time.time() - os.fstat(file.fileno()).st_mtime > _OWNER_SECONDS:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(owner.parent, ignore_errors=True)
        self.name = tempfile.mkdtemp(prefix=f"ampvit-{kind}-")
        self._owner = open(Path(self.name, _OWNER), "x")  # noqa: SIM115 - open as long as the folder exists
        # After the sockets of multiprocessing, which removes them at exit; not in a fork.
        self._remove = Finalize(self, _remove_folder, (self.name, self._owner), exitpriority=-100)
        self._owner.write(socket.gethostname())
        self._owner.flush()
        with suppress(OSError):  # without flock, the folder stays after SIGKILL
            fcntl.flock(self._owner, fcntl.LOCK_SH)

    def cleanup(self) -> None:
        self._remove()


def expand_home(text: str) -> str:
    """A path whose first folder is ~ or ~USER, expanded; another text is unchanged. Shells leave it in -flag=~/x."""
    return os.path.expanduser(text) if text == "~" or (text.startswith("~") and "/" in text) else text


def absolute_file(path: str) -> str:
    """The absolute path if there is such a file or folder; another text, such as a name, is unchanged."""
    return os.path.abspath(path) if os.path.exists(path) else path


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    values = None
    with suppress(OSError, ValueError, RecursionError), open_regular_file(path) as file:
        values = json.load(file)
    return values if isinstance(values, dict) else {}


def indented_json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


def without_none(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if value is not None}


def open_regular_file(path: Path | str) -> io.BufferedReader:
    """Opens a file for reading bytes. Raises OSError for a folder, a pipe, which would block, and a device."""
    return os.fdopen(open_descriptor(path)[0], "rb")


def read_regular_file(path: str, max_bytes: int) -> tuple[bytes, int]:
    """The content of a file, and its size; without content if the size is more than `max_bytes`.

    Raises OSError as `open_regular_file`, which takes twice as long.
    """
    descriptor, size = open_descriptor(path)
    with open(descriptor, "rb", buffering=0) as file:
        content = file.readall() if size <= max_bytes else b""
    return content, size


def open_descriptor(path: Path | str) -> tuple[int, int]:
    """The descriptor and the size of a file. Raises as `open_regular_file`, which takes twice as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, status.st_size


def file_state(path: str) -> int:
    """A hash of size, modification time, change time and inode: another one once the file is replaced, and of a copy.

    `cp -p`, `rsync -t` and `tar` restore the modification time; no program sets the change time. A link to another file
    and a renamed folder change the inode. There may be no file.
    """
    with suppress(OSError):
        status = os.stat(path)
        state = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        return int.from_bytes(hashlib.blake2b(repr(state).encode(), digest_size=8).digest())
    return 0


def own_file(path: str, flags: int) -> int:
    """The opener, for `open`, of each file that is appended to or changed in place.

    Raises UserError for a link, whose target would be changed, for a pipe, which would block, for a device, and for a
    read-only file of this user.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except PermissionError:
        if os.path.exists(path) and os.stat(path).st_uid == os.geteuid():
            raise UserError(
                f"{path}: is read-only; make the files of its folder writable: "
                f"chmod -R u+w {shlex.quote(str(Path(path).parent))}"
            ) from None
        raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise _not_own(path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_own(path)
    return descriptor


_ACCESS = "make it and its folder readable and writable"
_FIXES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f unlimited)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOENT: "it or its folder is missing: check the path, or move it back",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "make its file system writable",
}


def file_fix(problem: object) -> str:
    """The remedy for a file that cannot be read or written, by the error or its text."""
    fixes = (fix for number, fix in _FIXES.items() if os.strerror(number) in str(problem))
    return next(fixes, "check its disk")


def make_own_folder(path: Path, parents: bool = True) -> None:
    """Creates a folder of a run, with those above it if `parents`, unless it exists. Raises UserError for a link."""
    if path.is_symlink():
        raise _not_own(path)
    path.mkdir(parents=parents, exist_ok=True)


def _not_own(path: Path | str) -> UserError:
    kind = f"a link to {os.readlink(path)}" if os.path.islink(path) else "a pipe or a device"
    return UserError(f"{path}: is {kind}; a run changes its own files only: delete this one, and start again")


def unshared(path: Path) -> Path:
    """The path of a file that will be appended to. A file with several hard links, of `cp -al` or DVC, is copied."""
    with suppress(FileNotFoundError), open(path, "rb", opener=own_file) as file:
        if os.fstat(file.fileno()).st_nlink > 1:
            atomic_write(path, file.read())
    return path


def _remove_lock_of_other_folder(path: Path, folder: str) -> None:
    """Removes a lock that names another folder: a copy by hard links has the file that the original's run has locked.

    The number of links does not tell: the copied folder, whose run continues, has the same file. folder: of `path`.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # one process after the other
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError), open(path, "rb", opener=own_file) as file:
            named = re.search(rb"^folder \d+$", file.read(_MAX_LOCK_BYTES), re.MULTILINE)
            if named and named[0] != folder.encode():
                path.unlink()
    finally:
        os.close(descriptor)


_MAX_LOCK_BYTES = 200


@contextmanager
def locked(path: Path, wait_seconds: float = math.inf, fix: str = "") -> Iterator[bool]:
    """Creates the file `path`, and locks it until the block or the process ends. The file names the process.

    Yields whether it is locked: a file system without `flock`, such as Lustre mounted without `-o flock`, has no locks;
    a warning says so.
    Raises UserError: another process has locked it for `wait_seconds`, or as `own_file`; OSError: the file cannot be
    created or locked.
    """
    operation = fcntl.LOCK_EX if wait_seconds == math.inf else fcntl.LOCK_EX | fcntl.LOCK_NB
    # Without the device, whose number differs between the hosts of a network disk. Hard links stay on a device.
    folder = f"folder {path.parent.stat().st_ino}"
    _remove_lock_of_other_folder(path, folder)
    with open(path, "a+b", buffering=0, opener=own_file) as file:
        has_locks = True

        def try_lock() -> bool:
            nonlocal has_locks
            try:
                fcntl.flock(file, operation)
            except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
                return False
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
                has_locks = False
                _warn_without_locks(path.parent)
            return True

        if not (try_lock() or wait_for(try_lock, wait_seconds)):
            holder = os.pread(file.fileno(), _MAX_LOCK_BYTES, 0).decode(errors="replace").partition("\n")[0]
            holder = holder or "another process"
            raise Unavailable(f"{path.parent}: is in use by {holder}; {fix}")
        with suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n{folder}\n".encode())
        yield has_locks


@functools.cache
def _warn_without_locks(folder: Path) -> None:
    logging.getLogger(RUN_LOG).warning(
        f"nothing is locked, since the file system of {folder} has no flock; let one run at a time write there"
    )


def atomic_save(path: Path, content: Any, previous: Path | None = None) -> None:
    """Writes `torch.save(content)` so that `path` is at any moment either the old file or the new one.

    The old file is kept as `previous`, if given.
    Raises UserError: the file cannot be written. The old file is unchanged, and no temporary file is left.
    """
    import torch

    try:
        with open_atomically(path, "wb") as file:
            writer = _Writer(file)
            try:
                torch.save(content, writer)  # type: ignore[arg-type]  # it needs `write` and `flush` only
            except RuntimeError as error:
                raise (writer.error or error) from None
            file.flush()
            os.fsync(file.fileno())
            if previous and path.exists():
                link_or_copy(path, previous)
        fsync_path(path.parent)
    except OSError as error:
        raise error_from(
            error, f"{path}: cannot be saved: {error.strerror}; {file_fix(error)} and start again"
        ) from None


class _Writer:
    """A file object for `torch.save` that stores an OSError, which torch would hide."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.flush = file.flush
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise


def atomic_write(path: Path, content: str | bytes, is_durable: bool = True) -> None:
    """Writes a file as `open_atomically` does."""
    with open_atomically(path, "w" if isinstance(content, str) else "wb", is_durable) as file:
        file.write(content)


@contextmanager
def open_atomically(path: Path, mode: Literal["w", "wb"] = "w", is_durable: bool = True) -> Iterator[IO[Any]]:
    """A file, text as UTF-8, that replaces `path` if the block ends without an error: never a part of it.

    is_durable: waits for the disk; else a power cut shortly afterwards may leave an empty file.
    Raises OSError: the file cannot be written. The old file is unchanged, and no temporary file is left.
    """
    temporary = temporary_path(path)
    encoding, errors, newline = ("utf-8", "surrogateescape", "") if mode == "w" else (None, None, None)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)  # it may be moved meanwhile
    try:
        temporary.unlink(missing_ok=True)  # of a killed process with this id, or a link
        with open(temporary, mode.replace("w", "x"), encoding=encoding, errors=errors, newline=newline) as file:
            yield file
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary.name, dir_fd=folder)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a failed write() has none
        raise
    finally:
        os.close(folder)


def temporary_path(path: Path) -> Path:
    """A path of this process. Several processes may write the same file, with equal ids in two containers."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def remove_temporary_of(path: Path) -> None:
    """Removes the temporary files of killed processes that wrote `path`, which no other one writes now."""
    for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        left.unlink(missing_ok=True)


def tensors_in(content: Any) -> "list[torch.Tensor]":
    """The tensors in nested dicts, lists and tuples."""
    import torch

    from utils.torch_compat import tree_leaves

    return [leaf for leaf in tree_leaves(content) if isinstance(leaf, torch.Tensor)]


def tensor_bytes(content: Any) -> int:
    """The size of all tensors in `content`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(content))


def link_or_copy(source: Path, target: Path) -> None:
    """Replaces `target` atomically by a hard link to `source`, or by a copy if the file system has no hard links."""
    temporary = temporary_path(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        fsync_path(temporary)
    os.replace(temporary, target)
    fsync_path(target.parent)


def fsync_path(path: Path) -> None:
    """Returns when a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
