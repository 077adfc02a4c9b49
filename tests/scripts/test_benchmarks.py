"""All benchmarks: turns, ratios, tables, seeds; what each one runs, on a few images; a recipe is translated for timm's
train.py, which no test runs. No test asserts a time."""

import json
import os
import sys
from pathlib import Path

import torch
from conftest import CPU, ROOT, TINY_VIT, cells_of, cli, config_for, refused, samples_for, seeded
from pytest import approx, fixture, mark
from timm import create_model
from torch import nn
from torch.testing import assert_close

from configs.yaml_io import parse_value
from datasets.loading.loader import BatchReader
from datasets.reading import read_data
from datasets.sources.source import Wanted
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_host_transform
from engine.training.trial import build_state
from models.build import build_on_meta
from scripts.benchmarks import benchmark_gpu, benchmark_input, benchmark_train
from scripts.benchmarks.benchmark_gpu import PARTS
from scripts.benchmarks.benchmark_train import link_images, make_images
from scripts.benchmarks.programs import build_command, failure_reason, run_to_end, timm_flags
from scripts.benchmarks.turns import ratio_table, speed_ratios, take_turns
from scripts.flags import split_flags
from utils.errors import UserError
from utils.files import read_json


def test_contenders_take_turns_and_one_that_failed_gets_no_more(tmp_path):
    file = tmp_path / "a.json"
    turns = []
    written = []

    def measure(name):
        if turns:
            written.append(json.loads(file.read_text())["figures"])
        turns.append(name)
        if name == "b" and turns != ["a", "b"]:
            raise UserError("no memory")
        return {"images_per_second": len(turns)}

    figures = {name: {} for name in "abc"}
    take_turns(figures, 3, measure, file)
    assert turns == [*"abc", *"cba", *"ac"]
    assert figures["a"] == {"images_per_second": [1, 6, 7]}
    assert figures["b"] == {"images_per_second": [2], "failed": "no memory"}
    assert json.loads(file.read_text())["figures"] == figures
    assert written[0] == {"a": {"images_per_second": [1]}, "b": {}, "c": {}}
    with refused("b: no memory"):
        take_turns({"b": {}}, 2, measure, None)


def test_a_ratio_compares_turns_of_one_round():
    speeds = parse_value("{jpeg: [30.0, 90.0, 40.0], timm: [20.0, 30.0], ready: [30.0, 90.0, 50.0]}")
    figures = {name: {"images_per_second": values} for name, values in speeds.items()} | {"bare": {"failed": "why"}}
    pairs = [("jpeg", "timm"), ("jpeg", "ready"), ("jpeg", "bare")]
    assert speed_ratios(figures, pairs) == parse_value("{jpeg / timm: [1.5, 3.0], jpeg / ready: [1.0, 1.0, 0.8]}")
    assert "| jpeg / ready | 1.000 (0.800 to 1.000) |" in ratio_table(speed_ratios(figures, pairs))


SPEEDS = """
a: {images_per_second: [32.0, 16.0]}
b: {images_per_second: [64.0, 40.0], peak_memory_bytes: [2.0e+9]}
c: {failed: no memory}
"""
DURATIONS = """
a | 150.000 | 100.000, 200.000 | 1.00 |
b | 65.000 | 50.000, 80.000 | 2.25 | 2.00
"""


def test_durations_are_those_of_100_iterations():
    speeds = parse_value(SPEEDS)
    assert benchmark_train.duration_rows(speeds, step_images=32)[1:] == cells_of(DURATIONS)
    assert benchmark_train.duration_rows({name: speeds[name] for name in "cb"}, 32)[1][3] == ""


