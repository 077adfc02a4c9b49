"""The rules of options (configs/resolve.py): -model, presets, old keys, defaults, facts of the data -> one `Config`."""

import json
import re
import shlex
from ast import literal_eval
from operator import attrgetter

from conftest import ROOT, cells_of, cli, config_for, each_row, line_of, refused, told
from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises

from configs.batch_plan import BatchPlan, EpochLayout
from configs.command_line import parse_command_line, to_yaml
from configs.compare import changed_options, set_by
from configs.flags import KEY_FLAGS
from configs.resolve import Facts, check_best_metric, follow_facts
from configs.schema import Config
from configs.schema.compute import PRESETS
from configs.yaml_io import parse_value, write_yaml
from tests.configs.option_values import assert_options, parse_recipe
from utils.errors import Findings, UserError


def options(*keys: str) -> Config:
    return config_for("-opts", "SEED=0", *keys)


def steps_of(num_ranks: int, *keys: str) -> int:
    return follow_facts(options(*keys), Facts(num_ranks)).train.accum_iter


STEPS = """
ranks | keys | steps
1 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 12
2 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 6
3 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 4
4 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 3
6 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 2
12 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 | 1
3 | DATA.GLOBAL_BATCH_SIZE=24 DATA.BATCH_SIZE=2 TRAIN.ACCUM_ITER=2 | 4  # the second one is of a recipe
1 | | 1
7 | | 1
7 | TRAIN.ACCUM_ITER=3 | 3
"""


@each_row(STEPS)
def test_accumulation_follows_from_the_number_of_ranks(ranks, keys, steps):
    assert steps_of(int(ranks), *keys.split()) == int(steps)


OTHER_BATCHES = """
size | line
8 |
4 | the global batch size is 4, before 8; DATA.GLOBAL_BATCH_SIZE=8 keeps it
2 | the global batch size is 2, before 8; DATA.GLOBAL_BATCH_SIZE=8 keeps it
12 | the global batch size is 12, before 8
"""


@each_row(OTHER_BATCHES)
def test_another_global_batch_of_a_checkpoint_is_named_with_the_option_that_keeps_it(size, line):
    before, now = (EpochLayout(64, BatchPlan(number), seed=0) for number in (8, int(size)))
    assert now.changed_global_batch({"geometry": before.geometry}) == (line or None)


CLASSES = """
words | number | before
DATA.ONLY_CLASSES=[3,8] | 2 | 10
DATA.ONLY_CLASSES=[3,6,8] 'DATA.RENAME={6: 8}' | 2 | 10
DATA.ONLY_CLASSES=[0,1,2,3,4,5,6,7,8,9] | 10 |
DATA.ONLY_CLASSES=[3,8] MODEL.NUM_CLASSES=10 | 10 |
DATA.ONLY_CLASSES=[3,8] EVAL.ENABLED=true MODEL.PRETRAINED=x.pth | 10 |
"""


@each_row(CLASSES)
def test_a_recipe_has_as_many_classes_as_are_chosen(words, number, before):
    command = parse_command_line(["-cfg=configs/vit_digits.yaml", "-opts", *shlex.split(words)])
    assert command.config.model.num_classes == int(number)
    expected = [f"MODEL.NUM_CLASSES is {number} in place of {before}: DATA.ONLY_CLASSES"] if before else []
    assert told(command.notes, "NUM_CLASSES") == expected


DTYPES = """
words | dtype
-model=vit_small_patch16_dinov3 -amp | bfloat16
-model=vit_small_patch16_dinov3 -amp -amp_dtype=float16 | float16
-model=vit_small_patch16_dinov2 -amp | None
-model=vit_small_patch16_dinov3 | None
"""


@each_row(DTYPES)
def test_dinov3_takes_bfloat16_unless_a_dtype_is_given(words, dtype):
    assert str(config_for(*words.split()).amp.dtype) == dtype


