"""What recipes and flags give, as lines of 'KEY=VALUE' words."""

import shlex
from pathlib import Path

from configs.command_line import Command, parse_command_line
from configs.load import flatten
from configs.schema import Config
from configs.yaml_io import parse_value


def parse_recipe(folder: Path, text: str, flags: str = "") -> Command:
    """The command line of a recipe with this text, and of flags."""
    (folder / "recipe.yaml").write_text(text)
    return parse_command_line([f"-cfg={folder / 'recipe.yaml'}", *shlex.split(flags)])


def assert_options(config: Config, words: str):
    """Compares the options that the words name."""
    given = (word.split("=", 1) for word in shlex.split(words))
    expected = {key: parse_value(value) for key, value in given}
    found = dict(flatten(config.model_dump(by_alias=True, mode="json")))
    assert {key: found[key] for key in expected} == expected
