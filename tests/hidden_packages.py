"""Which packages are optional, and an environment without them."""

import functools
import importlib.metadata
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
REQUIRED = ("torch", "torchvision", "timm", "pyyaml", "tqdm", "numpy", "pillow", "safetensors", "pydantic")
OPTIONAL_MODULES = {
    "boto3", "braceexpand", "hypothesis", "matplotlib", "moto", "obstore", "onnx", "onnxruntime", "scipy", "sklearn",
    "tensorboard", "webdataset",
}  # fmt: skip


def requirements(pattern: str = "requirements*.txt") -> list[str]:
    """The packages in the files of this pattern, by their canonical names."""
    lines = chain.from_iterable(path.read_text().splitlines() for path in sorted(ROOT.glob(pattern)))
    parts = [line.partition("#")[0].strip() for line in lines]
    return [canonicalize_name(Requirement(part).name) for part in parts if part]


def closure(names: Iterable[str]) -> set[str]:
    """The installed packages that these packages need, directly or not, and these packages."""
    found: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), "") for name in names]
    while waiting:
        name, extra = entry = waiting.pop()
        if entry in found or name not in _distributions():
            continue
        found.add(entry)
        for line in _distributions()[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    return {name for name, _ in found}


def hide_packages(patch: pytest.MonkeyPatch, *kept: str) -> set[str]:
    """Hides all packages but `REQUIRED`, `kept`, and those that these need, from the processes that a test starts.

    Returns the names of the hidden packages.
    """
    visible = closure((*REQUIRED, *kept))
    hidden = _distributions().keys() - visible
    modules = set().union(*map(_modules, hidden)) - set().union(*map(_modules, visible))
    patch.setenv("HIDDEN_PACKAGES", " ".join(_distributions()[name].metadata["Name"] for name in hidden))
    patch.setenv("HIDDEN_MODULES", " ".join(modules))
    patch.setenv("PYTHONPATH", str(ROOT / "tests/fixtures/hide_packages"))
    return hidden


@functools.cache
def _distributions() -> dict[str, importlib.metadata.Distribution]:
    return {canonicalize_name(found.metadata["Name"]): found for found in importlib.metadata.distributions()}


def _modules(name: str) -> set[str]:
    """The names under which the modules of a package are imported; several packages share the folder `nvidia`."""
    modules = set()
    for path in _distributions()[name].files or ():
        parts = re.sub(r"(\..*)?\.(py|so)$", "", str(path)).split("/")
        if not parts[0].endswith(".dist-info") and parts[0] not in ("..", "__pycache__"):
            modules.add(".".join(parts[: 2 if parts[0] == "nvidia" else 1]))
    return modules
