"""The warning about options that a command does not use, against the options that the code of each command reads."""

import sys
from fnmatch import fnmatchcase
from typing import Any

from conftest import TINY_VIT, cli, config_for, each_row, noise_folder, told, train
from pytest import fixture, mark

from configs.command_line import parse_command_line, to_yaml, unused_keys
from configs.compare import changed_options
from configs.load import flatten
from configs.schema import Config
from configs.schema.section import Section
from engine.commands.run import run

# Read, and without effect: dropout in an evaluation, the loss scaler, values that the command replaces or never writes.
NO_EFFECT = "MODEL.*DROPOUT MODEL.DROPPATH MODEL.GRAD_CHECKPOINTING AMP.* EVAL.* LOGGERS DATA.DATA_PATH "
NO_EFFECT += "DATA.COLUMNS DATA.ENCODING MODEL.TUNE "  # an evaluation copies them to its final options, or sets them
NO_EFFECT += "TRAIN.MINUTES DATA.ON_BAD_IMAGE"  # a line of the screen names them; a prediction skips bad images
# Used, and not read here: with -amp, of tables, shards and torchvision's sets, of rules, and of data that are split.
IF = "AMP.* DATA.BATCH_SIZE* DATA.CACHE_* DATA.KWARGS DATA.COLUMNS DATA.ENCODING DATA.IMAGE_ROOT DATA.SHUFFLE_SHARDS "
IF += "DATA.FOLD DATA.SPLIT_SEED DATA.VAL_FRACTION MODEL.NAME NAME EVAL.ENABLED EVAL.MAPS"


