"""The commands that a run prints, for a shell: they resume or evaluate the run."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from configs.reading.command_line import Command

_PROJECT = Path(__file__).parents[2]


def next_command(command: Command, *flags: str) -> str:
    """The command line with these flags for the script of `command` and the number of processes.

    It needs no launcher. The processes of several hosts, where each needs a launcher, are not in it.
    """
    count = os.environ.get("WORLD_SIZE")
    number = command.num_processes or (count if count == os.environ.get("LOCAL_WORLD_SIZE") else None)
    processes = [f"-ngpus={number}"] if number else []
    return shlex.join([_python(), _from_here(_PROJECT / command.script), *processes, *flags])


def _python() -> str:
    """'python' if the shell finds this interpreter under that name, else its path."""
    found = shutil.which("python")
    is_this = found and Path(found).parent == Path(sys.executable).parent and os.path.samefile(found, sys.executable)
    return "python" if is_this else _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    """The path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
