"""Files and flags -> one `Config`: order, types, an error of one line for each mistake; are two of one experiment?"""

import os
import re
import shlex
from pathlib import Path

import yaml
from conftest import cells_of, cli, config_for, each_row, line_of, refused, told
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from pytest import mark, raises

from configs.command_line import parse_command_line, to_yaml
from configs.compare import changed_options, experiment_mismatch, shared_options
from configs.load import flatten
from configs.schema import Config
from configs.yaml_io import parse_value, read_yaml, write_yaml
from tests.configs.option_values import assert_options, parse_recipe
from utils.notes import STATUS


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def error_of(*argv: str) -> str:
    return line_of(parse_command_line, [*argv])


def test_order_is_defaults_base_yaml_flags_opts(tmp_path):
    write(
        tmp_path, "base.yaml", "DATA: {BATCH_SIZE: 1, IMAGE_SIZE: 32}\nTRAIN: {BASE_LR: 1e-1, ACCUM_ITER: 2}\nSEED: 5"
    )
    recipe = write(tmp_path, "recipe.yaml", "BASE: ['base.yaml']\nDATA: {BATCH_SIZE: 3}\nTRAIN: {BASE_LR: 2e-2}")
    config = config_for(f"-cfg={recipe}", "-batch_size=4", "-opts", "TRAIN.BASE_LR=3e-3")
    assert_options(config, "DATA.CROP_PCT=0.875 DATA.IMAGE_SIZE=32 TRAIN.ACCUM_ITER=2 SEED=5")  # default; BASE
    assert_options(config, "DATA.BATCH_SIZE=4 TRAIN.BASE_LR=3e-3")  # flag over YAML; -opts over all


def test_arguments_of_the_optimizer_are_one_value(tmp_path):
    recipe = write(tmp_path, "a.yaml", "TRAIN: {OPTIMIZER: {NAME: adan, BETAS: [0.9, 0.8, 0.7], KWARGS: {a: 1}}}")
    first = config_for(f"-cfg={recipe}", "-opts", "TRAIN.OPTIMIZER.KWARGS={b: [x]}")
    assert_options(first, "'TRAIN.OPTIMIZER.BETAS=[0.9, 0.8, 0.7]' 'TRAIN.OPTIMIZER.KWARGS={a: 1, b: [x]}'")
    assert config_for(f"-cfg={write(tmp_path, 'run.yaml', to_yaml(first))}") == first
    without = config_for(f"-cfg={recipe}", "-opts", "TRAIN.OPTIMIZER.KWARGS=null")
    assert changed_options(to_yaml(first), to_yaml(without)) == {"TRAIN.OPTIMIZER.KWARGS": ({"a": 1, "b": ["x"]}, None)}


GOALS = """
goal | expected
sensitivity: 0.8 | class: ill, groups: any, by_limit: true, sensitivity: 0.8, specificity: null
specificity: 0.7 | class: ill, groups: any, by_limit: true, sensitivity: null, specificity: 0.7
class: well, sensitivity: 0.8 | class: well, groups: null, by_limit: false, sensitivity: 0.8, specificity: null
"""


@each_row(GOALS)
def test_a_goal_of_an_operating_point_replaces_the_other_one_and_with_a_class_the_rest(goal, expected, tmp_path):
    """The file is as a run writes it."""
    point = "{class: ill, sensitivity: null, specificity: 0.9, groups: any, by_limit: true}"
    text = f"EVAL: {{OPERATING_POINT: {point}}}"
    found = parse_recipe(tmp_path, text, f"-opts 'EVAL.OPERATING_POINT={{{goal}}}'").config.eval.operating_point
    assert found.model_dump(by_alias=True).items() >= parse_value(f"{{{expected}}}").items()


def test_paddlevits_notation_and_numbers_of_yaml_1_2(tmp_path):
    text = (
        "BASE: ['']\nSEED: 010\nTRAIN: {BASE_LR: 3e-3, END_LR: .5, GRAD_CLIP: None, OPTIMIZER: {BETAS: '(0.9, 0.95)'}}"
    )
    expected = "TRAIN.BASE_LR=0.003 TRAIN.END_LR=0.5 TRAIN.GRAD_CLIP=null SEED=10 TRAIN.OPTIMIZER.BETAS=[0.9,0.95]"
    assert_options(parse_recipe(tmp_path, text).config, expected)


