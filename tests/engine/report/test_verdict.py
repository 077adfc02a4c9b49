"""The line at the end of a run: which runs are worse than the pixels or than their own probe, and which ones overfit;
nothing about the others, nor about differences within the interval of the result.
"""

import shlex
import shutil

from conftest import TINY_VIT, cells_of, cli, config_for, each_value, noise_folder, train
from pytest import mark
from run_folders import add_evaluation, make_run, read_page, update_json, write_facts, write_rows

from configs.command_line import parse_command_line
from configs.yaml_io import parse_value
from engine.report.contents import read_contents
from engine.report.verdict import first_epoch_of, verdict_of
from engine.run.facts import PixelBaseline, Start

WEIGHTS = ["MODEL.PRETRAINED=w.pth"]
FLAT = [50, 60, 60, 60, 60, 60]
RISING = [10 * epoch for epoch in range(1, 7)]


def run_of(folder, train, val, options=(), baseline=(40.0, 10.0), interval=(55.0, 65.0), **status):
    """val: beginning with epoch 0, the probe, if there is one value more than of `train`."""
    make_run(folder, 3, ["TRAIN.NUM_EPOCHS=6", *options], **status)
    first = 1 - (len(val) - len(train))
    epochs = [{"epoch": epoch, "val_top1": top1, "val_loss": 1 / (epoch + 1)} for epoch, top1 in enumerate(val, first)]
    for row, top1 in zip(epochs[1 - first :], train, strict=True):
        row["train_top1"] = top1
    write_rows(folder, epochs)
    write_facts(folder, [PixelBaseline(*baseline, 100, 200)])
    add_evaluation(folder, ["cat", "dog", "fox"])
    update_json(folder / "evaluation/summary.json", interval=interval)
    return read_contents(folder)


def write_classes(folder, names, counts, predicted):
    """Images and predictions of each class."""
    rows = zip(names, counts, predicted, strict=True)
    table = [{"class": name, "count": count, "predicted": number} for name, count, number in rows]
    update_json(folder / "evaluation/tables.json", per_class=table)
    update_json(folder / "evaluation/summary.json", samples=sum(counts))


def kind_of(run) -> str:
    """The advice: '' if there is none; longer, lower rate, probe, or text if it has no command."""
    text, command = verdict_of(run)
    if not command:
        return "text" if text else ""
    program, script, *flags = shlex.split(command)
    assert (program, script) == ("python", "main_single_gpu.py")
    if flags[0].startswith("-resume="):
        assert flags[1:] == ["-epochs=12"]
        return "longer"
    chosen = config_for(*flags)
    return "probe" if chosen.model.tune == "probe" else "lower rate" * (chosen.train.base_lr < 1e-3)


# Validation top-1 by epoch, its interval, baseline, majority class, options, advice
BELOW_BASELINE = """
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | | text
50 60 60 60 60 60 | 55 65 | 65 10 | |  # within the interval
50 60 60 60 60 60 | 55 65 | 70 10 | |  # the intervals overlap
98.75 98.75 | 93.25 99.78 | 100 10 | |  # 79 and 80 of 80 images
50 60 60 60 60 60 | 55 65 | 40 78.4 | MODEL.PRETRAINED=w.pth | probe
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | MODEL.PRETRAINED=w.pth TRAIN.MIXUP_ALPHA=0.8 | probe
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | MODEL.PRETRAINED=w.pth MODEL.TUNE=probe | text
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | TRAIN.MINUTES=1 | longer
10 20 30 40 50 60 | 55 65 | 78.4 10.2 | | longer
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | LOSS.CLASS_WEIGHTS=balanced |
50 60 60 60 60 60 | 55 65 | 78.4 10.2 | EVAL.BEST_METRIC=balanced_accuracy |  # the aim is another figure
"""


@mark.parametrize("val, interval, baselines, options, kind", cells_of(BELOW_BASELINE))
def test_a_model_below_a_baseline(tmp_path, val, interval, baselines, options, kind):
    scores, limits, given = ([*map(float, cell.split())] for cell in (val, interval, baselines))
    run = run_of(tmp_path / "a b", scores, scores, options.split(), given, limits)
    assert kind_of(run) == kind
    if kind:
        page = read_page(tmp_path / "a b").text
        assert all(text in page for text in verdict_of(run))
        assert all(figure in verdict_of(run)[0] for figure in ("60.00%", f"{max(given):.2f}%"))


