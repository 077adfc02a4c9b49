"""Packages that only some features need; requirements.txt names them. They are imported where they are used."""

import importlib.util
import sys
from collections.abc import Iterable

from utils.errors import UserError

_PIP_NAMES = {"sklearn": "scikit-learn", "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu13"}
# By module: the feature that a command leaves out if it is not installed, and the commands with this feature.
_USED_IF_INSTALLED = {
    "tensorboard": ("TensorBoard's curves", ("train", "dry_run")),
    "matplotlib": ("plots", ("train", "dry_run", "eval")),
    "nvidia.nvimgcodec": ("faster decoding of JPEGs", ("train", "dry_run", "eval", "predict", "profile")),
}


def is_installed(module: str) -> bool:
    """Whether a module can be imported. Of `package.module` this imports the package."""
    try:
        return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(feature: str, *modules: str) -> None:
    """Checks that the modules of a feature that the user asks for, such as 'DATA.DATASET digits', are installed.

    Raises:
        UserError: a module is not installed; the message has the command that installs it.
    """
    if missing := _missing(modules):
        names = " ".join(missing)
        raise UserError(f"{feature}: needs {names.replace(' ', ', ')}; pip install {names}")


def missing_features(command: str) -> str | None:
    """A line about the features that a command leaves out because their packages are not installed; None if none."""
    features = {name: feature for name, (feature, commands) in _USED_IF_INSTALLED.items() if command in commands}
    if not (missing := _missing(features)):
        return None
    left_out = " and no ".join(feature for name, feature in features.items() if not is_installed(name))
    return f"No {left_out}: packages are not installed; pip install {' '.join(missing)}"


def _missing(modules: Iterable[str]) -> list[str]:
    """The names of the missing packages, as pip knows them."""
    return [_PIP_NAMES.get(module, module) for module in modules if not is_installed(module)]
