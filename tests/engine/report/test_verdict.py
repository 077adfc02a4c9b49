"""The line at the end of a run: which runs are worse than the pixels or than their own probe, and which ones overfit;
nothing about the others, nor about differences within the noise of the validation.
"""

import json
import shlex
from pathlib import Path

import pytest
from conftest import cells_of, config_for
from run_folders import add_evaluation, make_run, read_page, update_json, write_facts, write_rows

from configs.command_line import parse_command_line
from configs.yaml_io import parse_value
from engine.report.contents import read_contents
from engine.report.verdict import first_epoch_of, verdict_of
from engine.run.facts import Model, PixelBaseline, Start

RISING = [10 * epoch for epoch in range(1, 7)]
FLAT = [50, 60, 60, 60, 60, 60]
BELOW = {"baseline": (78.4, 10.2)}


@pytest.fixture(autouse=True)
def reachable(monkeypatch) -> dict[str, bool]:
    """Whether timm's weights of the recipes can be read."""
    answer = {"weights": True}
    monkeypatch.setattr("engine.report.verdict._finds_weights_of_probe", lambda: answer["weights"])
    return answer


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
        (FLAT, ["TRAIN.MIXUP_ALPHA=0.8", "EVAL.BEST_METRIC=loss"], "-cfg=configs/probe.yaml"),
        (FLAT, ["MODEL.TUNE=probe"], "-cfg=configs/finetune.yaml"),
        (FLAT, ["TRAIN.MINUTES=1"], "-epochs=12"),
        (FLAT, ["MODEL.PRETRAINED=w.pth", "SAVE=/runs"], "MODEL.TUNE=probe"),
    ],
)
def test_a_model_below_the_baseline(tmp_path, val, options, flag):
    text, command = verdict(tmp_path / "a b", FLAT, val, options, baseline=(78.4, 10.2))
    assert "60.00%" in text
    assert "78.40%" in text
    assert "pixel" in text
    assert flag in flags_of(command)
    parse_command_line([flag for flag in flags_of(command) if not flag.startswith(("-resume", "-epochs"))])
    assert (f"-output={tmp_path}" in flags_of(command)) == ("SAVE=/runs" in options)  # where the run is
    page = read_page(tmp_path / "a b").text
    assert text in page
    assert command in page
    assert "78.40% pixel baseline; majority class 10.20%" in page


def test_the_command_has_the_options_of_the_data_and_the_processes(tmp_path):
    data = ["DATA.DATASET=csv", "DATA.ON_BAD_IMAGE=skip", r"DATA.LABELS=(.+)_\d+", "DATA.BATCH_SIZE=7"]
    data += ["DATA.DATA_PATH=/my photos.csv", "DATA.COLUMNS={path: id, label: breed}", "SAVE=/runs"]
    _, command = verdict(tmp_path / "run", FLAT, FLAT, data, baseline=(78.4, 10.2))
    write_facts(tmp_path / "run", [Start("run", 0, "python main_multi_gpu.py -ngpus=2")])
    assert verdict_of(read_contents(tmp_path / "run"))[1] == command.replace("single_gpu.py", "multi_gpu.py -ngpus=2")
    probe, run = (config_for(*flags) for flags in (shlex.split(command)[2:], ["-opts", *data]))
    sizes = {"batch_size": probe.data.batch_size, "batch_size_eval": 64}
    assert probe.data == run.data.model_copy(update=sizes)
    assert (probe.save, probe.model.tune.kind) == ("/runs", "probe")


@pytest.mark.parametrize("train, val, options", [(FLAT, [9] * 6, []), (FLAT, FLAT, ["DATA.DATASET=folder"])])
def test_the_advised_run_does_not_join_a_sweep(tmp_path, train, val, options):
    """A tenth of the rate, or another recipe: beside the sweep, in whose comparison it would be."""
    sweep = tmp_path / "sweep"
    _, command = verdict(sweep / "run", train, val, [f"SAVE={sweep}", *options], **BELOW)
    assert str(sweep) in {config_for(*shlex.split(command)[2:]).save}
    (sweep / "sweep.json").write_text("{}")
    _, command = verdict_of(read_contents(sweep / "run"))
    assert config_for(*shlex.split(command)[2:]).save == str(tmp_path)


