"""Files and flags -> one `Config`: order, types, and an error of one line for each mistake."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from configs.reading.command_line import parse_command_line, to_yaml
from configs.reading.compare import changed_options, non_default_lines, shared_options
from configs.reading.yaml_io import parse_value
from configs.schema import Amp, Config
from utils.errors import UserError

ROOT = Path(__file__).parents[2]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def error_of(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_command_line(list(argv))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_order_is_defaults_base_yaml_flags_opts(tmp_path):
    write(
        tmp_path, "base.yaml", "DATA: {BATCH_SIZE: 1, IMAGE_SIZE: 32}\nTRAIN: {BASE_LR: 1e-1, ACCUM_ITER: 2}\nSEED: 5"
    )
    recipe = write(tmp_path, "recipe.yaml", "BASE: ['base.yaml']\nDATA: {BATCH_SIZE: 3}\nTRAIN: {BASE_LR: 2e-2}")
    config = parse_command_line([f"-cfg={recipe}", "-batch_size=4", "-opts", "TRAIN.BASE_LR=3e-3"]).config
    assert config.data.crop_pct == 0.875  # default
    assert (config.data.image_size, config.train.accum_iter, config.seed) == (32, 2, 5)  # BASE
    assert config.data.batch_size == 4  # flag over YAML
    assert config.train.base_lr == 3e-3  # -opts over all


def test_paddlevits_yaml_notation(tmp_path):
    text = "TRAIN:\n    BASE_LR: 3e-3\n    GRAD_CLIP: None\n    OPTIMIZER:\n        BETAS: (0.9, 0.95)\nBASE: ['']\n"
    train = parse_command_line([f"-cfg={write(tmp_path, 'a.yaml', text)}"]).config.train
    assert (train.base_lr, train.grad_clip, train.optimizer.betas) == (3e-3, None, (0.9, 0.95))


def test_arguments_of_the_optimizer_are_one_value(tmp_path):
    recipe = write(tmp_path, "a.yaml", "TRAIN: {OPTIMIZER: {NAME: adan, BETAS: [0.9, 0.8, 0.7], KWARGS: {a: 1}}}")
    first = parse_command_line([f"-cfg={recipe}", "-opts", "TRAIN.OPTIMIZER.KWARGS={b: [x]}"]).config
    assert first.train.optimizer.betas == (0.9, 0.8, 0.7)
    assert first.train.optimizer.kwargs == {"a": 1, "b": ["x"]}
    assert parse_command_line([f"-cfg={write(tmp_path, 'run.yaml', to_yaml(first))}"]).config == first
    without = parse_command_line([f"-cfg={recipe}", "-opts", "TRAIN.OPTIMIZER.KWARGS=null"]).config
    assert changed_options(to_yaml(first), to_yaml(without)) == {"TRAIN.OPTIMIZER.KWARGS": ({"a": 1, "b": ["x"]}, None)}


def test_batch_size_sets_the_evaluation_batch_size_too():
    assert parse_command_line(["-batch_size=64"]).config.data.eval_batch_size == 64
    assert parse_command_line(["-batch_size=64", "-batch_size_eval=7"]).config.data.eval_batch_size == 7


def test_explicit_zero_is_a_value(tmp_path):
    recipe = write(tmp_path, "a.yaml", "DATA: {NUM_WORKERS: 4}\nTRAIN: {WARMUP_EPOCHS: 3, LAST_EPOCH: 2}")
    config = parse_command_line(
        [f"-cfg={recipe}", "-num_workers=0", "-last_epoch=0", "-opts", "TRAIN.WARMUP_EPOCHS=0"]
    ).config
    assert (config.data.num_workers, config.train.last_epoch, config.train.warmup_epochs) == (0, 0, 0)


@pytest.mark.parametrize("dash", ["-", "--"])
@pytest.mark.parametrize("joint", ["=", " "])
def test_every_spelling_of_a_flag(dash, joint):
    argv = f"{dash}image_size{joint}384 {dash}amp {dash}dataset{joint}folder".split()
    config = parse_command_line(argv).config
    assert (config.data.image_size, config.amp.enabled, config.data.dataset) == (384, True, "folder")


def test_amp_as_switch_and_as_section(tmp_path):
    switch = write(tmp_path, "a.yaml", "AMP: true")
    expected = Amp.model_validate({"ENABLED": True, "DTYPE": "bfloat16"})
    assert parse_command_line([f"-cfg={switch}", "-amp_dtype=bfloat16"]).config.amp == expected
    section = write(tmp_path, "b.yaml", "AMP: {DTYPE: float16}")
    assert not parse_command_line([f"-cfg={section}"]).config.amp.enabled
    assert parse_command_line(["-amp_dtype=bfloat16"]).config.amp.enabled
    assert parse_command_line([f"-cfg={section}", "-amp"]).config.amp.dtype == "float16"


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
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
    read = parse_command_line([f"-cfg={path}"]).config
    is_kept = "://" in text or os.path.isabs(text)
    assert (read.save, read.data.data_path) == (text, text if is_kept else os.path.abspath(text))


def test_folders_of_data_are_saved_absolute(tmp_path, monkeypatch):
    """They may differ between the hosts of a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    config = parse_command_line(["-opts", "DATA.DATA_PATH=a.csv", "DATA.IMAGE_ROOT=images"]).config
    data = parse_value(to_yaml(config))["DATA"]
    assert (data["DATA_PATH"], data["IMAGE_ROOT"]) == (str(tmp_path / "a.csv"), str(tmp_path / "images"))
    assert not {"DATA.DATA_PATH", "DATA.IMAGE_ROOT"} & shared_options(config).keys()