def test_a_cpu_that_emulates_bfloat16_is_named(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("scripts.benchmarks.benchmark_train.compare", lambda *_: {})
    monkeypatch.setattr("engine.precision.policy.has_bfloat16_instructions", lambda: False)
    benchmark_train.main(cli("-programs=ready -modes=fp32"))
    assert not capsys.readouterr().out
    benchmark_train.main(cli("-programs=ready -modes=fp32,O1-bf16,O2-bf16"))
    assert capsys.readouterr().out.count(" slower than -amp=no on this CPU") == 1


def test_our_whole_error_is_the_reason_of_a_failure():
    lines = ["a warning about an error", "error: fake: 2 problems", "  one", "  two"]
    assert failure_reason(1, lines) == "error: fake: 2 problems one two"


RECIPES = sorted((ROOT / "configs").glob("*.yaml"))


@mark.slow
def test_every_recipe_that_takes_steps_is_measured_in_its_own_size_and_classes(tmp_path, monkeypatch):
    """A dry run: the commands of the programs are read, and the labels of the data and the model on meta fit."""
    planned = []

    def read(size, contenders, *_):
        name, words = contenders["ready, O1-bf16"]
        config = config_for(*build_command(name, words, 4, tmp_path)[2:])
        rows = read_data(Wanted(config.data, ("train", "val"), num_classes=config.model.num_classes), CPU)
        planned.append((size, config.amp.enabled, len(rows.splits["train"].class_names)))
        build_on_meta(config.model, config.data)
        return {"a": {"failed": ""}}

    monkeypatch.setattr("scripts.benchmarks.benchmark_train.compare", read)
    flags = ["-programs=ready", "-modes=fp32,O1-bf16"]
    for path in RECIPES:
        if path.name == "probe.yaml":
            with refused("MODEL.TUNE probe: "):
                benchmark_train.main([*flags, f"-cfg={path}"])
            continue
        config = config_for(f"-cfg={path}")
        benchmark_train.main([*flags, f"-cfg={path}"])
        images = config.data.batch_size * config.train.accum_iter
        classes = config.model.num_classes or 1000
        assert planned[-1] == (images, True, classes), path


def test_all_contenders_apply_the_same_transform(tmp_path, cpu, monkeypatch):
    """Crops of the whole image that are always flipped have only one result."""
    link_images(make_images(tmp_path / "images", (64, 48), 8, noise=0.0), tmp_path / "data", 8)
    flags = cli(f"-dataset=folder -data_path={tmp_path / 'data'} -batch_size=8 -num_workers=0 -image_size=32")
    whole = ["DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.3333333, 1.3333334]"]
    config = config_for(*flags, "-opts", "MODEL.PATCH_SIZE=16", *whole, "DATA.HFLIP_PROB=1.0")
    data = config.data
    loaded = []
    original = benchmark_input.timm.data.create_loader

    def create_loader(*arguments, **options):
        return (loaded.append(batch) or batch for batch in original(*arguments, **options))

    monkeypatch.setattr("scripts.benchmarks.benchmark_input.timm.data.create_loader", create_loader)
    next(benchmark_input.timm_batches(data, cpu.device))
    (timm_images, timm_targets), (samples,) = loaded[0], samples_for(config, cpu, "train")
    reader = BatchReader(samples, data, build_host_transform(data, config.train, config.seed))
    batch = reader.__getitems__([(0, index, 0) for index in range(8)])
    for index, image in enumerate(Normalize(data)(batch.images)):
        (timms,) = timm_images[timm_targets == batch.targets[index]]
        assert (image - timms).abs().mean() < 0.5 / 127.5


# Prints lines as timm's train.py does.
TIMM = """
import time
for step in range(0, 10000, 2):
    print(f"Train: 0 [{step:>4d}/9 (  1%)]  Loss: 2 (2)  Time: 0.020s,  200.00/s  (0.020s,  200.00/s)"
          "  LR: 1.0e-05  Data: 0.005 (0.005)", flush=True)
    time.sleep(0.02)
"""


# Keeps its arguments, as timm's validate.py and inference.py find them, and prints its top-1 as the first one does.
TIMM_EVALUATION = """
import pathlib, sys
pathlib.Path(sys.argv[0]).with_suffix(".txt").write_text(" ".join(sys.argv[1:]))
print('{"top1": 12.5}')
"""


@mark.slow
def test_evaluations_and_predictions_of_20_images_are_timed_to_their_end(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "train.py").write_text("sum(range(10**7))" + TIMM)  # some CPU time
    for name in ("validate", "inference"):
        (tmp_path / f"{name}.py").write_text(TIMM_EVALUATION)
    make_images(tmp_path / "images", (24, 16), count=16, noise=0.0)
    flags = cli(f"-timm_train={tmp_path / 'train.py'} -data={tmp_path / 'images'} -json={tmp_path / 'a.json'}")
    flags += cli("-images=20 -rounds=1 -seconds=0.1 -batch_size=4 -num_workers=1 -image_size=32 -amp")
    assert benchmark_input.main(flags) == 0
    figures = read_json(tmp_path / "a.json")["figures"]
    assert figures["-eval"].keys() == figures["validate.py"].keys() == {"wall_seconds", "cpu_seconds", "top1"}
    assert figures["validate.py"]["top1"] == [12.5]
    assert figures["-eval"]["top1"][0] * 20 % 100 == 0  # a number of images
    assert min(figures["-predict"]["cpu_seconds"]) > 0
    words = (tmp_path / "inference.txt").read_text()
    assert words.replace("start/inference", "start/validate") == (tmp_path / "validate.txt").read_text()
    for text in ("--batch-size 4 --workers 1", "--amp --amp-dtype bfloat16", "--num-classes 8", "--split train"):
        assert f" {text} " in words
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


CHILD = "while __import__('time').process_time() < 0.3: pass"


def test_the_cpu_seconds_of_a_process_that_outlives_its_parent_count():
    figures = run_to_end(
        [sys.executable, "-c", f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {CHILD!r}])"]
    )
    assert figures["cpu_seconds"] >= 0.3