# Images of each class, and predictions; options; whether the class is named, options of the advice
ANSWERS = """
8 345 700 | 510 300 243 | LOSS.CLASS_WEIGHTS=balanced | 1 | LOSS.CLASS_WEIGHTS=null
8 345 700 | 510 300 243 | DATA.BALANCED_SAMPLING=true | 1 | DATA.BALANCED_SAMPLING=false
8 345 700 | 510 300 243 | | 1 | MODEL.TUNE=probe
8 345 700 | 260 300 493 | LOSS.CLASS_WEIGHTS=balanced | |
400 353 300 | 662 200 191 | LOSS.CLASS_WEIGHTS=balanced | |
"""


@mark.parametrize("counts, predicted, option, named, advised", cells_of(ANSWERS))
def test_a_class_that_is_predicted_far_too_often_is_named_with_its_counts(
    tmp_path, counts, predicted, option, named, advised
):
    folder = run_of(tmp_path / "run", RISING, RISING, [*WEIGHTS, "TRAIN.PATIENCE=2", *option.split()]).folder
    write_classes(folder, ("lynx", "deer", "empty"), [*map(int, counts.split())], [*map(int, predicted.split())])
    update_json(folder / "run.json", stopped_early=True)
    text, command = verdict_of(read_contents(folder))
    assert ("510 of 1,053 validation images are called lynx, 8 are" in text) == bool(named)
    assert (command.rpartition(" ")[2] if named else "") == advised
    if advised:
        config_for(*shlex.split(command)[2:])


def test_a_command_for_a_run_with_minutes_repeats_its_epochs(tmp_path):
    """Planned again by another speed, it would differ in more than the option that is tried."""
    weighted = "LOSS.CLASS_WEIGHTS=balanced"
    folder = run_of(tmp_path / "run", RISING, RISING, [*WEIGHTS, "TRAIN.MINUTES=2", weighted]).folder
    write_classes(folder, "ab", [8, 800], [800, 8])
    config = config_for(*shlex.split(verdict_of(read_contents(folder))[1])[2:])
    assert config.train.minutes is None
    assert config.train.num_epochs == read_contents(folder).options["TRAIN.NUM_EPOCHS"]


def test_more_epochs_are_no_advice_after_an_early_stop(tmp_path):
    assert kind_of(run_of(tmp_path / "run", RISING, RISING, WEIGHTS, (78.4, 10.0), stopped_early=True)) == "probe"


@mark.slow
def test_the_command_holds_out_the_images_of_the_run(tmp_path):
    """Of data that have grown since the run whose images -held_out names."""
    images = noise_folder(tmp_path / "a b", 0, 40, (8, 8, 3)) / "val"
    flags = ["-dataset=folder", f"-data_path={images}", *cli(f"-batch_size=8 -output={tmp_path / 'o'} -epochs=1")]
    flags += ["-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2", "DATA.VAL_FRACTION=0.3", "DATA.BALANCED_SAMPLING=true"]
    old = train([*flags, "TRAIN.MAX_STEPS=1"])
    for file in sorted(images.glob("*/*"))[::3]:
        shutil.copy(file, file.with_stem(f"{file.stem}_new"))
    folder = train([*flags, f"-held_out={old}"])
    write_classes(folder, "ab", [1, 9], [8, 2])
    typed = shlex.split(verdict_of(read_contents(folder))[1])[2:]
    again = train([*typed, f"-output={tmp_path / 'other'}"])
    assert (again / "held_out.json").read_text() == (folder / "held_out.json").read_text()


def test_the_command_of_a_fold_keeps_the_folds(tmp_path):
    """They exclude -held_out."""
    run = run_of(tmp_path / "run", FLAT, FLAT, [*WEIGHTS, "DATA.FOLDS=3", "DATA.FOLD=1"], (78.4, 10.2))
    (tmp_path / "run/held_out.json").write_text("{}")
    command = parse_command_line(shlex.split(verdict_of(run)[1])[2:])
    assert (command.flags.held_out, command.config.data.folds) == (None, 3)


