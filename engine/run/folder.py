"""The start of a run: its folder, log, options, status and environment, and the commands that continue it.

The environment has versions, the commit, hardware and hosts.
"""

import os
import platform
import shlex
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from configs.command_line import Command, to_yaml
from configs.compare import changed_options, non_default_options
from configs.load import RUN_OPTIONS
from configs.parts import HASH, PLUGINS_FOLDER, running_plugins
from configs.yaml_io import Values
from engine.checkpoint.run_folder import check_shared, check_writable, make_run_folder, write_run_options
from engine.run.facts import Environment, Start, read_fact
from engine.run.log import RunLogger
from engine.run.record import read_run
from utils.device import device_name
from utils.distributed import ProcessContext, broadcast_object, find_on_main, gather_objects
from utils.errors import UserError, hide_passwords
from utils.files import atomic_write, make_own_folder
from utils.notes import OWN_IMPORTS

_PROJECT = Path(__file__).parents[2]


def start_log(command: Command, context: ProcessContext) -> RunLogger:
    """Logs the options, to the files when the run's folder is opened; minutes may pass until it is made.

    The recipe of a training is on the screen at once.

    Raises UserError now if the output folder is not writable.
    """
    logger = RunLogger(context)
    if context.is_main and command.config.model.resume in (None, "auto"):  # else it writes to the checkpoint's folder
        check_writable(Path(command.config.save))
    if not command.config.eval.enabled:
        logger.announce(recipe_line(command))
    log_options(command, logger)
    return logger


def recipe_line(command: Command) -> str:
    if command.config.model.resume not in (None, "auto"):
        return f"Resume: {command.config.model.resume}"
    return f"Recipe: {command.choice or command.recipe or 'the defaults'}"


def log_options(command: Command, logger: RunLogger) -> None:
    """The options that differ from the defaults, and how the model family differs."""
    options = ", ".join(f"{key}={value}" for key, value in non_default_options(command.config).items())
    logger.log(f"----- Options that differ from the defaults (all: {RUN_OPTIONS}): {options or 'none'}")
    logger.note(*command.notes)
    if reason := os.environ.get(OWN_IMPORTS):
        logger.log(f"----- Launch: each rank has imported its modules itself: {reason}")


def open_new_folder(
    command: Command, context: ProcessContext, logger: RunLogger, prefix: str = "", **values: Any
) -> Path:
    """Creates and enters the folder of a new run. values: as in `enter_folder`.

    Raises UserError if it cannot, or another host does not see it.
    """
    name = prefix + command.run_name
    folder = find_on_main(lambda: make_run_folder(Path(command.config.save), name), context)
    enter_folder(folder, command, context, logger, steps_done=0, **values)
    return folder


def enter_folder(
    folder: Path,
    command: Command,
    context: ProcessContext,
    logger: RunLogger,
    steps_done: int,
    has_ended: bool = False,
    **values: Any,
) -> None:
    """Opens the log and the record of a run that starts after `steps_done` steps; a collective call.

    has_ended: nothing is left to train: the options and facts of the training stay. values: of the record, as far as
    they are known. Raises UserError as `check_shared`.
    """
    check_shared(folder, context)
    if context.is_main:
        changes: Values = {"NAME": command.run_name}  # the options start or resume the same run
        if not command.config.eval.enabled:
            changes["MODEL.RESUME"] = None
        options = to_yaml(command.config, changes)
        earlier = read_run(folder)
        values["given"] = earlier.get("given") or command.given
        if has_ended and earlier and (folder / RUN_OPTIONS).is_file():
            logger.record.values["facts"] = {}
            values |= {key: earlier[key] for key in ("class_names", "preprocessing")}
        else:
            with suppress(OSError, UserError):  # of a new run
                changed = changed_options((folder / RUN_OPTIONS).read_text(encoding="utf-8"), options)
                values["given"] |= {key: value for key, (_, value) in changed.items()}
            write_run_options(folder, options, steps_done)
        for plugin in running_plugins():
            make_own_folder(folder / PLUGINS_FOLDER)
            atomic_write(folder / PLUGINS_FOLDER / Path(plugin.entry).name, plugin.text)
    logger.open(folder)
    owner = broadcast_object({"pid": os.getpid(), "host": socket.gethostname()}, context)
    resume = next_command(command, f"-resume={folder.absolute()}")
    logger.record.open(folder, resume, world_size=context.world_size, **owner, **values)
    logger.note(Start(str(folder), steps_done, next_command(command)))