def kind_of(found: tuple[str, str]) -> str:
    """The fix of a verdict: '' if there is none, longer, lower rate, another probe, or finetune."""
    flags = flags_of(found[1]) if found[1] else [""]
    if flags[0].startswith("-cfg=configs"):
        parse_command_line(flags)
        return "another probe" if "probe" in flags[0] else "finetune"
    if flags[0].startswith("-cfg="):
        train = config_for(*flags).train
        assert train.base_lr == pytest.approx(3e-4)
        return "lower rate"
    return "longer" if flags[0].startswith("-resume=") and flags[1].startswith("-epochs=") else ""


FLAT_VALIDATION = """
30 50 60 50 50 50 50 50 50 | 90 | 360 | another probe
30 50 50 60 50 50 50 50 50 | 90 | 360 |  # the best epoch is late
30 50 60 60 59 61 60 61 60 | 90 | 360 | another probe  # a late best epoch by chance
30 50 60 60 59 61 60 61 60 | 69 | 360 |
30 50 60 60 59 61 60 61 60 | 75 | 3600 | another probe
30 50 60 60 59 61 60 61 60 | 75 | 60 |  # a gap of 15 points, with a standard error of 8
81.05 81.7 80.39 | 94 | 153 | another probe
81.05 | 94 | 153 |
"""


@pytest.mark.parametrize("val, last, images, kind", cells_of(FLAT_VALIDATION))
def test_training_above_a_flat_validation(tmp_path, val, last, images, kind):
    scores = [*map(float, val.split())]
    train = [float(last) * epoch / len(scores) for epoch in range(1, len(scores) + 1)]
    assert kind_of(verdict(tmp_path / "run", train, scores, result={"samples": int(images)})) == kind


HYM = [80.39, 81.70, 81.05]  # of 153 images; k-NN 96.08, probe 94.77
BOTH = {"knn_top1": 96.08, "probe_score": 94.77}


# Validation top-1 of each epoch, images, the result of the run, options, the fix that is named
BELOW_PROBE = """
80.39 81.7 81.05 | 153 | BOTH |  | lower rate
80.39 81.7 81.05 | 153 | BOTH | MODEL.TUNE=lora | lower rate
80.39 81.7 81.05 | 153 | {knn_top1: 96.08, probe_score: 0.2} | EVAL.BEST_METRIC=loss | another probe  # no noise
60 71 81.7 | 153 | BOTH |  | longer
80.39 81.7 81.05 | 153 | {probe_score: 94.77} |  | lower rate
80.39 | 153 | BOTH | TRAIN.NUM_EPOCHS=1 TRAIN.EPOCH_STEPS=5 TRAIN.MINUTES=2 | longer
80.39 81.7 81.05 | 153 | {knn_top1: 96.08, probe_score: 80.39} |  | another probe  # its own is as bad
80.39 81.7 81.05 | 153 | {knn_top1: 96.08} | MODEL.TUNE=probe | finetune
93.46 93.46 93.46 | 153 | BOTH |  |  # 2.6 points below, with a standard error of 2.6
93.46 93.46 93.46 | 1530 | BOTH |  | lower rate
97 97 97 | 1530 | BOTH |  |
80.39 81.7 81.05 | 153 | BOTH | DATA.BALANCED_SAMPLING=true |
99.4 99.4 99.4 | 153 | {knn_top1: 100.0} |  |  # an image
"""


@pytest.mark.parametrize("val, images, result, options, kind", cells_of(BELOW_PROBE))
def test_a_model_below_its_probe_or_k_nn(tmp_path, val, images, result, options, kind):
    scores = [*map(float, val.split())]
    known = parse_value(result.replace("BOTH", str(BOTH))) | {"samples": int(images)}
    assert kind_of(verdict(tmp_path / "run", scores, scores, options.split(), result=known)) == kind