def test_the_command_has_the_processes_and_does_not_join_a_sweep(tmp_path):
    sweep = tmp_path / "sweep"
    run_of(sweep / "run", FLAT, FLAT, [*WEIGHTS, f"SAVE={sweep}"], (78.4, 10.2))
    (sweep / "run/status.json").write_text("{}")
    write_facts(sweep / "run", [Start("run", 0, "python main_multi_gpu.py -ngpus=2")])
    (sweep / "sweep.json").write_text("{}")
    other = verdict_of(read_contents(sweep / "run"))[1]
    assert other.startswith("python main_multi_gpu.py -ngpus=2 -cfg=")
    assert parse_command_line(shlex.split(other)[3:]).config.save != str(sweep)


# Figures by epoch, with `val_loss` falling if it is not given; options, state, advice
CURVES = """
{val_top1: 30 50 60 50 50 50 50 50 50, train_top1: 10 20 30 40 50 60 70 80 90} | WEIGHTS | finished | probe
{val_top1: 30 50 50 60 50 50 50 50 50, train_top1: 10 20 30 40 50 60 70 80 90} | WEIGHTS | finished |  # late
{val_top1: 30 50 60 60 59 61 60 61 60, train_top1: 10 20 30 40 50 60 70 80 90} | WEIGHTS | finished | probe  # by chance
{val_top1: 30 50 60 60 59 61 60 61 60, train_top1: 9 17 25 33 40 47 55 62 69} | WEIGHTS | finished |
{val_top1: 81.05 81.7 80.39, train_top1: 31 63 94} | WEIGHTS | finished | probe
{val_top1: 81.05, train_top1: 94} | WEIGHTS | finished |
{val_top1: 50 60 60 60 60 60, train_top1: 50 60 60 60 60 60} | | finished |
{val_top1: 10 20 30 40 50 60, train_top1: 15 25 35 45 55 65} | | finished |  # it begins to overfit
{val_top1: 50 60 60 60 60 60, train_top1: 90} | TRAIN.MIXUP_ALPHA=0.8 | finished |
{val_top1: 50 60 60 60 60 60, train_top1: 90} | TEACHER | finished |
{val_top1: 50 60 60 60 60 60, train_top1: 90} | | stopped |
# The AUROC falls while top-1 of a rare class is flat; then the loss stays
{val_auroc: 70 80 81 78 75 72, val_loss: .4 .3 .3 .4 .5 .6, val_top1: 89, train_top1: 93} | AUROC | finished | probe
{val_auroc: 70 80 81 78 75 72, val_loss: .4 .3 .3 .3 .3 .4, val_top1: 89, train_top1: 93} | AUROC | finished |
{val_auroc: 70 80 81 85 88 90, val_loss: .4 .3 .3 .4 .5 .6, val_top1: 89, train_top1: 93} | AUROC | finished |
# Far above a top-1 that is flat, but does not decide
{val_auroc: 70 80 81 85 88 90, val_loss: .4 .3 .3 .4 .5 .6, val_top1: 89, train_top1: 99.5} | AUROC | finished |
{val_auroc: 70 80 81 78 75 72, val_loss: .4 .3 .3 .3 .3 .3, val_top1: 89, train_top1: 99.5} | AUROC | finished | probe
{val_top1: 55 60 65 70 75 80, train_top1: 99} | WEIGHTS EVAL.BEST_METRIC=loss | finished |  # it falls
{val_ece: 30 15 10 7 6 5, val_top1: 55 60 65 70 75 80, train_top1: 99} | WEIGHTS EVAL.BEST_METRIC=ece | finished |
{train_loss: 27.3 9.5 2.46, val_top1: 9} | MODEL.NUM_CLASSES=10 | finished | lower rate  # BASE_LR 1 on the digits
{train_loss: 4.0 2.43 2.36 2.35 2.32, val_top1: 9} | MODEL.NUM_CLASSES=10 | finished | lower rate  # 0.3
{train_loss: 9.5, val_top1: 9} | MODEL.NUM_CLASSES=10 | finished |  # too few steps for any cause
{train_loss: 2.9 2.6 2.4, val_top1: 9} | MODEL.NUM_CLASSES=10 | finished |  # the first steps of a good rate
{train_loss: 27.3 9.5 2.1, val_top1: 9} | MODEL.NUM_CLASSES=10 | finished |
{train_loss: 27.3 9.5 2.46, val_top1: 9} | MODEL.NUM_CLASSES=10 LOSS.NAME=bce | finished |
"""


