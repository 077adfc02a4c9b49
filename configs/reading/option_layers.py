"""Option layers: BASE files < YAML file < flags < -opts. Each value keeps its origin."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.reading.yaml_io import KeyPath, parse_value, read_yaml, shorten
from utils.errors import UserError
from utils.file_formats.torch_file import read_entries

RUN_OPTIONS = "config.yaml"  # in the folder of a run: its options
RECIPE_OPTIONS = "recipe.yaml"  # in the folder of a run: the options of its recipe, without flags and -opts
_MAX_FILES = 32  # files that name each other twice in a chain of 32 would be read 2 ** 32 times


class OptionLayers:
    """Options by YAML key. A later layer overrides an earlier one.

    origins: 'file:line' or the flag of each key.
    """

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}
        self.origins: dict[KeyPath, str] = {}
        self._levels: dict[str, int] = {}
        self._sources: list[str] = []
        self._num_files = 0

    def add(self, values: dict[str, Any], source: str, lines: dict[KeyPath, int] | None = None) -> None:
        """Adds the values of a file or a flag as an option layer. lines: of each key in the file."""
        values = expand_switches(values)
        if self._sources[-1:] != [source]:
            self._sources.append(source)
        if lines is None:
            self.origins |= {path: source for path, _ in paths(values)}
        else:
            self.origins |= {path: f"{source}:{line}" for path, line in lines.items()}
        self._levels |= dict.fromkeys((key for key, _ in flatten(values)), len(self._sources))
        merge(self.values, values)

    def add_key(self, dotted: str, value: Any, source: str) -> None:
        self.add(nest({dotted: value}), source)

    def level(self, dotted: str) -> int:
        """The position of the option layer that gives the key, from 1; 0 for a default value."""
        return self._levels.get(dotted, 0)

    def add_recipe(self, path: Path) -> None:
        """Adds the files in BASE, recursively, then the file itself. Raises UserError for one that is not allowed."""
        roots = os.path.realpath(path.parent), os.path.realpath(".")
        self._add_file(path, roots, chain=(), named_in="")

    def _add_file(self, path: Path, roots: tuple[str, ...], chain: tuple[str, ...], named_in: str) -> None:
        values, lines = read_yaml(path, named_in)
        self._num_files += 1
        chain = (*chain, os.path.realpath(path))
        bases = values.pop("BASE", None) or []
        at_base = f"{path}:{lines.get(('BASE',))}: BASE"
        if not isinstance(bases, list) or not all(isinstance(base, str | None) for base in bases):
            raise UserError(f"{at_base} must be a list of files, relative to this one")
        for base in filter(None, bases):
            self._check_base(path.parent / base, base, roots, chain, at_base)
            self._add_file(path.parent / base, roots, chain, f"{at_base}: ")
        self.add(values, str(path), lines)

    def _check_base(self, path: Path, base: str, roots: tuple[str, ...], chain: tuple[str, ...], at_base: str) -> None:
        if not base.isprintable():
            raise UserError(f"{at_base} {shorten(base)} is not a valid file name; correct it")
        target = os.path.realpath(path)
        if not any(Path(target).is_relative_to(root) for root in roots):
            raise UserError(
                f"{at_base} {shorten(base)} is outside {roots[0]}; move that file beside the recipe, or start in a "
                "folder that contains both"
            )
        if target in chain:
            raise UserError(f"{at_base} is cyclic: {' -> '.join(Path(p).name for p in (*chain, target))}")
        if self._num_files >= _MAX_FILES:
            raise UserError(f"{at_base} leads to more than {_MAX_FILES} files; merge some of them")

    def origin(self, path: KeyPath) -> str:
        """'origin: ' of the key, or of the section that contains it; '' for a default value."""
        while path and path not in self.origins:
            path = path[:-1]
        return f"{self.origins[path]}: " if path else ""


def find_run_options(resume: str | None, weights: str | None) -> Path | None:
    """The options file of the run that -resume names by a folder or checkpoint, or of the run that wrote `weights`."""
    named = weights if resume in (None, "auto") else resume
    if named is None:
        return None
    path = Path(named)
    file = (path if os.path.isdir(path) and path.suffix != ".shards" else path.parent) / RUN_OPTIONS
    return file if os.path.isfile(file) else None


def stored_options(named: Path) -> dict[str, Any]:
    """The options in a checkpoint, with or without its extension, or in the newest one of a folder; {}: there are none.

    For a run whose options file is missing.
    """
    inside = (path for form in (".pth", ".shards") for path in named.glob(f"*{form}"))
    beside = (path for end in ("", ".pth", ".shards") if os.path.exists(path := Path(f"{named}{end}")))
    newest = sorted(inside, key=os.path.getmtime, reverse=True) if named.suffix != ".shards" else []
    texts = (read_entries(path).get("options") for path in (newest or beside))
    values = next((parse_value(text) for text in texts if isinstance(text, str)), None)
    return values if isinstance(values, dict) else {}


def expand_switches(values: dict[str, Any]) -> dict[str, Any]:
    """The options with `AMP: true` and `EVAL: true`, PaddleViT's switches, as sections with the key ENABLED."""
    switches = {key: {"ENABLED": values[key]} for key in ("AMP", "EVAL") if isinstance(values.get(key), bool)}
    return values | switches


def paths(values: dict[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The path and the value of each key and of each section."""
    for key, value in values.items():
        yield (*above, key), value
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def merge(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    """Overrides values of `lower`, in place."""
    for key, value in upper.items():
        if isinstance(value, dict) and isinstance(lower.get(key), dict):
            merge(lower[key], value)
        else:
            lower[key] = value


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by their dotted keys. The arguments of classes, by their names, are one value."""
    for key, value in values.items():
        if isinstance(value, dict) and not key.endswith(("KWARGS", "_AUGMENTATIONS", "COLUMNS")):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """The nested sections of dotted keys; the inverse of `flatten`."""
    sections: dict[str, Any] = {}
    for dotted, value in values.items():
        section = sections
        *names, key = dotted.split(".")
        for name in names:
            section = section.setdefault(name, {})
        section[key] = value
    return sections
