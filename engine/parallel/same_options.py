"""Compares the options of all ranks: each may be started by a command of its own."""

from configs.reading.compare import shared_options
from configs.reading.yaml_io import format_value
from configs.schema import Config
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError


def check_same_options(config: Config, context: ProcessContext, **flags: str | int | None) -> None:
    """Checks that all ranks have the same `shared_options` and `flags`. A collective call.

    Raises:
        UserError: on all ranks; it names the first rank that differs from rank 0, and each key with both values.
    """
    of_main, *others = gather_objects(shared_options(config) | flags, context)
    for rank, of_rank in enumerate(others, 1):
        if keys := [key for key in of_main | of_rank if of_main.get(key) != of_rank.get(key)]:
            main, own = (", ".join(f"{key} {format_value(of.get(key))}" for key in keys) for of in (of_main, of_rank))
            raise UserError(
                f"{context.name(rank)} has {own}, but {context.name(0)} has {main}; start all ranks with equal options"
            )