SWITCHES = """
recipe | flags | expected
AMP: true | -amp_dtype=bfloat16 | AMP.ENABLED=true AMP.DTYPE=bfloat16 AMP.LEVEL=O1
AMP: {DTYPE: float16} | | AMP.ENABLED=false
SEED: 0 | -amp_dtype=bfloat16 | AMP.ENABLED=true
AMP: {DTYPE: float16} | -amp | AMP.ENABLED=true AMP.DTYPE=float16
AMP: 'True' | | AMP.ENABLED=true
AMP: 'True' | -amp=no | AMP.ENABLED=false
"""


@each_row(SWITCHES)
def test_amp_as_switch_as_section_and_as_text(recipe, flags, expected, tmp_path):
    assert_options(parse_recipe(tmp_path, recipe, flags).config, expected)


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(lambda text: text[0] != "~"))
@example(text="1e3")
@example(text="None")
@example(text="0o17")
@example(text="(0.9, 0.999)")
@example(text="a: b # c")
@example(text="/0/")
def test_any_path_round_trips(text, tmp_path_factory):
    config = Config.model_validate({"SAVE": text, "DATA": {"DATA_PATH": text}})
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    read = config_for(f"-cfg={path}")
    is_kept = "://" in text or os.path.isabs(text)
    assert read.save == text
    assert read.data.data_path == (text if is_kept else os.path.abspath(text))


def test_folders_of_data_are_saved_absolute(tmp_path, monkeypatch):
    """A run is resumed from any folder; they may differ between the hosts of a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    options = ["DATA.DATA_PATH=a.csv", "DATA.IMAGE_ROOT=images", "MODEL={TYPE: timm, PRETRAINED: timm}"]
    config = config_for("-opts", *options)
    saved = dict(flatten(parse_value(to_yaml(config))))
    files = {"DATA.DATA_PATH": f"{tmp_path}/a.csv", "DATA.IMAGE_ROOT": f"{tmp_path}/images", "MODEL.PRETRAINED": "timm"}
    assert saved.items() >= files.items()
    assert not {"DATA.DATA_PATH", "DATA.IMAGE_ROOT"} & shared_options(config).keys()


def test_pyyaml_reads_the_names_that_are_written():
    names = {"A": cli("no on 12:30 1_000 0b11 2026-11-30 = 08 010 1e3 nan null")}
    assert yaml.safe_load(write_yaml(names)) == names


def test_mappings_in_a_list_may_have_equal_keys(tmp_path):
    rows = [{"A": 1, "B": {"C": 2}}, {"A": 3, "B": {"C": 4}}]
    assert read_yaml(Path(write(tmp_path, "rows.yaml", write_yaml({"ROWS": rows, "A": 5})))) == {"ROWS": rows, "A": 5}


# A file, whose lines are parted by "; ", and the error
YAML_MISTAKES = r"""
TRAIN:;     BASE_LRR: 1 | :2: unknown key TRAIN.BASE_LRR; did you mean TRAIN.BASE_LR\?
TRAIN: {LAST_EPOCH: 300} | :1: TRAIN.LAST_EPOCH 300 of NUM_EPOCHS 300: no epoch is left
DATA: {BATCH_SIZE: 0} | :1: DATA.BATCH_SIZE is 0: .*greater than or equal to 1
DATA: {NUM_WORKERS: 1}; DATA.NUM_WORKERS: 2 | :2: DATA.NUM_WORKERS is given twice, first in line 1
SEED: 1; SEED: 2 | :2: SEED is given twice, first in line 1
AMP: true; AMP.ENABLED: false | :2: AMP.ENABLED is given twice, also in line 1
DATA: hello; DATA.BATCH_SIZE: 4 | :1: DATA is 'hello': must be a section
DATA.BATCH_SIZE: 4; DATA: | :2: DATA is None: must be a section
DATA.BATCH_SIZE: 0; DATA: {} | :1: DATA.BATCH_SIZE is 0: .*greater than or equal to 1
DATA: {}; DATA.BATCH_SIZE: 0 | :2: DATA.BATCH_SIZE is 0: .*greater than or equal to 1
DATA.BATCH_SIZE.X: 3; DATA.BATCH_SIZE: 4 | :2: DATA.BATCH_SIZE is 4: must be a section
EVAL: {OPERATING_POINT: {class: a, specifity: 0.9}} | \
  :1: unknown key EVAL.OPERATING_POINT.specifity; did you mean EVAL.OPERATING_POINT.specificity\?