@pytest.mark.parametrize(("top1", "lower"), [(60.0, "-lr=0.0003"), (90.2, ""), (97.0, "")])
def test_a_first_epoch_far_below_the_probe_names_a_tenth_of_the_rate(tmp_path, top1, lower):
    verdict(tmp_path / "run", [99], [top1], result=BOTH | {"samples": 153})
    line = first_epoch_of(read_contents(tmp_path / "run"))
    assert (lower in line) if lower else not line


@pytest.mark.parametrize(
    ("losses", "options", "kind", "at_once"),
    [
        ([27.3, 9.5, 2.46], [], "lower rate", True),  # BASE_LR 1 on the digits
        ([4.0, 2.43, 2.36, 2.35, 2.32], [], "lower rate", False),  # 0.3: after 100 steps
        ([2.9, 2.6, 2.4], [], "", False),  # the first steps of a good rate
        ([27.3, 9.5, 2.1], [], "", False),
        ([27.3, 9.5, 2.46], ["LOSS.NAME=bce"], "", False),
    ],
)
def test_a_training_at_chance_names_a_tenth_of_the_rate(tmp_path, losses, options, kind, at_once):
    run = make_run(tmp_path / "run", options=["MODEL.NUM_CLASSES=10", *options])
    write_rows(run, [{"epoch": epoch, "train_loss": loss, "val_top1": 9.0} for epoch, loss in enumerate(losses, 1)])
    run = read_contents(run)
    assert kind_of(verdict_of(run)) == kind
    assert ("-lr=0.0003 " in first_epoch_of(run)) == at_once


def test_the_probe_as_epoch_0_is_no_trained_epoch(tmp_path):
    """The best checkpoint is the probe, and the trained epochs may still rise."""
    for name, val, kind in (("flat", HYM, "lower rate"), ("rising", [60, 71, 81.7], "longer")):
        verdict(tmp_path / name, val, val, result=BOTH | {"samples": 153})
        row = {"kind": "evaluation", "epoch": 0, "step": 0, "val_top1": 94.77, "val_loss": 0.2}
        path = tmp_path / name / "metrics.jsonl"
        path.write_text(f"{json.dumps(row)}\n{path.read_text()}")
        run = read_contents(tmp_path / name)
        assert run.best == (0, 94.77)
        assert kind_of(verdict_of(run)) == kind


def test_a_probe_after_a_fine_tuning_has_its_weights(tmp_path):
    model = ["MODEL.TYPE=timm", "MODEL.NAME=resnet18", "MODEL.PRETRAINED=/my weights.pth", "MODEL.HEAD=probe"]
    _, command = verdict(tmp_path / "tuned", FLAT, FLAT, model, **BELOW)
    chosen = parse_command_line(flags_of(command)).config.model
    assert (chosen.name, chosen.pretrained, chosen.tune.kind) == ("resnet18", "/my weights.pth", "probe")
    assert len(command) < 200
    assert chosen.tune.kind == "probe"


def test_a_fine_tuning_after_the_probe_of_a_folder_names_the_folder(tmp_path):
    kwargs = f"MODEL.KWARGS={{hidden_sizes: {[1] * 200}}}"
    model = ["MODEL.TYPE=transformers", "MODEL.NAME=ViTForImageClassification", "MODEL.TUNE=probe", kwargs]
    _, command = verdict(tmp_path / "run", FLAT, FLAT, [*model, "MODEL.PRETRAINED=/my model"], **BELOW)
    assert flags_of(command) == ["-cfg=configs/finetune.yaml", "-dataset=digits", "-model=local-dir:/my model"]


def test_weights_that_cannot_be_reached_are_not_advised(tmp_path, reachable):
    reachable["weights"] = False
    text, command = verdict(tmp_path / "run", FLAT, FLAT, **BELOW)
    assert text
    assert not command
    model = ["MODEL.TYPE=timm", "MODEL.NAME=resnet18", "MODEL.PRETRAINED=/w.pth"]
    assert "MODEL.TUNE=probe" in verdict(tmp_path / "tuned", FLAT, FLAT, model, **BELOW)[1]


