"""`-h KEY` and docs/options.md, from the schema."""

import pytest
from conftest import ROOT

from configs.command_line import parse_command_line
from configs.help import all_keys, options_page
from configs.resolve import ALL_RULES
from configs.schema.config import known_keys
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS


def printed_help(topic: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        parse_command_line(["-h", topic])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_page_of_all_options_is_current():
    """Else: python -m configs.help > docs/options.md"""
    assert (ROOT / "docs/options.md").read_text() == options_page() + "\n"


@pytest.mark.parametrize("family", MODEL_SECTIONS)
def test_each_key_of_a_family_has_help(family):
    keys = [key for key in all_keys() if key.section != "LOSS.KWARGS"]  # of one loss
    described = {key.name for key in keys if not key.types or family in key.types}
    with_one_value = {f"MODEL.{key}" for key in (*FIXED_KEYS.get(family, ()), "FREEZE_BACKBONE")}
    assert set(known_keys(family)) - {key.section for key in keys} - with_one_value == described
    assert all(key.meaning for key in all_keys())


def test_help_on_rules_has_each_rule(capsys):
    printed = " ".join(printed_help("RULES", capsys).split())
    assert all(" ".join(rule.__doc__.partition("\n\n")[0].split()) in printed for rule in ALL_RULES)
