"""Flags: of -predict, in the words of other programs, with URLs; `-h KEY` and docs/options.md."""

import re
from ast import literal_eval
from pathlib import Path

from conftest import ROOT, cli, config_for, each_row, refused
from pytest import mark, raises

from configs.command_line import parse_command_line
from configs.help import all_keys, options_page
from configs.parts import TABLES
from configs.resolve import ALL_RULES
from configs.schema.config import known_keys
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS
from tests.configs.option_values import assert_options

WEIGHTS = "-pretrained=vit.pth"


# The path, the number of classes, the folder, JSON, the spreadsheet; nothing for a training
PREDICTIONS = """
argv | expected
-predict photos | 'photos', 5, 'None', False, False
-predict=photos -top_k=1 -json | 'photos', 1, 'None', True, False
-predict=-x.jpg -output=o | '-x.jpg', 5, 'o', False, False  # a dash needs '='
-predict -split=val -dataset=digits | None, 5, 'None', False, False
-predict=photos -format=excel | 'photos', 5, 'None', False, True
-predict=photos -format=wide | 'photos', None, 'None', False, False
"""


def test_a_command_line_has_lists_of_its_own():
    first, second = (parse_command_line(["-dataset=digits"]).flags for _ in range(2))
    first.opts.append("SEED=1")
    first.plugin.append("own.py")
    assert (second.opts, second.plugin) == ([], [])


@each_row(PREDICTIONS)
def test_a_prediction(argv, expected):
    command = parse_command_line([WEIGHTS, *argv.split()])
    found = command.prediction
    assert (found.path, found.top_k, str(found.folder), found.json, found.excel) == literal_eval(expected)
    assert (found.threshold, found.explain, found.embeds) == (None, False, False)
    assert (command.name, command.config.eval.enabled) == ("predict", True)
    command.require_selection()


def test_a_training_is_no_prediction():
    command = parse_command_line([WEIGHTS])
    assert (command.prediction, command.name, command.config.eval.enabled) == (None, "train", False)
    command.require_selection()


SAME = """
theirs | ours
-amp=yes | -amp
-b 32 | -batch_size=32
--data-path=images --image-size 64 | -data_path=images -image_size=64
-j 3 | -num_workers=3
-a vit_digits | -model=vit_digits
-c configs/vit_digits.yaml -o SEED=3 NAME=a | -cfg=configs/vit_digits.yaml -opts SEED=3 NAME=a
--config configs/vit_digits.yaml | -cfg=configs/vit_digits.yaml
--local-rank=0 --local_rank 0 |
"""


@each_row(SAME)
def test_a_flag_of_another_program_is_this_programs(theirs, ours):
    assert config_for(*theirs.split()) == config_for(*ours.split())


