"""Tables of the parts that options name (losses, augmentations, optimizers), and plugins: files that add parts to them.

A plugin's code runs only if -plugin of this command line names its file. PLUGINS of a recipe, a run or weights states
which files are needed. The resolved entries are PATH#sha256=HASH: docs/python.md.
"""

import hashlib
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from configs.yaml_io import Values, read_text
from utils.errors import UserError
from utils.notes import Note

PLUGINS_FOLDER = "plugins"  # in the folder of a run: copies, which no command runs
HASH = "#sha256="
_T = TypeVar("_T", bound=Callable[..., Any])


class Options(BaseModel):
    """The base class of the options of a plugin's part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Part(NamedTuple):
    """A part. code: the function or class of a plugin; None for the program's own part, which is in `engine/`.

    several_labels: of a loss: whether it trains images with several labels (DATA.MULTI_LABEL).
    """

    code: Any = None
    options: type[Options] = Options
    several_labels: bool = True


class Parts(dict[str, Part]):
    """The parts of one kind by name. key: the YAML key of the options."""

    def __init__(self, kind: str, key: str, **own: Part) -> None:
        super().__init__(own)
        self.kind = kind
        self.key = key

    def add(self, name: str, options: type[Options] = Options, several_labels: bool = True) -> Callable[[_T], _T]:
        """Returns the decorator of a plugin's part with these options. Raises ValueError for a name that is taken."""
        if name in self:
            raise ValueError(f"there is already a {self.kind} {name}")
        return lambda code: self.setdefault(name, Part(code, options, several_labels)).code

    def build(self, name: str, values: Values | None) -> Any:
        """Builds a plugin's part: an instance of its class, or its function with `options` bound."""
        part = self[name].code
        options = self._options(name, values)
        return part(options) if isinstance(part, type) else partial(part, options=options)

    def check_name(self, name: str) -> str:
        if name not in self:
            raise ValueError(f"{name[:80]}: no {self.kind}; known: {', '.join(self) or 'none'} (-plugin adds others)")
        return name

    def check_kwargs(self, kwargs: Values | None, info: ValidationInfo) -> Values | None:
        """Checks the options KWARGS of the part NAME; unchanged if the part is not in this table."""
        name = str(info.data.get("name"))
        return self._checked(name, kwargs) if name in self else kwargs

    def check_named(self, named: Values | None) -> Values | None:
        """Checks the options of parts by name."""
        if not named:
            return named
        return {name: self._checked(self.check_name(name), given, f"{name}.") for name, given in named.items()}

    def _checked(self, name: str, values: Any, prefix: str = "") -> Values | None:
        """All options of a part; None for a part without options."""
        return self._options(name, values, prefix).model_dump(mode="json") or None

    def _options(self, name: str, values: Any, prefix: str = "") -> Options:
        """Returns all options; lists may be tuples, as in JSON. Raises ValueError, which begins with the key."""
        try:
            return self[name].options.model_validate_json(json.dumps({} if values is None else values))
        except ValidationError as invalid:
            error = invalid.errors(include_url=False)[0]
            key = ".".join(map(str, error["loc"]))
            message = error["msg"].removeprefix("Value error, ")
            raise ValueError(f"{prefix}{key or name}: {message}") from None


class AsymmetricLoss(Options):
    """LOSS.KWARGS of asl; p is the probability of a class."""

    gamma_neg: float = Field(4.0, ge=0, description="factor p ** gamma_neg of negatives; 0: off")
    gamma_pos: float = Field(1.0, ge=0, description="factor (1 - p) ** gamma_pos of positives; 0: off")
    clip: float = Field(0.05, ge=0, lt=1, description="negatives with a lower p do not count; 0: off")

    @field_validator("gamma_neg", "gamma_pos")
    @classmethod
    def _check_gamma(cls, gamma: float) -> float:
        if 0 < gamma < 1:
            raise ValueError(f"{gamma:g} gives easy samples infinite gradients; use 0, or 1 or more")
        return gamma


LOSSES = Parts(
    "loss",
    "LOSS.KWARGS",
    cross_entropy=Part(several_labels=False),
    bce=Part(),
    asl=Part(options=AsymmetricLoss),
)
HOST_AUGMENTATIONS = Parts("host augmentation", "DATA.HOST_AUGMENTATIONS")
DEVICE_AUGMENTATIONS = Parts("device augmentation", "DATA.DEVICE_AUGMENTATIONS")
OPTIMIZERS = Parts("optimizer", "TRAIN.OPTIMIZER.KWARGS")  # added to timm's table, which has the others
TABLES = (LOSSES, HOST_AUGMENTATIONS, DEVICE_AUGMENTATIONS, OPTIMIZERS)
loss, host_augmentation, device_augmentation, optimizer = (table.add for table in TABLES)


class Plugin(NamedTuple):
    """A plugin whose code this process has run. has_parts: it has registered a part, or a model of timm."""

    path: str
    text: str
    has_parts: bool

    @property
    def entry(self) -> str:
        return f"{self.path}{HASH}{hashlib.sha256(self.text.encode()).hexdigest()}"

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker runs the plugin when it unpickles it, before the objects of its classes that follow."""
        return run_plugin, (self.path, self.text)


_running: dict[str, Plugin] = {}  # by file name


def running_plugins() -> tuple[Plugin, ...]:
    return tuple(_running.values())


def open_plugin(path: str) -> Plugin:
    """Reads and runs a file. Raises UserError: as `run_plugin`, or it cannot be read."""
    return run_plugin(str(Path(path).absolute()), read_text(Path(path), "-plugin ", ".py"))


def run_plugin(path: str, text: str) -> Plugin:
    """Runs the code of a plugin once. Raises UserError for an exception in it, or another plugin of that name."""
    name = Path(path).name
    before = sum(map(len, TABLES))
    if name not in _running:
        module = ModuleType(f"ampvit_plugin_{Path(path).stem}")
        module.__file__ = path
        sys.modules[module.__name__] = module  # timm, pickle and pydantic look for it there
        try:
            exec(compile(text, path, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            at = f":{lines[-1]}" if lines else ""  # the text of a SyntaxError has the line
            raise UserError(f"-plugin {path}{at}: {type(error).__name__}: {error} (-debug: traceback)") from error
        has_parts = sum(map(len, TABLES)) > before or hasattr(module, "__all__")  # timm adds models to it
        _running[name] = Plugin(path, text, has_parts)
    if _running[name].text != text:
        raise UserError(f"-plugin {path}: {_running[name].path} has the same name; rename one")
    return _running[name]


def check_plugins(needed: Any, given: Iterable[str], source: str) -> list[Note]:
    """Returns a warning for each needed plugin that has changed. Raises UserError if one is missing."""
    hashes = dict(Path(entry).name.partition(HASH)[::2] for entry in given)
    warnings = list[Note]()
    for entry in needed if isinstance(needed, list | tuple) else filter(None, [needed]):
        path, _, then = str(entry).partition(HASH)
        name = Path(path).name
        if name not in hashes:
            raise UserError(f"{source}PLUGINS: needs {name}, which is code: add -plugin={shlex.quote(path)} to run it")
        now = hashes[name]
        if then not in ("", now):
            warnings.append(Note("warning", f"{name} has changed: its SHA-256 is {now[:12]}, in the run {then[:12]}"))
    return warnings
