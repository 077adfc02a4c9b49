"""The tables of parts that options name: losses, augmentations, optimizers; a plugin adds its own (docs/plugins.md)."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo

from utils.errors import did_you_mean

_T = TypeVar("_T", bound=Callable[..., Any])


class Options(BaseModel):
    """The base class of the options of a plugin's part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Parts:
    """The parts of one kind by name.

    key: the YAML key of a plugin part's options. names: of the program's parts that options name.
    own: name -> builder of (*sections of options), which the module with the program's parts fills in.
    added: name -> function or class of a plugin, and its options.
    """

    def __init__(self, kind: str, key: str, *names: str) -> None:
        self.kind, self.key, self.names = kind, key, names
        self.own: dict[str, Callable[..., Any]] = {}
        self.added: dict[str, tuple[Any, type[Options]]] = {}

    def add(self, name: str, options: type[Options] = Options) -> Callable[[_T], _T]:
        """The decorator of a plugin's part with these options. Raises ValueError for a name that is taken."""
        if not isinstance(name, str) or not issubclass(options, Options):
            raise ValueError(f"a {self.kind} has a name, and options that are a subclass of configs.parts.Options")
        if name in (*self.names, *self.added):
            raise ValueError(f"there is already a {self.kind} {name}")
        return lambda part: self.added.setdefault(name, (part, options))[0]

    def build(self, name: str, values: dict[str, Any] | None) -> Any:
        """A plugin's part: an object of its class, or its function with the argument `options`."""
        part, options = self.added[name][0], self.added[name][1].model_validate_json(json.dumps(values or {}))
        return part(options) if isinstance(part, type) else partial(part, options=options)

    def build_all(self, named: dict[str, Any] | None, *sections: Any) -> list[Any]:
        """The parts of the program for which the sections ask, then the parts of plugins by name."""
        own = (build(*sections) for build in self.own.values())
        return [*(part for part in own if part), *(self.build(name, one) for name, one in (named or {}).items())]

    def check_name(self, name: str) -> str:
        known = (*self.names, *self.added)
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"{name[:80]}: no {self.kind} (known: {listed}; -plugin adds others){did_you_mean(name, known)}"
            )
        return name

    def check_kwargs(self, kwargs: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        """The options KWARGS of the part NAME; unchanged if the part is not in this table."""
        name = info.data.get("name")
        return self._checked(name, kwargs) if name in (*self.names, *self.added) else kwargs

    def _checked(self, name: str, values: Any, prefix: str = "") -> dict[str, Any] | None:
        """The options of a part with their defaults; None for none. Raises ValueError, which begins with the key."""
        options = self.added[name][1] if name in self.added else Options
        try:
            given = json.dumps({} if values is None else values)  # a list of JSON may be a tuple
            return options.model_validate_json(given).model_dump(mode="json") or None
        except ValidationError as invalid:
            error = invalid.errors(include_url=False)[0]
            key, message = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
            if error["type"] == "extra_forbidden":
                message = f"no option of {name}{did_you_mean(key, options.model_fields)}"
            raise ValueError(f"{prefix}{key or name}: {message}") from None

    def check_named(self, named: dict[str, Any] | None) -> dict[str, Any] | None:
        """The options of parts of plugins, by name."""
        return named and {self.check_name(name): self._checked(name, named[name], f"{name}.") for name in named}


LOSSES = Parts("loss", "LOSS.KWARGS", "cross_entropy", "bce")
HOST_AUGMENTATIONS = Parts("host augmentation", "DATA.HOST_AUGMENTATIONS")
DEVICE_AUGMENTATIONS = Parts("device augmentation", "DATA.DEVICE_AUGMENTATIONS")
OPTIMIZERS = Parts("optimizer", "TRAIN.OPTIMIZER.KWARGS")  # added to timm's table, which has the others
TABLES = (LOSSES, HOST_AUGMENTATIONS, DEVICE_AUGMENTATIONS, OPTIMIZERS)
loss, host_augmentation, device_augmentation, optimizer = (table.add for table in TABLES)