SHORT = {
    "AUROC": "WEIGHTS EVAL.BEST_METRIC=auroc",
    "WEIGHTS": "MODEL.PRETRAINED=w.pth",
    "TEACHER": "TRAIN.DISTILLATION_TYPE=soft TRAIN.TEACHER_MODEL=resnet18",
}


@mark.parametrize("columns, options, state, kind", cells_of(CURVES))
def test_advice_follows_the_curves(tmp_path, columns, options, state, kind):
    for word, meaning in SHORT.items():
        options = options.replace(word, meaning)
    run = run_of(tmp_path / "run", [], [], options.split(), (5.0, 1.0), state=state).folder
    figures = {name: f"{texts}".split() for name, texts in parse_value(columns).items()}
    rows = []
    for epoch in range(max(map(len, figures.values()))):
        row = {name: float(values[epoch % len(values)]) for name, values in figures.items()}  # one is of all epochs
        rows.append({"epoch": epoch + 1, "val_loss": 1 / (epoch + 1)} | row)
    write_rows(run, rows)
    assert kind_of(read_contents(run)) == kind


# Validation top-1 by epoch from the probe on, options, advice, whether the first epoch has a line
BELOW_PROBE = """
94.77 80.39 81.7 81.05 | | lower rate | True
94.77 80.39 81.7 81.05 | MODEL.TUNE=lora | lower rate | True
94.77 60 71 81.7 | | longer | True
94.77 80.39 | TRAIN.EPOCH_STEPS=5 TRAIN.MINUTES=2 | longer | True
94.77 90.2 91 91.2 | | | False  # within the interval
94.77 80 97 97 | | | False
94.77 80.39 81.7 81.05 | DATA.BALANCED_SAMPLING=true | | True
"""


@mark.parametrize("val, options, kind, first", cells_of(BELOW_PROBE))
def test_a_model_below_its_probe(tmp_path, val, options, kind, first):
    scores = [*map(float, val.split())]
    run = run_of(tmp_path / "run", scores[1:], scores, [*WEIGHTS, *options.split()], interval=(90.1, 97.3))
    assert kind_of(run) == kind
    assert ("-lr=0.0003 " in first_epoch_of(run)) == (first == "True")


ONE_ANSWER = """
counts | predicted | says
[6, 4] | [10, 0] | true
[6, 4] | [8, 2] | false
[6, 0] | [6, 0] | false
"""


@mark.parametrize("val, kind", [([60] * 6, "probe"), (RISING, "longer")])
@each_value(ONE_ANSWER)
def test_a_model_of_one_answer_does_not_overfit(tmp_path, val, kind, counts, predicted, says):
    """Whatever the training: nine tenths of the training are right, and each validation image is a cat."""
    run_of(tmp_path / "run", [15 * epoch for epoch in range(1, 7)], val, WEIGHTS)
    write_classes(tmp_path / "run", ("cat", "dog"), counts, predicted)
    run = read_contents(tmp_path / "run")
    assert ("cat" in verdict_of(run)[0]) == says
    assert not says or kind_of(run) == kind


LAGGING = """
scores | options | advised
[19, 72] | [EVAL_RAW=true] | EVAL_RAW=false
[19, 72] | [TRAIN.MODEL_EMA_WARMUP=false] | TRAIN.MODEL_EMA_WARMUP=true
[65, 72] | [] |
[72, 19] | [] |
[1.2, 0.4] | [EVAL.BEST_METRIC=loss] |
"""


@each_value(LAGGING)
def test_an_average_that_lags_behind_the_weights(tmp_path, scores, options, advised):
    average, raw = scores
    keys = ["TRAIN.MODEL_EMA=true", *options]
    run = run_of(tmp_path / "run", FLAT, FLAT, keys, result={"average_score": average, "raw_score": raw})
    text, command = verdict_of(run)
    assert (shlex.split(command)[-1] if command else None) == advised
    if command:
        assert config_for(*shlex.split(command)[2:]).train.model_ema == ("WARMUP" in command)
    assert (f"{average:.2f}%" in text and f"{raw:.2f}%" in text) == (advised is not None)