@mark.parametrize("url", ["https://me:hunter2@host/d", "s3://b/d?X-Sig=hunter2", "ftp://me:hun/ter2@host/d"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(url, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"DATA:\n  DATA_PATH: {url}\n")
    for argv in ([f"-data_path={url}"], [f"-cfg={tmp_path / 'recipe.yaml'}"], ["-opts", f"DATA.DATA_PATH={url}"]):
        with refused(r"DATA\.DATA_PATH: the \w+ URL contains .*; ") as error:
            parse_command_line(argv)
        assert "ter2" not in str(error.value)
        assert "\n" not in str(error.value)


def test_a_flag_that_opts_replace_is_named():
    command = parse_command_line(cli("-batch_size=4 -epochs=3 -opts DATA.BATCH_SIZE=8"))
    assert [note.text.split()[0] for note in command.notes if "replaces it" in note.text] == ["-batch_size"]
    assert command.config.data.batch_size == 8


def test_home_is_expanded_in_flags_files_and_lists(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text("")
    (tmp_path / "base.yaml").write_text("SEED: 3\n")
    (tmp_path / "run.yaml").write_text(
        "BASE: [~/base.yaml]\nSAVE: ~/out\nDATA: {CACHE_DIR: '~/cache'}\nPLUGINS: [~/own.py]\n"
    )
    words = cli("-cfg=~/run.yaml -data_path ~/images -plugin=~/own.py -opts TRAIN.TEACHER_MODEL=~/t.pth")
    config = config_for(*words, "MODEL.PRETRAINED='~/a.pth'")
    assert_options(
        config, f"SAVE={tmp_path}/out DATA.CACHE_DIR={tmp_path}/cache DATA.DATA_PATH={tmp_path}/images SEED=3"
    )
    assert_options(config, f"MODEL.PRETRAINED={tmp_path}/a.pth TRAIN.TEACHER_MODEL={tmp_path}/t.pth")
    assert config.seed == 3
    assert config.plugins[0].startswith(f"{tmp_path}/own.py#")
    for words in (["-output=~"], ["-opts", "SAVE=~/"]):
        assert Path(config_for(*words).save) == tmp_path
    with refused(r"no user has this home folder; write the path, or \./~nobody-x/out for"):
        parse_command_line(["-output=~nobody-x/out"])


def test_of_two_cfg_files_the_last_one_is_read_and_the_others_are_named():
    """Who adds a file to the command of a script expects that both are read: the first one's options were lost."""
    command = parse_command_line(cli("-cfg=none.yaml -cfg configs/vit_digits.yaml -c configs/probe.yaml"))
    assert command.recipe == Path("configs/probe.yaml")
    named = [note.text.split()[1] for note in command.notes if note.kind == "screen" and "is not read" in note.text]
    assert named == ["none.yaml", "configs/vit_digits.yaml"]


def test_quoted_values_are_read():
    plain = "TRAIN.BASE_LR=1e-3 SAVE_FREQ=4 AMP=False EVAL=False DATA.NUM_WORKERS=None TRAIN.MODEL_EMA=True "
    plain += "TRAIN.OPTIMIZER.BETAS=(0.9,0.95)"
    quoted = [re.sub("=(.*)", r"='\1'", word) for word in plain.split()]
    config = config_for("-opts", "MODEL.NAME='4'", *quoted)
    assert config == config_for("-opts", "MODEL.NAME='4'", *plain.split())
    assert_options(config, "MODEL.NAME='\"4\"' TRAIN.BASE_LR=1e-3")


def test_the_page_of_all_options_is_current():
    """Else: python -m configs.help > docs/options.md"""
    assert (ROOT / "docs/options.md").read_text() == options_page() + "\n"


def test_each_key_of_each_family_has_help():
    known = all_keys()
    of_parts = tuple(f"{table.key}." for table in TABLES)  # of one loss, or of a plugin that an earlier test has run
    assert all(key.meaning for key in known)
    keys = [key for key in known if not key.name.startswith(of_parts)]
    sections = {key.section for key in keys}
    for family in MODEL_SECTIONS:
        described = {key.name for key in keys if not key.types or family in key.types}
        with_one_value = {f"MODEL.{key}" for key in (*FIXED_KEYS.get(family, ()), "FREEZE_BACKBONE")}
        assert set(known_keys(family)) - sections - with_one_value == described, family


def test_help_on_rules_has_each_rule(capsys):
    with raises(SystemExit) as end:
        parse_command_line(["-h", "RULES"])
    printed = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert all(" ".join(rule.__doc__.partition("\n\n")[0].split()) in printed for rule in ALL_RULES)


FOUND = """
words | found
threshold | EVAL.OPERATING_POINT:, -threshold
operating point | EVAL.OPERATING_POINT:
patients | DATA.GROUPS:
folds | DATA.FOLDS:, DATA.FOLD:
resize | DATA.RESIZE:
learning rate | -lr, TRAIN.BASE_LR:
gpu | -ngpus
"""


@each_row(FOUND)
def test_help_finds_keys_and_flags_by_words_of_their_descriptions(words, found, capsys):
    with raises(SystemExit):
        parse_command_line(["-h", words])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for text in found.split(", "):
        about = next(line for line in lines if line.startswith(text))
        assert text[0] != "-" or len(about) > 50  # with its meaning


def test_help_on_an_unknown_word_names_a_near_key():
    with refused(r"-h BASELR: .*TRAIN\.BASE_LR"):
        parse_command_line(["-h", "baselr"])