def test_numbers_are_yaml_1_2(tmp_path):
    recipe = write(tmp_path, "a.yaml", "SEED: 010\nTRAIN: {BASE_LR: 1e-3, END_LR: .5, WEIGHT_DECAY: 1}\nSAVE: on")
    config = parse_command_line([f"-cfg={recipe}"]).config
    assert (config.seed, config.train.base_lr, config.train.end_lr, config.train.weight_decay) == (10, 1e-3, 0.5, 1)
    assert config.save == "on"


YAML_MISTAKES = {
    "unknown key": ("TRAIN:\n    BASE_LRR: 1", r":2: unknown key TRAIN.BASE_LRR; did you mean TRAIN.BASE_LR\?"),
    "wrong section": ("BASE_LR: 1", r":1: unknown key BASE_LR; did you mean TRAIN.BASE_LR\?"),
    "lower case": ("train: {}", r":1: unknown key train; did you mean TRAIN\?"),
    "wrong type": ("DATA:\n  IMAGE_SIZE: big", r":2: DATA.IMAGE_SIZE is 'big': input should be a valid integer"),
    "bool for a number": ("SEED: true", r":1: SEED is True"),
    "yes for a bool": ("EVAL: yes", r":1: EVAL is 'yes'"),
    "no switch": ("AMP: 1", r":1: AMP is 1: must be true, false or a section of keys"),
    "empty path": ("SAVE: ''", r":1: SAVE is ''"),
    "nothing left": ("TRAIN: {LAST_EPOCH: 300}", r":1: TRAIN.LAST_EPOCH 300 of NUM_EPOCHS 300: no epoch is left"),
    "out of range": ("DATA: {BATCH_SIZE: 0}", r":1: DATA.BATCH_SIZE is 0: .*greater than or equal to 1"),
    "not finite": ("TRAIN: {BASE_LR: .inf}", r":1: TRAIN.BASE_LR"),
    "one beta": ("TRAIN: {OPTIMIZER: {BETAS: [0.9]}}", r":1: TRAIN.OPTIMIZER.BETAS is .*at least 2"),
    "arguments that are no mapping": ("TRAIN: {OPTIMIZER: {KWARGS: [1]}}", r":1: TRAIN.OPTIMIZER.KWARGS is \[1\]"),
    "beta of one": ("TRAIN: {OPTIMIZER: {BETAS: [0.9, 1.0]}}", r":1: TRAIN.OPTIMIZER.BETAS is 1.0: "),
    "twice": ("SEED: 1\nSEED: 2", r":2: SEED is given twice, first in line 1"),
    "alias": ("SEED: &a 1\nSAVE_FREQ: *a", r":2: aliases are not allowed"),
    "tag": ("SAVE: !!python/name:os.system", r":1: the tag .* is not allowed"),
    "no mapping": ("- 1", r":1: expected `KEY: value` lines"),
    "broken": ("SEED: [1", r":\d+: "),
    "warm-up": ("TRAIN: {NUM_EPOCHS: 3, WARMUP_EPOCHS: 4}", r":1: TRAIN.WARMUP_EPOCHS 4 exceeds NUM_EPOCHS 3"),
    "channels": ("DATA: {IMAGE_CHANNELS: 1}", r"DATA.IMAGENET_MEAN has 3 values for IMAGE_CHANNELS 1"),
    "no weights": ("EVAL: true", r":1: EVAL.ENABLED needs weights"),
    "base": ("BASE: 3", r":1: BASE must be a list of files"),
    "deep": ("[" * 5000, r"nested too deeply|expected"),
    "digits": ("SEED: " + "9" * 5000, r":1: a number of 5000 characters"),
    "long value": ("AMP: {DTYPE: " + "x" * 9000 + "}", r":1: AMP.DTYPE is 'x{20,40}\.\.\.x{20,40}': "),
    "long key": ("X" * 900 + ": 1", r":1: 'X{20,40}\.\.\.X{20,40}' is not a valid key"),
    "key with an escape code": ('"\\e[2J": 1', r":1: '\\x1b\[2J' is not a valid key"),
    "tag of a key": ("!!python/name:os.system SAVE: a", r":1: a key must be a plain word"),
    "zero byte in a path": (r'SAVE: "a\0b"', r":1: SAVE is 'a\\x00b': a path cannot contain a zero byte"),
    "half a character": (r'SAVE: "\ud800"', r":1: SAVE is '.ud800': .*unicode"),
    "no character": (r'SAVE: "\Uffffffff"', r": is not valid YAML"),
    "version": ("%YAML 1." + "9" * 5000 + "\n---\nSEED: 1", r": is not valid YAML|found"),
    "large": ("# " + "x" * 70000, r": is larger than 65536 bytes"),
    "base with a zero byte": (r'BASE: ["a\0b"]', r":1: BASE 'a\\x00b' is not a valid file name"),
    "no base": ("SEED: 1\nBASE: [none.yaml]", r"recipe.yaml:2: BASE: .*none.yaml: cannot be read: No such file"),
    "folder as base": ("BASE: [.]", r":1: BASE: .*: not a regular file"),
}


