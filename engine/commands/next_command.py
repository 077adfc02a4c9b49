"""The commands that a run prints, for a shell: they resume or evaluate the run."""

import os
import shlex
import sys
from pathlib import Path

from configs.parts import HASH
from configs.reading.command_line import Command

_PROJECT = Path(__file__).parents[2]


def next_command(command: Command, *flags: str, from_anywhere: bool = False) -> str:
    """The command line with these flags for the script of `command`, its number of processes and its device.

    It works in the current folder; in any with `from_anywhere`, if the paths in `flags` are absolute. It needs no
    launcher. The processes of several hosts, where each needs a launcher, are not in it.
    """
    count = os.environ.get("WORLD_SIZE")
    number = command.num_processes or (count if count == os.environ.get("LOCAL_WORLD_SIZE") else None)
    processes = [f"-ngpus={number}"] if number else []
    device = [f"-device={command.device}"] if command.device else []
    path = str if from_anywhere else _from_here
    script = [path(Path(sys.executable)), path(_PROJECT / command.script)]
    plugins = [f"-plugin={path(Path(entry.partition(HASH)[0]))}" for entry in command.config.plugins]
    return shlex.join([*script, *processes, *device, *plugins, *flags])


def _from_here(path: Path) -> str:
    """The path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
