"""The commands that a run prints, for a shell: they resume or evaluate the run."""

import shlex
import sys
from pathlib import Path

from configs.reading.command_line import Command
from utils.processes.launcher import launcher_words

_PROJECT = Path(__file__).parents[2]


def next_command(command: Command, *flags: str) -> str:
    """The command line with these flags for the script, the launcher and the number of processes of `command`."""
    processes = [f"-ngpus={command.num_processes}"] if command.num_processes else []
    python, script = _from_here(Path(sys.executable)), _from_here(_PROJECT / command.script)
    return shlex.join([*launcher_words(python), script, *processes, *flags])


def _from_here(path: Path) -> str:
    """The path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