@pytest.mark.parametrize("mistake", YAML_MISTAKES)
def test_mistakes_in_yaml_name_file_line_and_key(mistake, tmp_path):
    text, expected = YAML_MISTAKES[mistake]
    message = error_of(f"-cfg={write(tmp_path, 'recipe.yaml', text)}")
    assert re.search(expected, message), message


FLAG_MISTAKES = {
    "unknown": (["-batchsize=4"], r"unknown flag -batchsize; did you mean -batch_size\?"),
    "pre-training of MAE": (["-mae_pretrain"], r"^-mae_pretrain: MAE's pre-training is not available"),
    "abbreviated": (["-e"], r"unknown flag -e"),
    "stray word": (["foo"], r"unknown flag foo"),
    "type": (["-batch_size=x"], r"-batch_size.*'x'"),
    "value": (["-accum_iter=0"], r"-accum_iter: TRAIN.ACCUM_ITER is 0"),
    "opts key": (["-opts", "DATA.BATCHSIZE=4"], r"unknown key DATA.BATCHSIZE; did you mean DATA.BATCH_SIZE\?"),
    "opts form": (["-opts", "SEED"], r"-opts SEED: expected KEY=VALUE"),
    "opts value": (["-opts", "SEED=[1"], r"cannot be read as a value"),
    "no space": (["-opts", "MODEL.KWARGS={img_size:64}"], r"'img_size:64'.* space after the colon"),
    "name of timm": (["-opts", "TRAIN.LR=1"], r"TRAIN\.LR; .*TRAIN\.BASE_LR"),
    "other name of timm": (["-opts", "LEARNING_RATE=1"], r"TRAIN\.BASE_LR"),
    "mixup of timm": (["-opts", "TRAIN.MIXUP=0.8"], r"TRAIN\.MIXUP; .*TRAIN\.MIXUP_ALPHA"),
    "drop path of timm": (["-opts", "MODEL.DROP_PATH=0.1"], r"MODEL\.DROPPATH"),
    "argument of a timm model": (["-opts", "MODEL.KWARGS.drop_path=0.1"], r"MODEL\.KWARGS={drop_path: "),
    "section with a name": (["-opts", "TRAIN.OPTIMIZER=lamb"], r"TRAIN\.OPTIMIZER is 'lamb': .*TRAIN\.OPTIMIZER\.NAME"),
    "section without a name": (["-opts", "DATA=digits"], r"DATA is 'digits': must be a section of keys$"),
    "YAML file without a flag": (["configs/vit_digits.yaml"], r"-cfg=configs/vit_digits\.yaml"),
    "no file": (["-cfg=nowhere.yaml"], r"nowhere.yaml: cannot be read: No such file"),
    "other ending": (["-cfg=lora.yml"], r"configs/lora\.yaml"),
    "no folder": (["-cfg=probe"], r"configs/probe\.yaml"),
    "opts deep": (["-opts", "SEED" + ".a" * 9000 + "=1"], r"unknown key SEED(\.a){30,40}$"),
    "ngpus": (["-ngpus=0"], r"-ngpus 0: must be at least 1"),
}


