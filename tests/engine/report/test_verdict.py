"""The line at the end of a run: which runs are worse than the pixels, which ones underfit; nothing about the others."""

import shlex
from pathlib import Path

import pytest
from run_folders import make_run, read_page, update_json, write_facts, write_rows

from configs.command_line import parse_command_line
from engine.report.contents import read_contents
from engine.report.overview import verdict_of
from engine.run.facts import PixelBaseline, Start

RISING = [10 * epoch for epoch in range(1, 7)]
FLAT = [50, 60, 60, 60, 60, 60]
BELOW = {"baseline": (78.4, 10.2)}


def verdict(folder, train, val, options=(), baseline=(40.0, 10.0), **status) -> tuple[str, str]:
    make_run(folder, 3, ["TRAIN.NUM_EPOCHS=6", *options], **status)
    curves = enumerate(zip(train, val, strict=True), 1)
    epochs = [{"epoch": epoch, "train_top1": x, "val_top1": y, "val_loss": 1 / epoch} for epoch, (x, y) in curves]
    write_rows(folder, epochs)
    write_facts(folder, [PixelBaseline(*baseline, 100, 20)])
    return verdict_of(read_contents(folder))


def flags_of(command: str) -> list[str]:
    python, script, *flags = shlex.split(command)
    assert (python, script) == ("python", "main_single_gpu.py")
    return [flag.replace(f"{Path(__file__).parents[3]}/", "") for flag in flags]


@pytest.mark.parametrize(
    ("val", "options", "flag"),
    [
        (RISING, [], "-epochs=12"),
        (FLAT, [], "-cfg=configs/probe.yaml"),
        (FLAT, ["DATA.DATASET=folder"], "-cfg=configs/probe.yaml"),
        (RISING, ["DATA.DATASET=folder"], "-epochs=12"),
        (FLAT, ["TRAIN.MIXUP_ALPHA=0.8", "EVAL.BEST_METRIC=loss"], "-cfg=configs/probe.yaml"),
        (FLAT, ["MODEL.TUNE=probe"], "-cfg=configs/finetune.yaml"),
    ],
)
def test_a_model_below_the_baseline(tmp_path, val, options, flag):
    text, command = verdict(tmp_path / "a b", FLAT, val, options, baseline=(78.4, 10.2))
    assert "60.00%" in text and "78.40%" in text and "pixel" in text and flag in flags_of(command)
    assert ("-cfg=configs/folder_small.yaml" in text) == (val == FLAT and "DATA.DATASET=folder" in options)
    parse_command_line([flag for flag in flags_of(command) if not flag.startswith(("-resume", "-epochs"))])
    page = read_page(tmp_path / "a b").text
    assert text in page and command in page and "pixel baseline 78.40% majority class 10.20%" in page


def test_the_command_has_the_options_of_the_data_and_the_processes(tmp_path):
    data = ["DATA.DATASET=csv", "DATA.ON_BAD_IMAGE=skip", "DATA.VAL_FRACTION=0.3", "DATA.BATCH_SIZE=7"]
    data += ["DATA.DATA_PATH=/my photos.csv", "DATA.COLUMNS={path: id, label: breed}", "SAVE=/runs"]
    _, command = verdict(tmp_path / "run", FLAT, FLAT, data, baseline=(78.4, 10.2))
    write_facts(tmp_path / "run", [Start("run", 0, "python main_multi_gpu.py -ngpus=2")])
    assert verdict_of(read_contents(tmp_path / "run"))[1] == command.replace("single_gpu.py", "multi_gpu.py -ngpus=2")
    probe, run = (parse_command_line(flags).config for flags in (shlex.split(command)[2:], ["-opts", *data]))
    sizes = {"batch_size": probe.data.batch_size, "batch_size_eval": 64}
    assert probe.data == run.data.model_copy(update=sizes) and (probe.save, probe.model.tune.kind) == ("/runs", "probe")


@pytest.mark.parametrize(("warmup", "flags"), [("false", ["-cfg", "-opts", "TRAIN"]), ("true", ["-resume", "-epochs"])])
def test_an_average_below_the_raw_weights(tmp_path, warmup, flags):
    make_run(tmp_path / "run", 6, ["TRAIN.MODEL_EMA=true", f"TRAIN.MODEL_EMA_WARMUP={warmup}"])
    for raw, baseline, is_said in ((94.44, 93.61, True), (90.7, 0.0, False), (93.0, 93.61, False)):
        result = {"average_score": 89.72, "raw_score": raw, "pixel_baseline": baseline}
        update_json(tmp_path / "run/run.json", result=result)
        text, command = verdict_of(read_contents(tmp_path / "run"))
        assert ("89.72% against" in text) == is_said
        assert not is_said or [flag.partition("=")[0].partition(".")[0] for flag in flags_of(command)] == flags


def test_a_model_that_overfits(tmp_path):
    train = range(10, 100, 10)
    text, command = verdict(tmp_path / "run", train, [30, 50, 60, 50, 50, 50, 50, 50, 50])
    assert "best epoch 3 of 9" in text and "90.00%" in text and flags_of(command)[0] == "-cfg=configs/probe.yaml"
    assert verdict(tmp_path / "late", train, [30, 50, 50, 60, 50, 50, 50, 50, 50]) == ("", "")


def test_a_model_below_the_most_frequent_class_and_one_that_underfits(tmp_path):
    text, _ = verdict(tmp_path / "flat", FLAT, FLAT, baseline=(55.0, 97.5))
    assert "97.50%" in text and "majority class" in text
    text, command = verdict(tmp_path / "run", RISING, RISING)
    assert text.count("60.00%") == 2 and flags_of(command) == [f"-resume={tmp_path / 'run'}", "-epochs=12"]


@pytest.mark.parametrize(
    ("train", "val", "options", "given"),
    [
        (FLAT, FLAT, [], {}),
        (FLAT, FLAT, ["EVAL.BEST_METRIC=balanced_accuracy"], BELOW),  # of these three, the aim is another figure
        (FLAT, FLAT, ["DATA.BALANCED_SAMPLING=true"], BELOW),
        (FLAT, FLAT, ["LOSS.CLASS_WEIGHTS=balanced"], BELOW),
        (RISING, FLAT, [], {}),
        ([x + 5 for x in RISING], RISING, [], {}),  # it begins to overfit
        (RISING, RISING, ["TRAIN.MIXUP_ALPHA=0.8"], {}),
        (RISING, RISING, ["TRAIN.CUTMIX_ALPHA=1.0"], {}),
        (RISING, RISING, ["TRAIN.DISTILLATION_TYPE=soft", "TRAIN.TEACHER_MODEL=resnet18"], {}),
        (RISING, RISING, [], {"stopped_early": True}),
        (RISING, RISING, [], {"state": "stopped"}),
        (RISING, RISING, [], {"state": "interrupted"}),
        (RISING[:2], RISING[:2], [], {}),
    ],
)
def test_nothing_is_said_of_other_runs(tmp_path, train, val, options, given):
    assert verdict(tmp_path / "run", train, val, options, **{"baseline": (5.0, 1.0)} | given) == ("", "")


def test_nothing_is_said_without_top1(tmp_path):
    folder = make_run(tmp_path / "run")
    write_rows(folder, [{"epoch": epoch, "train_top1": epoch} for epoch in range(9)])
    update_json(folder / "run.json", result={"pixel_baseline": 90.0})
    assert verdict_of(read_contents(folder)) == ("", "")