@mark.slow
def test_rounds_of_the_entry_script_and_of_a_train_py(tmp_path):
    (train_py := tmp_path / "train.py").write_text(TIMM)
    make_images(tmp_path / "images", (24, 16), count=16, noise=0.0)
    flags = cli("-programs=jpeg,ready,timm -rounds=1 -warmup=2 -steps=4 -interval=2")
    tiny = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]
    paths = cli(f"-timm_train={train_py} -data={tmp_path / 'images'} -json={tmp_path / 'a.json'}")
    assert benchmark_train.main([*flags, *paths, *tiny]) == 0
    result = read_json(tmp_path / "a.json")
    assert len(result["ratios"]["jpeg / timm"]) == 1
    assert result["environment"]["batch size"] == 4
    assert min(result["figures"]["jpeg"]["peak_memory_bytes"]) > 1e8
    assert result["figures"]["timm"].keys() == {"images_per_second", "cpu_seconds_per_second"}


def test_every_part_of_a_gpu_day_is_a_training_in_its_precision(tmp_path):
    flags, rest = split_flags(benchmark_gpu._parser(), cli(f"-output={tmp_path} -opts SEED=3"))
    configs = {name: config_for(*benchmark_gpu.argv_of(part, flags, rest)) for name, part in PARTS.items()}
    for name, config in configs.items():
        assert (config.seed, config.data.batch_size) == (3, 256)
        assert config.amp.enabled == PARTS[name].mode.startswith("O")
        assert config.train.compiles == ("-compile" in PARTS[name].words)
    shipped = config_for("-cfg=configs/vit_base_patch16_224.yaml").model
    assert configs["dropout"].model == shipped
    assert configs["O1"].model.dropout == 0 < shipped.dropout
    assert configs["timm"].train.compile == "model"


@fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


RECIPE = """
AMP.ENABLED=true DATA.IMAGE_SIZE=16 DATA.IMAGE_CHANNELS=1 DATA.IMAGENET_MEAN=[0.3] DATA.IMAGENET_STD=[0.4]
MODEL.NAME=vit_tiny_patch16_224 MODEL.NUM_CLASSES=10 MODEL.PATCH_SIZE=4 MODEL.EMBED_DIM=96 MODEL.DEPTH=4
MODEL.NUM_HEADS=4 MODEL.DROPPATH=0.1 MODEL.DROPOUT=0.0 TRAIN.NUM_EPOCHS=16 TRAIN.WARMUP_EPOCHS=2 SEED=0
"""


def config_of(*options: str):
    return config_for("-opts", *RECIPE.split(), *options)