@pytest.mark.parametrize("mistake", FLAG_MISTAKES)
def test_mistakes_in_flags(mistake):
    argv, expected = FLAG_MISTAKES[mistake]
    assert re.search(expected, error_of(*argv)), error_of(*argv)


def test_mistakes_in_a_base_file_name_that_file(tmp_path):
    write(tmp_path, "a.yaml", "BASE: ['b.yaml']")
    write(tmp_path, "b.yaml", "SEED: 1\nBASE: ['a.yaml']")
    assert "b.yaml:2: BASE is cyclic: a.yaml -> b.yaml -> a.yaml" in error_of(f"-cfg={tmp_path / 'a.yaml'}")
    write(tmp_path, "b.yaml", "\nSEEDS: 1")
    assert "b.yaml:2: unknown key SEEDS; did you mean SEED?" in error_of(f"-cfg={tmp_path / 'a.yaml'}")


@pytest.mark.parametrize("base", ["../secret.yaml", "{root}/secret.yaml", "link.yaml", "folder/../../secret.yaml"])
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
        assert parse_command_line([f"-cfg={write(folder, 'a.yaml', f'BASE: [{name}]')}"]).config.seed == 7


@pytest.mark.parametrize("chain", [1, 2], ids=["deep", "twice over"])
def test_number_of_base_files_is_limited(tmp_path, chain):
    for number in range(40):
        write(tmp_path, f"{number}.yaml", f"BASE: [{', '.join([f'{number + 1}.yaml'] * chain)}]")
    write(tmp_path, "40.yaml", "SEED: 1")
    assert "BASE leads to more than 32 files" in error_of(f"-cfg={tmp_path / '0.yaml'}")


def test_recipe_that_is_not_a_regular_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for path in (tmp_path / "pipe.yaml", "/dev/zero", tmp_path):
        assert "not a regular file" in error_of(f"-cfg={path}")
    assert "Too many levels of symbolic links" in error_of(f"-cfg={tmp_path / 'loop.yaml'}")
    assert "cannot be read" in error_of("-cfg=a\0b.yaml")


def test_options_in_the_log_are_those_that_differ_from_the_defaults():
    options = ["TRAIN.BASE_LR=1e-3", "TRAIN.GRAD_CLIP=null", "DATA.IMAGENET_MEAN=[0.5,0.5,0.4]"]
    lines = non_default_lines(parse_command_line(["-dataset=digits", "-amp", "-opts", *options]).config)
    assert lines.strip().split(", ", 2) == [
        *("AMP.ENABLED=true", "DATA.DATASET=digits", "DATA.IMAGENET_MEAN=[0.5, 0.5, 0.4], TRAIN.BASE_LR=0.001"),
    ]
    assert non_default_lines(Config()) == "      none"
    of_recipe = non_default_lines(parse_command_line([f"-cfg={ROOT / 'configs/vit_digits.yaml'}"]).config).splitlines()
    assert 2 < len(of_recipe) <= 7 and max(map(len, of_recipe)) <= 120