def matches(key: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


NOT_USED = """
argv | named
-predict . -pretrained=x.pth -lr=3 -opts DATA.SPLIT_SEED=2 | -predict PATH does not use TRAIN.BASE_LR, DATA.SPLIT_SEED
-predict . -pretrained=x.pth -opts DATA.IMAGE_ROOT=x | -predict PATH does not use DATA.IMAGE_ROOT
-predict a.csv -pretrained=x.pth -opts DATA.IMAGE_ROOT=x DATA.ENCODING=gbk |
-eval -pretrained=x.pth -batch_size=3 -compile -amp | -eval does not use TRAIN.COMPILE
-eval -pretrained=x.pth -dry_run -epochs=3 -opts DATA.CACHE=true | -eval does not use TRAIN.NUM_EPOCHS, DATA.CACHE
-cfg=configs/vit_digits.yaml -eval -pretrained=x.pth |
-cfg=configs/vit_digits.yaml -profile -opts SAVE_FREQ=1 DATA.CACHE=true | -profile does not use DATA.CACHE, SAVE_FREQ
-cfg=configs/probe.yaml -opts DATA.HFLIP_PROB=0 | MODEL.TUNE probe does not use DATA.HFLIP_PROB
-cfg=configs/finetune.yaml -lr=1 -opts MODEL.TUNE=probe | MODEL.TUNE probe does not use TRAIN.BASE_LR
-cfg=configs/probe.yaml -opts TRAIN.SMOOTHING=0.1 |
"""


@each_row(NOT_USED)
def test_what_a_command_does_not_use_is_named(argv, named):
    assert "".join(told(parse_command_line(argv.split()).notes, "does not use", "warning")) == named


NEEDED = """
argv | named
-opts MODEL.LORA.RANK=2 TRAIN.MODEL_EMA_DECAY=0.9 | TRAIN.MODEL_EMA_DECAY: TRAIN.MODEL_EMA; MODEL.LORA.RANK: MODEL.TUNE
-opts MODEL.LORA.RANK=2 MODEL.TUNE=lora TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.MODEL_EMA=true |
-opts TRAIN.TEACHER_MODEL=deit_tiny_patch16_224 | TRAIN.TEACHER_MODEL: TRAIN.DISTILLATION_TYPE
-opts TRAIN.DISTILLATION_TYPE=hard TRAIN.DISTILLATION_ALPHA=0.3 TRAIN.DISTILLATION_TAU=2.0 | \
  TRAIN.DISTILLATION_TAU: TRAIN.DISTILLATION_TYPE
-opts LOSS.SMOOTH_TO_HALF=true TRAIN.RAND_AUGMENT_LAYERS=3 | \
  TRAIN.RAND_AUGMENT_LAYERS: TRAIN.RAND_AUGMENT; LOSS.SMOOTH_TO_HALF: DATA.MULTI_LABEL
-cfg=configs/vit_base_patch16_224.yaml |
-eval -pretrained=x.pth -opts MODEL.LORA.RANK=2 |
"""


@each_row(NEEDED)
def test_a_key_in_opts_without_the_option_that_it_belongs_to_is_named(argv, named):
    """For each key: the option."""
    texts = told(parse_command_line(argv.split()).notes, "no effect without", "warning")
    assert "; ".join(text.replace(" no effect without", "").partition("=")[0] for text in texts) == named


def test_a_probe_changes_only_keys_that_it_is_said_not_to_use():
    argv = cli("-cfg=configs/finetune.yaml -batch_size=8 -batch_size_eval=8 -opts DATA.BALANCED_SAMPLING=true")
    full, probe = (to_yaml(config_for(*argv, f"MODEL.TUNE={tune}")) for tune in ("full", "probe"))
    changed = changed_options(full, probe)
    assert changed["TRAIN.NUM_EPOCHS"] == (10, 1)
    assert changed["DATA.BALANCED_SAMPLING"] == (True, False)
    assert {key for key in changed if not matches(key, unused_keys("probe"))} == {"MODEL.TUNE", "DATA.BATCH_SIZE"}


def keys_of_sections(section: type[Section], above: str = "") -> dict[tuple[str, str], str]:
    """The key of each field of a section, and of the sections in it, by the names of class and field."""
    keys = {}
    for name, field in section.model_fields.items():
        if isinstance(field.default, Section):
            keys |= keys_of_sections(type(field.default), f"{above}{name.upper()}.")
        else:
            keys[section.__name__, name] = above + name.upper()
    return keys


KEYS = keys_of_sections(Config)


@fixture
def read_keys(monkeypatch):
    """The keys that code outside of configs/ reads."""
    found = set[str]()

    def read(section: Section, name: str) -> Any:
        if (key := KEYS.get((type(section).__name__, name))) and sys._getframe(1).f_globals["__name__"][
            :8
        ] != "configs.":
            found.add(key)
        return object.__getattribute__(section, name)

    monkeypatch.setattr("configs.schema.section.Section.__getattribute__", read)
    return found


@mark.slow
def test_no_command_reads_a_key_that_it_is_said_not_to_use(tmp_path, cpu, read_keys):
    noise_folder(tmp_path / "data", train=8, val=4, shape=(12, 12, 3))
    base = cli(f"-output={tmp_path} -dataset=folder -data_path={tmp_path / 'data'} -num_workers=0 -batch_size=4 -opts")
    base += [*TINY_VIT, "TRAIN.NUM_EPOCHS=1"]
    weights = [f"-pretrained={train(['-name=trained', *base], cpu) / 'last.pth'}", f"-output={tmp_path / 'files'}"]
    commands = {
        "train": base,
        "probe": [*base, "MODEL.TUNE=probe"],
        "profile": ["-profile", *base],
        "eval": ["-eval", f"-data_path={tmp_path / 'data'}", *weights],
        "predict": ["-predict", str(tmp_path / "data"), *weights],
        "embed": ["-embed", str(tmp_path / "data"), *weights],
    }
    default = {key for key, _ in flatten(Config().model_dump(by_alias=True))}
    for name, argv in commands.items():
        read_keys.clear()
        run(parse_command_line(argv), cpu)
        patterns = unused_keys(name, argv[1] if name in ("predict", "embed") else None)
        unused = {key for key in default if matches(key, patterns)}
        if name != "probe":  # which builds parts that it does not use
            assert not [key for key in unused & read_keys if not matches(key, NO_EFFECT.split())], name
        if name in ("eval", "predict", "embed"):
            assert not [key for key in default - unused - read_keys if not matches(key, IF.split())], name