def flags_of(*options: str) -> dict[str, str]:
    """Flag of train.py -> its values."""
    found = {}
    for word in timm_flags(config_of(*options), Path("/data"), Path("/out"), interval=50, val_split="val"):
        if word.startswith("--"):
            found[word[2:]] = values = []
        else:
            values.append(word)
    return {name: " ".join(values) for name, values in found.items()}


TRANSLATED = """
AMP.DTYPE=float16 DATA.IMAGE_SIZE=8 DATA.CROP_PCT=0.9 DATA.RANDOM_CROP_SCALE=[0.3,0.9] DATA.HFLIP_PROB=0.25
MODEL.NUM_CLASSES=11 MODEL.DROPPATH=0.3 TRAIN.NUM_EPOCHS=9 TRAIN.WARMUP_EPOCHS=3 TRAIN.BASE_LR=3e-3 TRAIN.END_LR=1e-6
TRAIN.WEIGHT_DECAY=0.2 TRAIN.GRAD_CLIP=0.5 TRAIN.OPTIMIZER.NAME=Adam TRAIN.OPTIMIZER.EPS=1e-6 TRAIN.MODEL_EMA=true
TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.MIXUP_ALPHA=0.8 TRAIN.MIXUP_PROB=0.7 TRAIN.COMPILE=max SEED=3 VALIDATE_FREQ=2
"""
EXPECTED = """
amp amp-dtype=float16 img-size=8 crop-pct=0.9 interpolation=bicubic scale=0.3,0.9 hflip=0.25
num-classes=11 drop-path=0.3 epochs=6 warmup-epochs=3 warmup-prefix lr=0.003 min-lr=1e-06 sched=cosine
weight-decay=0.2 clip-grad=0.5 opt=adam opt-eps=1e-06 model-ema-warmup
model-ema-decay=0.9 mixup=0.8 mixup-prob=0.7 torchcompile torchcompile-mode=max-autotune
seed=3 val-interval=2 val-split=val
"""


def test_options_and_flags():
    found = {f"{name}={value.replace(' ', ',')}".rstrip("=") for name, value in flags_of(*TRANSLATED.split()).items()}
    assert found >= set(EXPECTED.split())
    assert flags_of("TRAIN.OPTIMIZER.NAME=SGD")["opt"] == "momentum"
    switches = {"amp", "amp-dtype", "model-ema", "model-ema-warmup", "torchcompile"}
    assert not switches & flags_of("AMP.ENABLED=false").keys()


def test_timms_model_is_ours_with_the_same_weights(cpu):
    options = cli("AMP.ENABLED=false MODEL.QKV_BIAS=false MODEL.MLP_RATIO=3 MODEL.DROPOUT=0.1")
    options.append("MODEL.ATTENTION_DROPOUT=0.2")
    config = config_of(*options)
    flags = flags_of(*options)
    ours = build_state(config, cpu).precision.weights.master.eval()
    given = dict(text.split("=") for text in flags["model-kwargs"].split())
    arguments = {name: json.loads(text.lower()) for name, text in given.items()}
    model = create_model(
        flags["model"], num_classes=int(flags["num-classes"]), in_chans=int(flags["in-chans"]),
        drop_path_rate=float(flags["drop-path"]), **arguments
    ).eval()  # fmt: skip
    nn.init.normal_(ours.head.weight, generator=seeded(0))
    model.load_state_dict(ours.state_dict())
    images = torch.randn(2, 1, 16, 16, generator=seeded(0), dtype=torch.float64)
    # Each logit is a chain of about 10 sums of up to 288 terms of size 1 or less: in float64 below 1e-11.
    assert_close(model.double()(images), ours.double()(images), rtol=0, atol=1e-11)
    rates = [(one.pos_drop.p, one.blocks[0].attn.attn_drop.p, one.blocks[3].mlp.drop1.p) for one in (model, ours)]
    assert rates[0] == rates[1] == (0.1, 0.2, 0.1)
    assert model.blocks[3].drop_path1.drop_prob == ours.blocks[3].drop_path1.drop_prob == approx(0.1)