def next_command(command: Command, *flags: str) -> str:
    """The command line with these flags for the script of `command`, its number of processes and its device.

    It works in any folder, if the paths in `flags` are absolute; `from_here` makes it shorter. It needs no launcher.
    The processes of several hosts, where each needs a launcher, are not in it.
    """
    number = command.flags.ngpus
    of_launcher = os.environ.get("WORLD_SIZE")
    if not number and of_launcher == os.environ.get("LOCAL_WORLD_SIZE"):  # it has started all on this host
        number = of_launcher
    processes = [f"-ngpus={number}"] if number else []
    device = [f"-device={command.flags.device}"] if command.flags.device else []
    plugins = [f"-plugin={entry.partition(HASH)[0]}" for entry in command.config.plugins]
    return shlex.join([sys.executable, str(_PROJECT / command.script), *processes, *device, *plugins, *flags])


PACKAGES = (  # the required ones, and decoders, which may change pixels
    "torch", "torchvision", "timm", "pydantic", "pyyaml", "tqdm", "numpy", "pillow", "safetensors",
    "torchcodec",
)  # fmt: skip
_DRIVER = Path("/sys/module/nvidia/version")  # nvidia-smi may take seconds
_GIT_SECONDS = 5.0


def record_environment(context: ProcessContext, logger: RunLogger, resumed: Path | None = None) -> None:
    """Records the environment, and warns if it differs from the last start of the run in `resumed`; collective."""
    devices = gather_objects(device_name(context.device), context)
    if not context.is_main:
        return
    found: dict[str, object] = {"Python": platform.python_version()}  # False or None: the version is not known
    found |= {name: package.version for name in PACKAGES for package in reversed([*distributions(name=name)])}
    if context.device.type == "cuda":
        found |= {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
        found["NCCL"] = torch.distributed.is_nccl_available() and ".".join(map(str, torch.cuda.nccl.version()))
        found |= {"driver": _DRIVER.exists() and _DRIVER.read_text().strip(), "host": device_name(torch.device("cpu"))}
    found["commit"] = _commit()
    found["devices"] = " and ".join(f"{number} x {name}" for name, number in Counter(devices).items())
    parts = {name: str(part) for name, part in found.items() if part}
    earlier = read_fact(read_run(resumed), Environment) if resumed else None
    before = earlier.parts if earlier else parts
    if changed := [name for name in parts | before if parts.get(name) != before.get(name)]:
        changes = ", ".join(f"{name} {before.get(name, 'none')} -> {parts.get(name, 'none')}" for name in changed)
        logger.warn(f"Resume: may not be bit-exact: {changes}")
    given = hide_passwords(shlex.join(sys.orig_argv))
    logger.note(Environment(command=given, parts=parts, hosts=list(context.hosts or [context.host])))


def _commit() -> str:
    """The commit of the program's clone, with '-dirty' if a tracked file differs; '' if git does not tell in time."""
    clone = [f"--git-dir={_PROJECT / '.git'}", f"--work-tree={_PROJECT}"]
    command = ["git", *clone, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # A hook's GIT_INDEX_FILE is of another commit; GIT_CONFIG_ may have safe.directory.
    own = {name: value for name, value in os.environ.items() if name[:4] != "GIT_" or name[:11] == "GIT_CONFIG_"}
    try:
        described = subprocess.run(command, env=own, capture_output=True, timeout=_GIT_SECONDS, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip()
