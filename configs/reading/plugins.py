"""Plugins: Python files with own parts. Their code runs only if -plugin of this command line names them.

PLUGINS of a recipe, a run or weights states which files are needed. The resolved entries are PATH#sha256=HASH.
"""

import hashlib
import shlex
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from configs.parts import TABLES
from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import shorten
from configs.schema.section import as_names
from utils.errors import UserError, error_from
from utils.files import open_regular_file

PLUGINS_FOLDER = "plugins"  # in the folder of a run: copies, which no command runs
HASH = "#sha256="


class Plugin(NamedTuple):
    path: str
    text: str

    @property
    def entry(self) -> str:
        return f"{self.path}{HASH}{hashlib.sha256(self.text.encode()).hexdigest()}"

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker runs the plugin when it unpickles it, before the objects of its classes that follow."""
        return run_plugin, tuple(self)


_running: dict[str, Plugin] = {}  # by file name


def running_plugins() -> tuple[Plugin, ...]:
    """The plugins whose code this process has run."""
    return tuple(_running.values())


def run_plugin(path: str, text: str) -> Plugin:
    """Runs the code of a plugin once. Raises UserError for an exception in it, or another plugin of that name."""
    if plugin := _running.get(Path(path).name):
        if plugin.text != text:
            raise UserError(f"-plugin {path}: {plugin.path} has the same name; rename one")
        return plugin
    module = ModuleType(f"ampvit_plugin_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # timm, pickle and pydantic look for it there
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [1])[-1]
        raise UserError(f"-plugin {path}:{line}: {type(error).__name__}: {error} (-debug: traceback)") from error
    return _running.setdefault(Path(path).name, Plugin(path, text))


def open_plugin(path: str) -> Plugin:
    """Reads and runs a file. Raises UserError: as `run_plugin`, or no such file."""
    try:
        with open_regular_file(path) as file:
            text = file.read().decode()
    except (OSError, ValueError) as error:
        raise error_from(
            error, f"-plugin {shorten(path)}: cannot be read: {getattr(error, 'strerror', error)}"
        ) from None
    return run_plugin(str(Path(path).absolute()), text)


def add_plugins(layers: OptionLayers, paths: list[str]) -> list[str]:
    """Runs the plugins at `paths`, of -plugin; PLUGINS of the options then names them. Returns lines for the log."""
    entries = [open_plugin(path).entry for path in paths]
    warnings = check_plugins(layers.values.get("PLUGINS"), entries, layers.origin(("PLUGINS",)))
    if entries:
        layers.values["PLUGINS"] = entries
    with_parts = {part.__module__ for table in TABLES for part, _ in table.added.values()}
    for module in (sys.modules[f"ampvit_plugin_{Path(path).stem}"] for path in paths):
        if module.__name__ not in with_parts and not hasattr(module, "__all__"):  # to which timm adds models
            warnings.append(f"Warning: {module.__file__} registers no part; use @register_model, @loss, ...")
    return [f"Plugin: {entry}" for entry in entries] + warnings


def check_plugins(needed: Any, given: Iterable[str], source: str) -> list[str]:
    """A warning for each needed plugin that has changed. Raises UserError: one is missing, `needed` is no list."""
    needed = as_names(needed) or ()
    if not isinstance(needed, tuple) or not all(isinstance(entry, str) for entry in needed):
        raise UserError(f"{source}PLUGINS is {shorten(needed)}: must be a list of Python files")
    hashes, warnings = {Path(path).name: now for path, _, now in (entry.partition(HASH) for entry in given)}, []
    for path, _, then in (entry.partition(HASH) for entry in needed):
        now, name = hashes.get(Path(path).name), Path(path).name
        if now is None:
            raise UserError(f"{source}PLUGINS: needs {name}, which is code: add -plugin={shlex.quote(path)} to run it")
        if then and then != now:
            warnings.append(f"Warning: {name} has changed: its SHA-256 is {now[:12]}, in the run {then[:12]}")
    return warnings