@pytest.mark.parametrize(("val", "kind"), [([60] * 6, "another probe"), (RISING, "longer"), ([60], "longer")])
@pytest.mark.parametrize(("predicted", "says"), [((10, 0), True), ((9, 1), False)])
def test_a_model_of_one_answer_does_not_overfit(tmp_path, val, kind, predicted, says):
    """Whatever the training: nine tenths of the training are right, and each validation image is a cat."""
    verdict(tmp_path / "run", [15 * epoch for epoch in range(1, len(val) + 1)], val)
    add_evaluation(tmp_path / "run", ["cat", "dog"])
    table = [{"class": "cat", "count": 6, "predicted": predicted[0]}]
    table += [{"class": "dog", "count": 4, "predicted": predicted[1]}]
    update_json(tmp_path / "run/evaluation/tables.json", per_class=table)
    found = verdict_of(read_contents(tmp_path / "run"))
    assert ("cat" in found[0]) == says
    if says:
        assert kind_of(found) == kind
    table[1]["count"] = 0  # no other answer is right
    update_json(tmp_path / "run/evaluation/tables.json", per_class=table)
    assert "cat" not in verdict_of(read_contents(tmp_path / "run"))[0]


@pytest.mark.parametrize(("tune", "advised"), [("full", ["MODEL.TUNE=head"]), ("head", [])])
def test_a_head_of_several_layers_is_trained_in_place_of_a_probe(tmp_path, tune, advised):
    options = ["MODEL.TYPE=timm", "MODEL.NAME=repvit_m1", "MODEL.PRETRAINED=/w.pth", f"MODEL.TUNE={tune}"]
    verdict(tmp_path / "run", FLAT, FLAT, options, **BELOW)
    write_facts(tmp_path / "run", [PixelBaseline(*BELOW["baseline"], 100, 20), Model(1, None, None, can_probe=False)])
    command = verdict_of(read_contents(tmp_path / "run"))[1]
    assert [word for word in shlex.split(command) if word.startswith("MODEL.TUNE")] == advised


@pytest.mark.parametrize(("counts", "kind"), [((400, 400, 400), "lower rate"), ((600, 595, 5), ""), ((4, 4, 4), "")])
def test_the_noise_of_a_mean_over_classes_is_that_of_small_classes(tmp_path, counts, kind):
    make_run(tmp_path / "run", options=["EVAL.BEST_METRIC=macro_f1"], result={"samples": 1200, "probe_score": 60.0})
    write_rows(tmp_path / "run", [{"epoch": 1, "val_macro_f1": 50.0, "val_top1": 80.0, "val_loss": 1.0}])
    add_evaluation(tmp_path / "run", ["a", "b", "c"])
    table = [{"class": name, "count": count} for name, count in zip("abc", counts, strict=True)]
    update_json(tmp_path / "run/evaluation/tables.json", per_class=table)
    assert kind_of(verdict_of(read_contents(tmp_path / "run"))) == kind


@pytest.mark.parametrize(
    ("train", "val", "options", "given"),
    [
        (FLAT, FLAT, [], {}),
        (FLAT, FLAT, ["EVAL.BEST_METRIC=balanced_accuracy"], BELOW),  # of these three, the aim is another figure
        (FLAT, FLAT, ["LOSS.CLASS_WEIGHTS=balanced"], BELOW),
        (RISING, FLAT, [], {}),
        ([x + 5 for x in RISING], RISING, [], {}),  # it begins to overfit
        (RISING, RISING, ["TRAIN.MIXUP_ALPHA=0.8"], {}),
        (RISING, RISING, ["TRAIN.DISTILLATION_TYPE=soft", "TRAIN.TEACHER_MODEL=resnet18"], {}),
        (RISING, RISING, [], {"stopped_early": True}),
        (RISING, RISING, [], {"state": "stopped"}),
    ],
)
def test_nothing_is_said_of_other_runs(tmp_path, train, val, options, given):
    assert verdict(tmp_path / "run", train, val, options, **{"baseline": (5.0, 1.0)} | given) == ("", "")
