"""The repeated parts of a model, which are compiled and sharded one by one."""

from collections.abc import Iterable, Iterator

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.Sequential)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The items of all containers named `blocks`, at any depth (timm's transformers, and the stages of others).

    Without such a container: the items of the containers of the model itself, such as its stages; [] without any.
    An outer block stands before those inside it.
    """
    named = [module for path, module in model.named_modules() if path.rpartition(".")[2] == "blocks"]
    containers = [module for module in named if isinstance(module, _CONTAINERS)]
    containers = containers or [module for module in model.children() if isinstance(module, _CONTAINERS)]
    return [block for block in _flat(containers) if any(True for _ in block.parameters())]


def _flat(modules: Iterable[nn.ModuleList | nn.Sequential]) -> Iterator[nn.Module]:
    """The items of the modules. A list among them has no forward pass, as in Twins: its items stand for it."""
    for module in modules:
        for item in module:
            yield from _flat([item]) if isinstance(item, nn.ModuleList) else (item,)
