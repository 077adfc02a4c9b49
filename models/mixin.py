"""Mix-ins for the classes of modules that exist already."""

from functools import cache

from torch import nn


@cache
def with_mixin(mixin: type[nn.Module], module_class: type[nn.Module]) -> type[nn.Module]:
    """One subclass per class, so that modules of one class still share it, and compile once."""
    return type(module_class.__name__, (mixin, module_class), {})