SEED: &a 1; SAVE_FREQ: *a | :2: aliases are not allowed; write the value
SAVE: !!python/name:os.system | :1: the tag .* is not allowed
SEED: !!int [1] | :1: the tag .* is not allowed
SAVE: *.out | :1: .* \*
SAVE: @x | :1: .* tabs
TRAIN:; \tNUM_EPOCHS: 4 | :2: .* spaces, not by tabs
TRAIN:;   BASE_LR: 1; \tNUM_EPOCHS: 4 | :3: .* spaces, not by tabs
TRAIN:;   NUM_EPOCHS:4;   BASE_LR: 1 | :3: .* `KEY: value` here and in the line above
TRAIN:;   NUM_EPOCHS = 4;   BASE_LR: 1 | :3: .* `KEY: value` here and in the line above
TRAIN:;   BASE_LR: 1;   NUM_EPOCHS:4 | :4: .* `KEY: value` in the line above
TRAIN:;   NUM_EPOCHS:4 | :1: TRAIN is 'NUM_EPOCHS:4': .* `KEY: value`
TRAIN:;   BASE_LR: 1;    NUM_EPOCHS: 4 | :3: .* indented
TRAIN:;   BASE_LR: 1;  NUM_EPOCHS: 4 | :3: .* indent
NAME: run: 3 | :1: .* quote
NAME: "x; SEED: 1 | :2: .* close each quotation mark
DATA: {RENAME: [a, b]} | :1: DATA.RENAME is \['a', 'b'\]: .*{name: value}
TRAIN: {BASE_LR: "0,001"} | :1: TRAIN.BASE_LR is '0,001': .*0\.001
TRAIN: {CUTMIX_MINMAX: [0.2, [0.8]]} | :1: TRAIN.CUTMIX_MINMAX is \[0.8\]
EVAL: {OPERATING_POINT: {class: a, specificity: 90}} | :1: EVAL.OPERATING_POINT.specificity is 90
- 1 | :1: expected `KEY: value` lines
TRAIN: {NUM_EPOCHS: 3, WARMUP_EPOCHS: 4} | :1: TRAIN.WARMUP_EPOCHS 4 exceeds NUM_EPOCHS 3
BASE: 3 | :1: BASE must be a list of files
BASE: false | :1: BASE must be a list of files
"\e[2J": 1 | :1: '\\x1b\[2J' is not a valid key
EVAL: true | :1: EVAL.ENABLED
SAVE: "a\0b" | :1: SAVE is 'a\\x00b': a path cannot contain a zero byte
BASE: ["a\0b"] | :1: BASE must be a list of files
SEED: 1; BASE: [none.yaml] | recipe.yaml:2: BASE: .*none.yaml: cannot be read: No such file
"""
LONG = [
    ["SEED: " + "9" * 5000, r":1: Exceeds the limit"],
    *([text * 200_000, r":1: .*(too deeply|maximum nesting depth)"] for text in ("[", "- ", "{a: ")),
    [r'SAVE: "\Uffffffff"', r": .*(too large|not in range|invalid Unicode)"],
    ["AMP: {DTYPE: " + "x" * 9000 + "}", r":1: AMP.DTYPE is 'x{20,40}\.\.\.x{20,40}': "],
]


@mark.parametrize("text, expected", [*cells_of(YAML_MISTAKES.replace("\\\n", "")), *LONG])
def test_mistakes_in_yaml_name_file_line_and_key(text, expected, tmp_path):
    content = text.replace("; ", "\n").replace(r"\t", "\t")
    message = line_of(parse_recipe, tmp_path, content)
    assert re.search(expected, message), message


@mark.parametrize("model", [5, None, [1], "vit", {"TYPE": 5}])
def test_a_model_that_is_no_section_is_an_error_of_pydantic(model):
    with raises(ValidationError):
        Config.model_validate({"MODEL": model})


@mark.parametrize("flag", ["-opts DATA.IMAGE_SIZE=32", "-batch_size=4", "-dataset=digits", "-cfg=recipe.yaml"])
@mark.parametrize("value", ["hello", "[1, 2]", "null", "0"])
def test_a_value_in_place_of_a_section_is_never_replaced_by_keys_of_higher_layers(flag, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "base.yaml", f"SEED: 1\nDATA: {value}")
    write(tmp_path, "recipe.yaml", "BASE: [base.yaml]\nDATA: {CROP_PCT: 1}")
    message = error_of("-cfg=base.yaml", *flag.split())
    assert message.startswith("base.yaml:2: DATA is ")
    assert "must be a section of keys" in message


def test_mistakes_in_a_base_file_name_that_file(tmp_path):
    write(tmp_path, "a.yaml", "BASE: ['b.yaml']")
    write(tmp_path, "b.yaml", "SEED: 1\nBASE: ['a.yaml']")
    assert "b.yaml:2: BASE 'a.yaml' is cyclic" in error_of(f"-cfg={tmp_path / 'a.yaml'}")
    write(tmp_path, "b.yaml", "\nSEEDS: 1")
    assert "b.yaml:2: unknown key SEEDS; did you mean SEED?" in error_of(f"-cfg={tmp_path / 'a.yaml'}")


@mark.parametrize("base", ["../secret.yaml", "{root}/secret.yaml", "link.yaml", "folder/../../secret.yaml"])
def test_base_outside_the_roots_is_refused(tmp_path, base):
    write(tmp_path, "secret.yaml", "SEED: 7")
    (recipes := tmp_path / "recipes").mkdir()
    (recipes / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    recipe = write(recipes, "a.yaml", f"SEED: 1\nBASE: [{base.format(root=tmp_path)}]")
    assert f"{recipe}:2: BASE '" in (message := error_of(f"-cfg={recipe}"))
    assert f"is outside {recipes}" in message


def test_base_may_be_below_the_working_directory_or_beside_the_recipe(tmp_path, monkeypatch):
    base = write(tmp_path, "base.yaml", "SEED: 7")
    for folder, name in ((tmp_path, base), (tmp_path / "recipes", "../base.yaml")):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path)
        assert config_for(f"-cfg={write(folder, 'a.yaml', f'BASE: [{name}]')}").seed == 7


@mark.parametrize("names", ["{0}.yaml", "{0}.yaml, {0}.yaml"], ids=["a chain", "each file twice"])
def test_base_files_are_limited_as_two_names_in_each_would_double_the_time_per_level(tmp_path, names):
    for number in range(40):
        write(tmp_path, f"{number}.yaml", f"BASE: [{names.format(number + 1)}]")
    write(tmp_path, "40.yaml", "SEED: 1")
    assert "BASE leads to more than 32 files" in error_of(f"-cfg={tmp_path / '0.yaml'}")


def test_recipe_that_is_not_a_regular_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for path in (tmp_path / "pipe.yaml", "/dev/zero", tmp_path):
        assert "not a regular file" in error_of(f"-cfg={path}")
    assert "Too many levels of symbolic links" in error_of(f"-cfg={tmp_path / 'loop.yaml'}")
    assert "cannot be read" in error_of("-cfg=a\0b.yaml")


# The recipe, flags, DATA.DATASET or nothing for an error
DATA_PATHS = """
recipe | flags | dataset
DATASET: digits, DATA_PATH: x |  | digits  # as in the folder of a run: its DATA_PATH is a default
DATASET: digits, DATA_PATH: x | -data_path=y | imagenet2012  # which recognizes folders
DATASET: fake | -opts DATA.DATA_PATH=y | imagenet2012
DATASET: csv, DATA_PATH: y | -data_path=x -opts DATA.DATASET=digits |
DATASET: csv, DATA_PATH: y | -dataset=digits | digits
CROP_PCT: 1 | -dataset=fake -data_path=y |
"""


@each_row(DATA_PATHS)
def test_a_data_path_replaces_a_data_set_without_files(tmp_path, recipe, flags, dataset):
    text = f"DATA: {{{recipe}}}"
    if not dataset:
        with refused(r"DATASET \w+ .* does not use DATA.DATA_PATH"):
            parse_recipe(tmp_path, text, flags)
    else:
        command = parse_recipe(tmp_path, text, flags)
        assert command.config.data.dataset == dataset
        assert bool(told(command.notes, "is replaced")) == (dataset == "imagenet2012")


def test_a_recipe_data_or_a_model_selects_a_run(capsys):
    for argv in (["-cfg=configs/vit_digits.yaml"], ["-resume=auto"], ["-data_path=/d"], ["-opts", "MODEL.NAME=vit"]):
        parse_command_line(argv).require_selection()
    with raises(SystemExit) as end:
        parse_command_line(["-amp", "-batch_size=4", "-opts", "TRAIN.BASE_LR=1e-3"]).require_selection()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: main_single_gpu.py -data_path FOLDER")


MISMATCHES = """
option | difference
SEED=1 | SEED 0, this run has 1
'DATA={FOLDS: 5, FOLD: 1}' | DATA.FOLD 0, this run has 1
MODEL.DEPTH=3 | MODEL.DEPTH 12, this run has 3
DATA.DATA_PATH=./data/ |
TRAIN.NUM_EPOCHS=299 | TRAIN.NUM_EPOCHS 300, this run has 299
TRAIN.NUM_EPOCHS=301 |
TRAIN.ACCUM_ITER=2 |
MODEL.FUSED_BLOCKS=false |
TRAIN.BASE_LR=0.5 | TRAIN.BASE_LR 0.003, this run has 0.5
EVAL.ENABLED=true MODEL.RESUME=auto TRAIN.BASE_LR=0.5 |
"""


@each_row(MISMATCHES)
def test_first_difference(tmp_path, option, difference):
    argv = ["-dataset=csv", "-data_path=data"]
    folds = ", FOLDS: 5, FOLD: 0" if "FOLD" in option else ""
    (tmp_path / "config.yaml").write_text(f"NAME: other\nDATA: {{DATASET: csv, DATA_PATH: data{folds}}}")
    config = config_for(*argv, "-opts", *shlex.split(option))
    assert experiment_mismatch(tmp_path / "config.yaml", config) == (difference or None)


def test_unreadable_options_do_not_match(tmp_path):
    (tmp_path / "config.yaml").write_text("- 1")
    assert "expected `KEY: value` lines" in experiment_mismatch(tmp_path / "config.yaml", config_for())


BEFORE = """
file | version | rate | optimizer
config.yaml | | null | nesterov
config.yaml | VERSION: 0.3.0 | 0.0 | SGD
a.yaml | | 0.0 | SGD
"""


@each_row(BEFORE)
def test_runs_of_before_alone_keep_the_meanings_of_their_options(file, version, rate, optimizer, tmp_path):
    """A rate of 0 was timm's own, and SGD had Nesterov momentum."""
    (tmp_path / STATUS).write_text("{}")
    options = "\nMODEL: {TYPE: timm, NAME: nest_tiny, DROPPATH: 0.0, DROPOUT: 0.0}\nTRAIN: {OPTIMIZER: {NAME: SGD}}"
    config = config_for(f"-cfg={write(tmp_path, file, version + options)}")
    assert_options(config, f"MODEL.DROPPATH={rate} MODEL.DROPOUT={rate} TRAIN.OPTIMIZER.NAME={optimizer}")


def test_a_rate_of_0_of_before_is_no_change():
    now = config_for("-opts", "MODEL={TYPE: timm, NAME: nest_tiny}")
    same = parse_value(to_yaml(now))
    same["MODEL"] |= {"DROPPATH": 0.0, "DROPOUT": 0.0}
    same.pop("VERSION", None)
    assert changed_options(write_yaml(same), to_yaml(now)) == {}
