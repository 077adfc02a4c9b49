"""Options that follow from others, from facts of the data and from the number of ranks -> the one `Config` of a run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.command_line import parse_command_line, to_yaml
from configs.compare import changed_options
from configs.resolve import Facts, resolve, warnings
from configs.schema import Config
from configs.yaml_io import parse_value, write_yaml
from utils.errors import UserError

FACTS = Facts(classes=7, named=True)
GLOBAL_BATCH = ("DATA.GLOBAL_BATCH_SIZE=24", "DATA.BATCH_SIZE=2")


def options(*keys: str) -> Config:
    return parse_command_line(["-opts", "SEED=0", *keys]).config


def steps_of(num_ranks: int, *keys: str) -> int:
    return resolve(options(*keys), Facts(num_ranks)).train.accum_iter


def test_accumulation_follows_from_the_number_of_ranks():
    assert [steps_of(ranks, *GLOBAL_BATCH) for ranks in (1, 2, 3, 4, 6, 12)] == [12, 6, 4, 3, 2, 1]
    assert steps_of(3, *GLOBAL_BATCH, "TRAIN.ACCUM_ITER=2") == 4  # of a recipe
    assert [steps_of(ranks) for ranks in (1, 7)] == [1, 1]
    assert steps_of(7, "TRAIN.ACCUM_ITER=3") == 3


@given(total=st.integers(1, 100), num_ranks=st.integers(1, 12), batch_size=st.sampled_from([1, 3, 8, 64]))
def test_the_batch_sizes_and_ranks_of_the_error_work(total, num_ranks, batch_size):
    keys = f"DATA.GLOBAL_BATCH_SIZE={total}", f"DATA.BATCH_SIZE={batch_size}"
    try:
        assert steps_of(num_ranks, *keys) * batch_size * num_ranks == total
    except UserError as error:
        assert f"DATA.GLOBAL_BATCH_SIZE {total}: " in str(error) and "\n" not in str(error)
        _, flag, size = str(error).partition("use -batch_size=")
        if flag:
            assert steps_of(num_ranks, keys[0], f"DATA.BATCH_SIZE={size}") >= 1
        else:
            assert steps_of(num_ranks, str(error).rpartition("use ")[2], keys[1]) >= 1


def test_a_resumed_run_is_resolved_again_for_its_ranks(tmp_path):
    first = resolve(options(*GLOBAL_BATCH), replace(FACTS, ranks=2))
    assert resolve(first, replace(FACTS, ranks=2)) == first
    (tmp_path / "config.yaml").write_text(to_yaml(first))
    resumed = resolve(parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).config, replace(FACTS, ranks=4))
    assert (first.train.accum_iter, resumed.train.accum_iter) == (6, 3)
    assert resumed.model_copy(update={"train": first.train}) == first


def test_classes_are_those_of_the_data_unless_they_are_given():
    free, fixed = options(), options("MODEL.NUM_CLASSES=3")
    assert resolve(free, Facts(1)) == free
    resolved = [resolve(config, FACTS) for config in (free, fixed)]
    assert [config.model.num_classes for config in resolved] == [7, 3]


def test_a_head_with_more_classes_than_the_data_is_warned_about():
    config = options("MODEL.NUM_CLASSES=1000")
    (line,) = warnings(config, FACTS)
    assert line.startswith("MODEL.NUM_CLASSES is 1000, but the data has 7 classes")
    assert warnings(config, Facts(classes=7)) == []  # numbers in a list: some may be missing


@pytest.mark.parametrize(
    ("metric", "multi_label", "classes", "problem"),
    [
        ("mean_ap", "false", 20, "one label per image; use loss, top1"),
        ("macro_f1", "true", 20, "several labels per image; use loss, mean_ap"),
        ("top5", "false", 7, "7 classes; use loss, top1, macro_f1"),
        ("loss", "true", 2, None),
        ("null", "true", 2, None),
    ],
)
def test_a_metric_that_does_not_apply_to_the_data_is_refused(metric, multi_label, classes, problem):
    config = options(f"EVAL.BEST_METRIC={metric}", f"DATA.MULTI_LABEL={multi_label}", "DATA.DATASET=csv")
    if problem is None:
        assert resolve(config, Facts(classes=classes)).eval == config.eval
    else:
        with pytest.raises(UserError) as error:
            resolve(config, Facts(classes=classes))
        assert f"EVAL.BEST_METRIC {metric} does not apply to {problem}" in str(error.value)


RECIPE = "TRAIN: {NUM_EPOCHS: 300, WARMUP_EPOCHS: 32}"
WARM_UPS = {  # recipe, flags -> warm-up of a run of 5 epochs
    "default": ("SEED: 0", 0.5),
    "family": ("MODEL: {TYPE: swin}", 0.5),
    "recipe": (RECIPE, 0.5),
    "short": ("TRAIN: {WARMUP_EPOCHS: 4}", 4),
}


@pytest.mark.parametrize("case", WARM_UPS)
def test_a_warm_up_that_is_not_shorter_than_the_run_becomes_a_tenth(case, tmp_path):
    text, expected = WARM_UPS[case]
    (tmp_path / "recipe.yaml").write_text(text)
    (tmp_path / "short.yaml").write_text("BASE: [recipe.yaml]\nTRAIN: {NUM_EPOCHS: 5}")
    recipe = f"-cfg={tmp_path / 'recipe.yaml'}"
    by_flag = parse_command_line([recipe, "-epochs=5"])
    for argv in ([recipe, "-opts", "TRAIN.NUM_EPOCHS=5"], [f"-cfg={tmp_path / 'short.yaml'}"]):
        assert parse_command_line(argv).config == by_flag.config
    assert by_flag.config.train.warmup_epochs == expected
    origin = "default" if case in ("default", "family") else "recipe.yaml:1"
    assert any("WARMUP_EPOCHS is 0.5" in note and origin in note for note in by_flag.notes) == (expected == 0.5)


@pytest.mark.parametrize(
    ("argv", "unused"),
    [
        (["-opts", "AMP.LEVEL=O2", "AMP.CUSTOM_BLACK_LIST=[softmax]"], "AMP.LEVEL, AMP.CUSTOM_BLACK_LIST:"),
        (["-opts", "AMP={ENABLED: false, DTYPE: bfloat16}"], "AMP.DTYPE:"),
        (["-opts", "AMP=true", "AMP.LEVEL=O2"], None),
        (["-opts", "AMP.TF32=true", "AMP.MAX_SKIPPED_STEPS=3"], None),
    ],
)
def test_keys_of_amp_without_the_flag_are_named(argv, unused):
    named = [note for note in parse_command_line(argv).notes if note.startswith("AMP")]
    assert named[0].startswith(unused) if unused else not named


def test_the_users_warm_up_for_these_epochs_stays():
    assert parse_command_line(["-epochs=5", "-opts", "TRAIN.WARMUP_EPOCHS=5"]).config.train.warmup_epochs == 5
    for argv in (["-epochs=5", "-opts"], ["-opts", "TRAIN.NUM_EPOCHS=5"], ["-opts"]):
        keys = ["TRAIN.WARMUP_EPOCHS=7", "TRAIN.NUM_EPOCHS=5"] if argv == ["-opts"] else ["TRAIN.WARMUP_EPOCHS=7"]
        with pytest.raises(UserError, match=r"-opts: TRAIN.WARMUP_EPOCHS 7 exceeds NUM_EPOCHS 5"):
            parse_command_line([*argv, *keys])


ROUND_TRIPS = [
    ["LOSS={NAME: bce, TARGET_THRESHOLD: 0.2}", "TRAIN.LR_SCHEDULER.NAME=linear"],
    ["LOSS.CLASS_WEIGHTS=balanced", "TRAIN.LR_SCHEDULER={NAME: step, DECAY_EPOCHS: 2.5, DECAY_RATE: 0.97}"],
    ["LOSS.CLASS_WEIGHTS=[1, 2.5]", "TRAIN.MODEL_EMA=true", "EVAL_RAW=true"],
    ["TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 30}", "TRAIN.SQRT_SCALED_LR=512", "TRAIN.PATIENCE=7"],
]


def parsed(*options: str):
    return parse_command_line(["-opts", *options]).config


@pytest.mark.parametrize("options", ROUND_TRIPS)
def test_the_resolved_options_make_the_same_config(tmp_path, options):
    config = parsed(*options)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).config
    assert again == config and to_yaml(again) == to_yaml(config)


def test_paddlevits_schedule_is_the_cosine():
    assert parsed("TRAIN.LR_SCHEDULER.NAME=warmupcosine") == parse_command_line([]).config


def test_adamwdl_is_a_name_of_adamw_with_layer_decay():
    with pytest.raises(UserError, match=r"AdamWDL needs LAYER_DECAY"):
        parsed("TRAIN.OPTIMIZER.NAME=adamwdl")
    assert parsed("TRAIN.OPTIMIZER.NAME=AdamWDL", "TRAIN.LAYER_DECAY=0.65").train.layer_decay == 0.65


def test_the_check_of_the_final_decay_knows_the_shortened_warm_up():
    assert parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9}").train.warmup_epochs == 1
    with pytest.raises(UserError, match=r"DECAY_EPOCHS 9.5 and WARMUP_EPOCHS 1 exceed NUM_EPOCHS 10; lower one"):
        parsed("TRAIN.NUM_EPOCHS=10", "TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 9.5}")


@pytest.mark.parametrize(
    ("model", "options", "tune"),
    [
        ("FREEZE_BACKBONE: true", [], "head"),
        ("FREEZE_BACKBONE: true, TUNE: full", [], "head"),  # of an earlier run
        ("FREEZE_BACKBONE: true", ["-model=resnet18"], "head"),
        ("FREEZE_BACKBONE: true", ["-opts", "MODEL.FREEZE_BACKBONE=false"], "full"),
        ("TUNE: 'last:2'", ["-opts", "MODEL.FREEZE_BACKBONE=false"], "last:2"),
        ("FREEZE_BACKBONE: true, TUNE: lora", [], None),
    ],
)
def test_paddlevits_frozen_backbone_is_a_tuned_head(tmp_path, model, options, tune):
    (tmp_path / "recipe.yaml").write_text(f"MODEL: {{{model}}}")
    argv = [f"-cfg={tmp_path / 'recipe.yaml'}", *options]
    if tune is None:
        with pytest.raises(UserError, match=r"recipe.yaml:1: MODEL.FREEZE_BACKBONE is TUNE=head, not TUNE=lora"):
            parse_command_line(argv)
    else:
        config = parse_command_line(argv).config
        assert str(config.model.tune) == tune and "FREEZE_BACKBONE" not in to_yaml(config)
        stored = parse_value(to_yaml(config))
        stored["MODEL"] |= {"TUNE": "full", "FREEZE_BACKBONE": True}
        assert ("MODEL.TUNE" in changed_options(write_yaml(stored), to_yaml(config))) == (tune != "head")
