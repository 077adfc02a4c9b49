"""Packages that only some features need; requirements.txt names them. They are imported where they are used."""

import importlib.util
import sys
from collections.abc import Iterable

from utils.errors import UserError

_PIP_NAMES = {"sklearn": "scikit-learn", "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu13"}
# By module: the feature that a command leaves out if it is not installed, and the commands with this feature.
_FEATURES = {
    "tensorboard": ("curves", ("train", "dry_run")),
    "matplotlib": ("curves.png", ("train", "dry_run")),
    "nvidia.nvimgcodec": ("faster decoding of JPEGs", ("train", "dry_run", "eval", "predict", "profile")),
}


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported. Of `package.module` this imports the package."""
    try:
        return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(feature: str, *modules: str) -> None:
    """Raises UserError if the user asks for a feature, such as 'DATA.DATASET digits', and a module is not installed."""
    if missing := [module for module in modules if not is_installed(module)]:
        raise UserError(f"{feature}: needs {', '.join(map(_pip_name, missing))}; {_install(missing)}")


def missing_features(command: str) -> str | None:
    """A line about the features that a command leaves out because their packages are not installed; None if none."""
    of_command = {module: feature for module, (feature, commands) in _FEATURES.items() if command in commands}
    missing = {module: feature for module, feature in of_command.items() if not is_installed(module)}
    names = ", ".join(f"{_pip_name(module)} ({feature})" for module, feature in missing.items())
    return f"Not installed: {names}; {_install(missing)}" if missing else None


def _install(modules: Iterable[str]) -> str:
    return f"pip install {' '.join(map(_pip_name, modules))}"


def _pip_name(module: str) -> str:
    return _PIP_NAMES.get(module, module)