RATES = """
words | rate
-cfg=configs/finetune.yaml -opts MODEL.TUNE=last:4 | 2e-4
-cfg=configs/finetune.yaml -opts MODEL.TUNE=lora | 5e-4
-cfg=configs/lora.yaml -lr=3e-3 | 3e-3
-cfg=configs/finetune.yaml -opts MODEL.PRETRAINED=null | 3e-3  # the default: from scratch
-cfg=configs/vit_base_patch16_224_folder.yaml | 2e-4  # PaddleViT's head
"""


@each_row(RATES)
def test_the_rate_of_a_fine_tuning_follows_from_the_trained_part(words, rate, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert config_for(*words.split()).train.base_lr == float(rate)


@given(total=st.integers(1, 100), num_ranks=st.integers(1, 12), batch_size=st.sampled_from([1, 3, 8, 64]))
def test_the_global_batch_of_the_error_works(total, num_ranks, batch_size):
    size = f"DATA.BATCH_SIZE={batch_size}"
    try:
        assert steps_of(num_ranks, f"DATA.GLOBAL_BATCH_SIZE={total}", size) * batch_size * num_ranks == total
    except UserError as error:
        advised = str(error).rpartition("use ")[2].partition(",")[0]
        assert steps_of(num_ranks, advised, size) >= 1


# EVAL.BEST_METRIC, DATA.MULTI_LABEL, MODEL.NUM_CLASSES, the metrics that the error offers
METRICS = """
metric | multi_label | classes | others
mean_ap | false | 20 | loss, top1
top1 | true | 20 | loss, mean_ap
top5 | false | 7 | loss, top1, macro_f1
auroc | false | 257 | loss, top1, top5, macro_f1
loss | true | 2 |
"""


@each_row(METRICS)
def test_a_metric_that_does_not_apply_to_the_data_is_refused(metric, multi_label, classes, others):
    config = options(f"EVAL.BEST_METRIC={metric}", f"DATA.MULTI_LABEL={multi_label}", "DATA.DATASET=csv")
    facts = Facts(classes=int(classes))
    if not others:
        assert follow_facts(config, facts).eval == config.eval
        return
    message = line_of(follow_facts, config, facts)
    problem = f"DATA.MULTI_LABEL {multi_label} and MODEL.NUM_CLASSES {classes}; use {others}"
    assert f"EVAL.BEST_METRIC {metric} does not apply to {problem}" in message


def test_the_metrics_that_are_advised_before_the_classes_are_known_apply_to_three():
    message = line_of(check_best_metric, options("EVAL.BEST_METRIC=mean_ap"))
    for name in message.partition("; use ")[2].split(", "):
        follow_facts(options(f"EVAL.BEST_METRIC={name}"), Facts(classes=3))


# A recipe; the warm-up of a run of 5 epochs; the origin of another one in a line about it
WARM_UPS = """
text | expected | origin
SEED: 0 | 0.5 | default
MODEL: {TYPE: swin} | 0.5 | default
TRAIN: {NUM_EPOCHS: 300, WARMUP_EPOCHS: 32} | 0.5 | recipe.yaml:1
TRAIN: {WARMUP_EPOCHS: 2.5} | 0.5 | recipe.yaml:1
TRAIN: {WARMUP_EPOCHS: 2} | 2 |
"""


@each_row(WARM_UPS)
def test_a_warm_up_of_much_of_the_run_becomes_a_tenth(text, expected, origin, tmp_path):
    (tmp_path / "recipe.yaml").write_text(text)
    (tmp_path / "short.yaml").write_text("BASE: [recipe.yaml]\nTRAIN: {NUM_EPOCHS: 5}")
    recipe = f"-cfg={tmp_path / 'recipe.yaml'}"
    by_flag = parse_command_line([recipe, "-epochs=5"])
    for argv in ([recipe, "-opts", "TRAIN.NUM_EPOCHS=5"], [f"-cfg={tmp_path / 'short.yaml'}"]):
        assert config_for(*argv) == by_flag.config
    assert by_flag.config.train.warmup_epochs == float(expected)
    said = told(by_flag.notes, "WARMUP_EPOCHS is 0.5")
    assert [origin in text for text in said] == [True] * bool(origin)


# The section MODEL of a recipe, an option, MODEL.TUNE
FROZEN = """
model | option | tune
FREEZE_BACKBONE: true | | head
FREEZE_BACKBONE: true, TUNE: full | | head  # of an earlier run
FREEZE_BACKBONE: true | MODEL.FREEZE_BACKBONE=false | full
TUNE: 'last:2' | MODEL.FREEZE_BACKBONE=false | last:2
"""


@each_row(FROZEN)
def test_paddlevits_frozen_backbone_is_a_tuned_head(tmp_path, model, option, tune):
    config = parse_recipe(tmp_path, f"MODEL: {{{model}}}", f"-opts SEED=0 {option}").config
    assert config.model.tune == tune
    assert "FREEZE_BACKBONE" not in to_yaml(config)
    stored = parse_value(to_yaml(config))
    stored["MODEL"] |= {"TUNE": "full", "FREEZE_BACKBONE": True}
    assert ("MODEL.TUNE" in changed_options(write_yaml(stored), to_yaml(config))) == (tune != "head")


def test_a_frozen_backbone_is_tuned_in_one_way(tmp_path):
    with refused(r"recipe.yaml:1: MODEL.FREEZE_BACKBONE is TUNE=head, not TUNE=lora"):
        parse_recipe(tmp_path, "MODEL: {FREEZE_BACKBONE: true, TUNE: lora}")


MODELS = """
flags | expected
-model=vit_tiny_patch16_224 | MODEL.NAME=vit_tiny_patch16_224 MODEL.PATCH_SIZE=16 MODEL.DEPTH=12 MODEL.EMBED_DIM=192 \
    MODEL.DROPOUT=0.0 MODEL.ATTENTION_DROPOUT=0.0  # the rates are of -cfg; the recipe of this name has 0.1
-model=vit_digits |
-model=resnet18 | MODEL.TYPE=timm MODEL.NAME=resnet18  # a name that is no recipe
"""


@each_row(MODELS)
def test_the_model_replaces_that_of_the_recipe(flags, expected, tmp_path):
    text = "MODEL: {NAME: mine, PATCH_SIZE: 8, DEPTH: 3, NUM_CLASSES: 7, PRETRAINED: a.pth}\nSEED: 3"
    config = parse_recipe(tmp_path, text, flags).config
    assert_options(config, f"{expected} MODEL.NUM_CLASSES=7 MODEL.PRETRAINED=a.pth SEED=3")


# The section MODEL of a recipe beside -model; DROPOUT, ATTENTION_DROPOUT and DROPPATH; whether a line is about them
DROP_RATES = """
section | flags | rates | said
TYPE: vit, DROPOUT: 0.2 | -model=vit_tiny_patch16_224 | 0.2 0.0 0.0 | true
TYPE: vit, DROPOUT: 0.1, ATTENTION_DROPOUT: 0.1 | -model=vit_tiny_patch16_224 | 0.1 0.1 0.0 | false
TYPE: vit | -model=deit_tiny_patch16_224 | None 0.0 None | true  # timm's model, with its own
TYPE: swin | -model=vit_tiny_patch16_224 | 0.0 0.0 0.1 | true
TYPE: vit, DROPPATH: 0.3 | -model=resnet18 | None 0.0 0.3 | false
TYPE: timm, NAME: resnet18 | -model=swin_tiny_patch4_window7_224 | None 0.0 None | true  # the model's own 0.1
TYPE: timm, NAME: test_vit, KWARGS: {drop_path_rate: 0.3} | -model=vit_tiny_patch16_224 | None 0.0 0.3 | true
TYPE: timm, NAME: resnet18 | -model=swin_tiny_patch4_window7_224 -pretrained=a.pth | 0.0 0.0 0.1 | true
TYPE: vit | -model=vit_tiny_patch16_224 -opts MODEL.DROPOUT=0.3 | 0.3 0.0 0.0 | true
"""


@each_row(DROP_RATES)
def test_the_model_beside_a_recipe_keeps_its_drop_rates(section, flags, rates, said, tmp_path):
    command = parse_recipe(tmp_path, f"MODEL: {{{section}}}", flags)
    model = command.config.model
    assert f"{model.dropout} {model.attention_dropout} {model.droppath}" == rates
    assert bool(told(command.notes, "Of -cfg: ")) == (said == "true")


def test_weights_of_timm_need_a_model_of_timm():
    recipe = f"-cfg={ROOT / 'configs' / 'finetune.yaml'}"
    name = "-model=vit_tiny_patch16_224"
    for flags in ([recipe, name], [name, "-pretrained=timm"]):
        assert_options(config_for(*flags), "MODEL.TYPE=timm MODEL.NAME=vit_tiny_patch16_224")
    refused_flags = ["-pretrained=timm", "-opts", "MODEL.TYPE=vit"]
    for flags in (refused_flags, [name, *refused_flags]):
        assert "in place of MODEL.TYPE vit" in line_of(parse_command_line, flags)
    command = parse_command_line([recipe, name, "-pretrained=a.pth"])
    rates = "MODEL.DROPOUT=0.0 MODEL.ATTENTION_DROPOUT=0.0 MODEL.DROPPATH=0.0"
    assert_options(command.config, f"{rates} MODEL.TYPE=vit MODEL.EMBED_DIM=192 MODEL.PRETRAINED=a.pth")
    assert told(command.notes, "vit_tiny_patch16_224 has MODEL.DROPOUT=0.1, MODEL.ATTENTION_DROPOUT=0.1")


DESCRIBED = """
architecture: test_vit
model_args: {img_size: [64, 64], num_classes: 9, reg_tokens: 4, depth: 2}
pretrained_cfg: {input_size: [3, 64, 64], global_pool: avg}
"""


def test_a_folder_of_timms_gives_the_architecture(tmp_path):
    """Its config.json is read once: the options of the run describe the model without it."""
    described = tmp_path / "config.json"
    described.write_text(json.dumps(parse_value(DESCRIBED)))
    argv = [f"-model=local-dir:{tmp_path}", "-opts", "MODEL.KWARGS={depth: 3, qk_norm: true}"]
    command = parse_command_line([*argv, "MODEL.PRETRAINED=timm"])
    kwargs = "{global_pool: avg, reg_tokens: 4, depth: 3, qk_norm: true}"
    expected = f"MODEL.TYPE=timm MODEL.NAME=test_vit MODEL.NUM_CLASSES=null 'MODEL.KWARGS={kwargs}'"
    assert_options(command.config, f"{expected} MODEL.PRETRAINED={tmp_path}")
    assert command.run_name == "test_vit"
    assert_options(config_for(*argv), "MODEL.PRETRAINED=null")
    described.unlink()
    text = to_yaml(command.config)
    assert parse_recipe(tmp_path, text).config == command.config
    assert_options(parse_recipe(tmp_path, text, "-model=resnet18").config, "MODEL.KWARGS=null")


@mark.parametrize("content", [None, "{", '{"architectures": ["X"]}', '{"architecture": "x", "model_args": 1}'])
def test_a_folder_without_a_model_of_timms_is_refused(tmp_path, content):
    if content:
        (tmp_path / "config.json").write_text(content)
    with refused(rf"^{tmp_path}/config\.json: [^\n]*$"):
        config_for(f"-model=local-dir:{tmp_path}")


VALUES = """
enabled level init_loss_scaling incr_every_n_steps incr_ratio decr_every_n_nan_or_inf decr_ratio
"""
PUBLISHED = """
fp32 | False, 'O1', 65536, 2000, 2.0, 1, 0.5
torch | True, 'O1', 65536, 2000, 2.0, 1, 0.5
naive | True, 'O2', 65536, 1000, 2.0, 2, 0.5
apex_o1 | True, 'O1', 65536, 2000, 2.0, 1, 0.5
apex_o2 | True, 'O2', 65536, 2000, 2.0, 1, 0.5
fleet | True, 'O1', 32768, 1000, 2.0, 2, 0.5
paddle | True, 'O1', 1024, 2000, 2.0, 1, 0.5
bf16_stream | True, 'O1', 65536, 2000, 2.0, 1, 0.5
"""


def test_each_preset_has_its_row():
    assert {preset for preset, _ in cells_of(PUBLISHED)} == PRESETS.keys()


@mark.parametrize("preset, published", cells_of(PUBLISHED))
def test_a_preset_has_its_published_values(preset, published):
    command = parse_command_line(["-opts", f"AMP.PRESET={preset}"])
    assert attrgetter(*VALUES.split())(command.config.amp) == literal_eval(published)
    assert len(told(command.notes, f"AMP.PRESET {preset}: ")) == len(told(command.notes, "PRESET")) == 1


LAYERS = """
recipe | flags | expected
INCR_RATIO: 4.0, PRESET: fleet | | AMP.INIT_LOSS_SCALING=32768.0 AMP.INCR_RATIO=4.0
ENABLED: true, INIT_LOSS_SCALING: 8.0, MIN_LOSS_SCALING: 2.0 | -opts AMP.PRESET=fleet | \
    AMP.INIT_LOSS_SCALING=32768.0 AMP.MIN_LOSS_SCALING=2.0
ENABLED: true | -amp -opts AMP.PRESET=fp32 | AMP.ENABLED=false
PRESET: fp32 | -amp | AMP.ENABLED=true
"""


@each_row(LAYERS)
def test_keys_of_the_same_file_win_over_a_preset_and_a_preset_over_lower_layers(recipe, flags, expected, tmp_path):
    assert_options(parse_recipe(tmp_path, f"AMP: {{{recipe}}}", flags).config, expected)


TYPED = parse_value("""
amp: false
amp_dtype: float16
compile: none
eval: false
accum_iter: 2
epochs: 7
minutes: 3.0
lr: 0.5
last_epoch: 1
dataset: cifar10
data_path: images
batch_size: 8
memory_gb: 2.0
batch_size_eval: 4
image_size: 32
num_workers: 1
pretrained: x.pth
teacher_model_path: x.pth
resume: x.pth
output: runs
name: mine
""")


@mark.parametrize("preset", PRESETS)
def test_a_typed_flag_beside_a_preset_holds_or_is_named_or_is_refused(preset):
    key_of = {flag.name: flag.key for flag in KEY_FLAGS}
    assert key_of.keys() == {*TYPED, "save_logits"}  # which needs -eval
    named = set()
    for name, value in TYPED.items():
        typed = f"-{name}={'no' if value in (False, 'none') else value}"
        try:
            command = parse_command_line([typed, "-opts", f"AMP.PRESET={preset}", "TRAIN.DISTILLATION_TYPE=hard"])
        except UserError as error:
            assert "DTYPE" in str(error)
            named.add("refused")
            continue
        held = attrgetter(key_of[name].lower())(command.config) == value
        lines = told(command.notes, f"-{name} ")
        assert held or lines, name
        named.update(name for _ in lines)
    expected = {"fp32": {"amp_dtype"}, "bf16_stream": {"amp", "refused"}}
    assert named == expected.get(preset, {"amp"})


def test_a_preset_of_a_sweep_names_the_options_that_it_replaces():
    command = parse_command_line(["-opts", "AMP.LEVEL=O2", "AMP.INCR_RATIO=4"], set_options=["AMP.PRESET=torch"])
    assert len(told(command.notes, "-opts (AMP.")) == 2
    assert told(parse_command_line(["-amp=no", "-amp_dtype=bfloat16"]).notes, "-amp ")


EARLIER = """
MODEL: {TYPE: PiT, NAME: pit_xs, DISTILL: true, RESUME: '', PRETRAINED: '', DROP_PATH: 0.2,
        TRANS: {PATCH_SIZE: 16, STRIDE: 8, BASE_DIMS: [48, 48, 48], DEPTH: [2, 6, 4], HEADS: [2, 4, 8]}}
TRAIN: {RANDAUGMENT: false, NORMALIZE_TARGET: true, MULTI_SCALE_SAMPLER_DDP: false,
        LR_SCHEDULER: {NAME: warmupcosine, MILESTONES: '30, 60, 90', DECAY_EPOCHS: 30, DECAY_RATE: 0.1}}
TAG: default
LOCAL_RANK: 0
NGPUS: -1
"""
OF_EARLIER = """
MODEL.DEPTH=[2,6,4] MODEL.NUM_HEADS=[2,4,8] MODEL.BASE_DIMS=[48,48,48] MODEL.DISTILLED=true MODEL.DROPPATH=0.2
MODEL.RESUME=null MODEL.PRETRAINED=null TRAIN.RAND_AUGMENT=false TRAIN.LR_SCHEDULER.NAME=cosine
"""
UNUSED = """
LOCAL_RANK NGPUS TAG TRAIN.LR_SCHEDULER.DECAY_EPOCHS TRAIN.LR_SCHEDULER.DECAY_RATE TRAIN.LR_SCHEDULER.MILESTONES
TRAIN.MULTI_SCALE_SAMPLER_DDP TRAIN.NORMALIZE_TARGET
"""


def test_an_earlier_file_gives_the_model_of_its_keys_and_one_warning_of_keys_without_effect(tmp_path):
    command = parse_recipe(tmp_path, EARLIER)
    assert_options(command.config, OF_EARLIER)
    (warning,) = told(command.notes, kind="warning")
    assert {*warning.partition(": ")[2].split(", ")} == {*UNUSED.split()}
    (renamed,) = told(command.notes, "MODEL.TRANS", "log")
    assert "MODEL.TRANS.HEADS -> MODEL.NUM_HEADS" in renamed
    assert "MODEL.DISTILL -> MODEL.DISTILLED" in renamed


NAMES = """
recipe | flags | expected
MODEL: {DEPTH: 3, TRANS: {DEPTH: 12, NUM_HEADS: 4, EMBED_DIM: 64}} | -opts MODEL.EMBED_DIM=32 | \
    MODEL.DEPTH=3 MODEL.NUM_HEADS=4 MODEL.EMBED_DIM=32
{BASE: [base.yaml], MODEL: {DROP_PATH: 0.2}} | | MODEL.DROPPATH=0.2 MODEL.DEPTH=3
MODEL: {TYPE: deit, DISTILL: false} | | MODEL.DISTILLED=false
"""


@each_row(NAMES)
def test_the_higher_layer_and_then_the_present_name_win(recipe, flags, expected, tmp_path):
    (tmp_path / "base.yaml").write_text("MODEL: {TYPE: deit, DROPPATH: 0.1, DEPTH: 3}")
    assert_options(parse_recipe(tmp_path, recipe, flags).config, expected)


MISTAKES = """
1: SEED
2: unknown key TAGS
5: unknown key MODEL.MLP_DIM
6: unknown key MODEL.DEPHT
8: DATA.IMAGE_SIZE
9: unknown key train
"""


def test_all_mistakes_are_named_in_one_message(tmp_path):
    text = "SEED: -1\nTAGS: a\nMODEL:\n  TRANS:\n    MLP_DIM: 9\n    DEPHT: 2\nDATA:\n  IMAGE_SIZE: big\ntrain: {}"
    with raises(Findings) as error:
        parse_recipe(tmp_path, text)
    headline, *lines = str(error.value).split("\n")
    assert headline == "6 options are wrong:"
    found = [re.search(r"recipe\.yaml:(.*?)(;| is |$)", line)[1] for line in lines]
    assert sorted(found) == MISTAKES.split("\n")[1:-1]


def test_a_probe_reads_a_batch_size_that_is_a_text():
    words = cli("-cfg=configs/probe.yaml -opts DATA.BATCH_SIZE='12' DATA.BATCH_SIZE_EVAL=null")
    assert config_for(*words).data.batch_size_eval == 12


def test_the_log_says_which_place_has_set_a_value():
    config = config_for("-dataset=digits")
    followed = follow_facts(config, Facts(classes=10))
    (note,) = set_by({"given": config, "follow_weights": config, "follow_facts": followed.with_train(accum_iter=2)})
    changed = {"MODEL.NUM_CLASSES 10 (follow_facts)", "TRAIN.ACCUM_ITER 2 (follow_facts)"}
    assert {*note.text.partition(": ")[2].split(", ")} == changed
    assert set_by({"given": config, "follow_facts": config}) == []
