"""Plugins: code runs only if -plugin names its file; options of parts are checked, saved and shown."""

import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

from conftest import GREY, ROOT, TINY_VIT, config_for, each_row, line_of, refused, told
from pytest import mark, raises

from configs.command_line import parse_command_line, to_yaml
from configs.load import flatten
from configs.parts import LOSSES, Part, open_plugin
from configs.yaml_io import parse_value
from engine.run.folder import next_command
from tests.configs.option_values import parse_recipe

TINY = ("-dataset=digits", "-opts", *TINY_VIT, *GREY)
OPTIONS = ("LOSS.NAME=power", "DATA.HOST_AUGMENTATIONS={add: {power: 2.0}}", "DATA.DEVICE_AUGMENTATIONS={drift: null}")

SAVED = """
LOSS.KWARGS: {power: 1.5}
TRAIN.OPTIMIZER.KWARGS: {decay: 0.5}
DATA.HOST_AUGMENTATIONS: {add: {power: 2.0}}
DATA.DEVICE_AUGMENTATIONS: {drift: {power: 1.5}}
"""


def test_options_of_parts_are_saved_with_their_defaults(plugin, tmp_path):
    command = parse_command_line([f"-plugin={plugin}", *TINY, *OPTIONS, "TRAIN.OPTIMIZER.NAME=plainsgd"])
    saved = dict(flatten(parse_value(to_yaml(command.config))))
    assert saved.items() >= parse_value(SAVED).items()
    assert parse_recipe(tmp_path, to_yaml(command.config), f"-plugin={plugin}").config == command.config
    assert f"-plugin={plugin}" in next_command(command, "-eval")


WRONG = """
option | error
LOSS.NAME=powr | LOSS.NAME .*known: .*power
LOSS.KWARGS={power: -1.0} | LOSS.KWARGS.power: .*greater than
DATA.HOST_AUGMENTATIONS={ad: {}} | HOST_AUGMENTATIONS.*ad: .*known: .*add
DATA.DEVICE_AUGMENTATIONS={drift: 3} | DEVICE_AUGMENTATIONS.drift.drift:
TRAIN.OPTIMIZER={NAME: plainsgd, KWARGS: {decay: 2.0}} | OPTIMIZER.KWARGS.decay: .*less than
"""


@each_row(WRONG)
def test_a_wrong_option_of_a_part_is_one_line(plugin, option, error):
    assert re.search(error, line_of(parse_command_line, [f"-plugin={plugin}", *TINY, *OPTIONS, option]))


def test_the_help_on_a_key_shows_the_options_of_plugins(plugin, capsys):
    with raises(SystemExit):
        parse_command_line(["-h", "DATA.HOST_AUGMENTATIONS", "-plugin", plugin])
    assert "DATA.HOST_AUGMENTATIONS.add.power: float >= 0; default 1.5" in capsys.readouterr().out


def test_a_recipe_runs_no_code_by_itself(tmp_path):
    (tmp_path / "unnamed.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"PLUGINS: [{tmp_path / 'unnamed.py'}]")
    for more in ([], [f"PLUGINS=[{tmp_path / 'unnamed.py'}]"]):
        with refused(r"needs unnamed\.py.*-plugin=") as error:
            parse_command_line([f"-cfg={recipe}", *TINY, *more])
        assert error.value.status == 2
    assert not (tmp_path / "ran").exists()
    parse_command_line([f"-cfg={recipe}", f"-plugin={tmp_path / 'unnamed.py'}", *TINY])
    assert (tmp_path / "ran").exists()


def test_a_changed_plugin_is_a_warning(plugin, tmp_path):
    text = f"PLUGINS: ['elsewhere/{Path(plugin).name}#sha256=0123']"
    command = parse_recipe(tmp_path, text, f"-plugin={plugin} {' '.join(TINY)}")
    assert told(command.notes, "0123", "warning")


@mark.parametrize(
    "text, error",
    [
        (None, "cannot be read: No such file"),
        ("x = 1\n\ny = x + z\n", r"own.py:3: NameError: name 'z'"),
        ("import configs.parts\nconfigs.parts.loss('bce')", r"own.py:2: ValueError: there is already a loss bce"),
        ("x = " + 20_000 * "-" + "1", r"own.py: (Recursion|Memory)Error"),
        ("x = 1\n\ny = = x\n", r"own.py: SyntaxError: invalid syntax .*line 3\)"),
    ],
)  # fmt: skip
def test_a_plugin_that_fails_is_one_line(tmp_path, text, error):
    path = tmp_path / "own.py"
    if text:
        path.write_text(text)
    with refused(error):
        open_plugin(str(path))


def test_pickle_may_ask_our_datasets_for_any_name():
    """pickle looks for a class of another package in all modules; torch.compile pickles the graph."""
    assert not hasattr(importlib.import_module("datasets"), "torch")


def test_a_loss_of_one_label_is_refused_with_several(monkeypatch):
    options = ["-dataset=csv", "-data_path=.", "-opts", *TINY_VIT, "DATA.MULTI_LABEL=true", "LOSS.NAME=own"]
    monkeypatch.setitem(LOSSES, "own", Part(lambda logits, targets: logits.sum(-1)))
    assert config_for(*options).loss.name == "own"
    monkeypatch.setitem(LOSSES, "own", LOSSES["own"]._replace(several_labels=False))
    with refused("LOSS.NAME own"):
        config_for(*options)


@mark.slow
def test_a_worker_has_the_parts_without_the_file(plugin):
    """The rank sends the text: the file may have changed since it ran."""
    code = "import pickle, sys; _, part = pickle.load(sys.stdin.buffer); print(part.__module__, part.__name__)"
    sent = pickle.dumps((open_plugin(plugin), LOSSES["power"].code))
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, input=sent, capture_output=True, check=True)
    assert result.stdout.split() == [b"ampvit_plugin_own_parts", b"power"]