@pytest.mark.parametrize(
    ("recipe", "flags", "dataset"),
    [
        ("DATASET: digits, DATA_PATH: x", [], "digits"),  # as in the folder of a run: its DATA_PATH is a default
        ("DATASET: digits, DATA_PATH: x", ["-opts", "DATA.CROP_PCT=1"], "digits"),
        ("DATASET: digits, DATA_PATH: x", ["-data_path=y"], "imagenet2012"),  # which recognizes folders
        ("DATASET: fake", ["-opts", "DATA.DATA_PATH=y"], "imagenet2012"),
        ("DATASET: digits", ["-data_path=y", "-dataset=csv"], "csv"),
        ("DATASET: csv, DATA_PATH: y", ["-data_path=x", "-opts", "DATA.DATASET=digits"], None),
        ("DATASET: csv, DATA_PATH: y", ["-dataset=digits"], "digits"),
        ("CROP_PCT: 1", ["-dataset=fake", "-data_path=y"], None),
    ],
)
def test_a_data_path_replaces_a_data_set_without_files(tmp_path, recipe, flags, dataset):
    (tmp_path / "recipe.yaml").write_text(f"DATA: {{{recipe}}}")
    argv = [f"-cfg={tmp_path / 'recipe.yaml'}", *flags]
    if dataset is None:
        with pytest.raises(UserError, match=r"DATASET \w+ .* does not use DATA.DATA_PATH"):
            parse_command_line(argv)
    else:
        command = parse_command_line(argv)
        assert command.config.data.dataset == dataset
        assert any("is replaced" in note for note in command.notes) == (dataset == "imagenet2012")


def test_long_and_unprintable_values_in_the_log_are_short():
    lines = non_default_lines(Config.model_validate({"SAVE": "x" * 5000, "DATA": {"DATA_PATH": "a\nb"}})).splitlines()
    assert len(lines) == 1 and len(lines[0]) <= 120 and r"DATA.DATA_PATH='a\nb'" in lines[0]


@pytest.mark.parametrize(
    "argv",
    [
        [f"-cfg={ROOT / 'configs/vit_digits.yaml'}"],
        *(["-resume=auto"], ["-dataset=digits"], ["-data_path=/data"], ["-opts", "MODEL.NAME=vit"]),
    ],
)
def test_a_recipe_data_or_a_model_selects_a_run(argv):
    parse_command_line(argv).require_selection()


def test_without_a_recipe_data_or_a_model_the_usage_is_printed(capsys):
    with pytest.raises(SystemExit) as end:
        parse_command_line(["-amp", "-batch_size=4", "-opts", "TRAIN.BASE_LR=1e-3"]).require_selection()
    printed = capsys.readouterr().err
    assert end.value.code == 2 and printed.startswith("usage: main_single_gpu.py -cfg FILE [flags]")
    assert printed.count("python main_single_gpu.py -") > 3


def test_the_options_of_a_run_have_absolute_paths_of_what_exists(tmp_path, monkeypatch):
    """A run is resumed from any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    options = ["DATA.IMAGE_ROOT=images", "DATA.CACHE_DIR=images", "MODEL.PRETRAINED=timm", "MODEL.TYPE=timm"]
    (tmp_path / "run.yaml").write_text(to_yaml(parse_command_line(["-opts", *options]).config))
    config = parse_command_line([f"-cfg={tmp_path / 'run.yaml'}"]).config
    assert config.data.image_root == config.data.cache_dir == str(tmp_path / "images")
    assert config.model.pretrained == "timm"


def test_the_log_says_that_a_second_yaml_file_replaces_the_first():
    first, second = "-cfg=configs/vit_digits.yaml", "-cfg=configs/folder_small.yaml"
    command = parse_command_line([first, second])
    assert command.config == parse_command_line([second]).config
    assert "configs/vit_digits.yaml is replaced" in command.notes[0] and "folder_small" in command.notes[0]
