"""A checkpoint keeps the class names and the preprocessing of its data, and an evaluation uses them."""

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from conftest import (
    CPU,
    GREY,
    TINY_VIT,
    cli,
    config_for,
    each_value,
    log_of,
    of_module,
    only_run,
    read_result,
    refused,
    slow,
    train,
)
from conftest import evaluate as run_evaluation
from pytest import approx, mark
from safetensors.torch import save_file
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss

from configs.command_line import parse_command_line
from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.weights_record import exported_entry, read_record, to_metadata
from engine.plan.evaluation import EvaluationPlan, plan_evaluation
from engine.run.log import RunLogger
from engine.run.record import read_run
from engine.training.describe import notes_on_weights
from engine.training.session import match_classes
from models.weights.fit import NewHead
from tests.datasets.sources.source_helpers import write_image
from utils.files import atomic_save, read_json

CLASSES = ["ant", "bee", "cat", "dog"]
MODEL = [option for option in TINY_VIT if not option.startswith(("MODEL.NUM_CLASSES", "DATA."))]
SIZE = ["DATA.IMAGE_SIZE=8", "DATA.CROP_PCT=1.0"]
AS_IT_IS = ["DATA.RANDOM_CROP_SCALE=[1, 1]", "DATA.RANDOM_CROP_RATIO=[1, 1]", "TRAIN.BASE_LR=1e-2"]


def write_class(folder: Path, label: int, count: int):
    """Images of one brightness per class, easy to learn."""
    for number in range(count):
        write_image(folder / f"{number}.png", np.full((8, 8), 60 * label + number, np.uint8))


@of_module
def images(tmp_path_factory) -> Path:
    """A folder of four classes without splits."""
    root = tmp_path_factory.mktemp("images")
    for label, name in enumerate(CLASSES):
        write_class(root / name, label, 20)
    return root


def argv_for(images: Path, output: Path, *options: str) -> list[str]:
    data = cli(f"-dataset=folder -data_path={images} -batch_size=8 -num_workers=0 -output={output}")
    return [*data, "-opts", *MODEL, *options]


@of_module
def trained(images, tmp_path_factory) -> Path:
    return train(argv_for(images, tmp_path_factory.mktemp("out"), *SIZE, *GREY, *AS_IT_IS, "TRAIN.NUM_EPOCHS=8"))


def evaluate(trained: Path, images: Path, output: Path, *more: str) -> tuple[dict, str]:
    """The result and the log of an evaluation without the options of preprocessing."""
    folder = run_evaluation(output, *argv_for(images, output, *more, f"MODEL.PRETRAINED={trained}"))
    return read_result(folder), log_of(folder)


def planned(data: Path, output: Path, *more: str) -> EvaluationPlan:
    command = parse_command_line(["-eval", *argv_for(data, output, *more)])
    return plan_evaluation(command, CPU, RunLogger(CPU))


def paths_of(plan: EvaluationPlan, data: Path) -> list[str]:
    """Relative to the folder of the data."""
    samples = plan.samples
    return [str(Path(samples.name(index)).relative_to(data)) for index in range(len(samples))]


def held_out_of(folder: Path) -> list[str]:
    return read_json(folder / "held_out.json")["held_out"]


@mark.parametrize("weights", ["-pretrained", "-resume"])
def test_data_path_takes_the_place_of_the_digits_of_a_checkpoint(digits_run, tmp_path, weights):
    """The command of docs/evaluation.md. The path is read: the digits were evaluated in its place."""
    best = digits_run() / "best.pth"
    for label in (3, 7):
        write_class(tmp_path / "others" / str(label), 0, 6)  # black images: all get one label
    words = f"{weights}={best}"
    folder = run_evaluation(tmp_path / "evaluated", words, f"-data_path={tmp_path / 'others'}")
    assert read_result(folder)["top1"] in (0, 50)
    with refused("nowhere"):
        run_evaluation(tmp_path, words, "-data_path=nowhere")


def test_a_folder_of_some_classes_is_evaluated_by_name(trained, tmp_path):
    """The checkpoint is away from its run. All images count: without names the top-1 would be 0%. One class, as of the
    placeholders of a sample submission, is a warning.
    """
    moved = shutil.copy(trained / "best.pth", tmp_path / "moved.pth")
    for label in (1, 3):
        write_class(tmp_path / "test" / CLASSES[label], label, 11)
        result, text = evaluate(moved, tmp_path / "test", tmp_path / f"out{label}")
        assert result["top1"] == 100
        assert ("Warning: Data: all images are of one class" in text) == (label == 1)


ONE_CLASS = """
command | options | warns
-eval | SEED=0 | true
-predict | SEED=0 | false
-eval | DATA.MULTI_LABEL=true LOSS.NAME=bce | false
"""


@each_value(ONE_CLASS)
def test_one_class_is_a_warning_of_evaluations_of_one_label(command, options, warns, trained, images, tmp_path):
    (tmp_path / "all.csv").write_text("image_path,target\nant/0.png,ant\nant/1.png,ant\n")
    flags = cli(f"-dataset=csv -data_path={tmp_path / 'all.csv'} -pretrained={trained / 'best.pth'} -split=all -opts")
    words = [command, *flags, *MODEL, f"DATA.IMAGE_ROOT={images}", *cli(options)]
    plan = plan_evaluation(parse_command_line(words), CPU, RunLogger(CPU))
    assert [note.kind for note in plan.notes if "of one class" in str(note)] == ["warning"] * warns


@mark.parametrize("rule", [["DATA.VAL_FRACTION=0.2"], ["DATA.FOLDS=5", "DATA.FOLD=4"]])
def test_the_split_is_that_of_the_training(images, tmp_path, rule):
    """The split of the training does not apply to another folder; one that is set for the evaluation does."""
    split = [*rule, "DATA.SPLIT_SEED=3"]
    folder = train(argv_for(images, tmp_path, *SIZE, *GREY, *AS_IT_IS, *split, "TRAIN.NUM_EPOCHS=1"))
    other = shutil.copytree(images, tmp_path / "other")
    weights = f"MODEL.PRETRAINED={folder / 'best.pth'}"
    halves = ["DATA.VAL_FRACTION=0.5"], ["DATA.FOLDS=2", "DATA.FOLD=0"]
    cases = [(images, [], 16, 3), (other, split, 80, 3), *((other, half, 40, 0) for half in halves)]
    for data, more, count, seed in cases:
        plan = planned(data, tmp_path, *more, weights)
        names = paths_of(plan, data)
        assert len(names) == count
        assert plan.config.data.split_seed == seed
        assert plan.images.trained == len({*names}.difference(held_out_of(folder)))  # the paths in both are the same


@mark.parametrize("rule", [slow([]), ["DATA.FOLDS=10", "DATA.FOLD=3"]])
def test_a_run_keeps_its_held_out_images(images, tmp_path, rule):
    """In its checkpoints and its folder; of an older checkpoint, the split is by position, and the log says so."""
    data = shutil.copytree(images, tmp_path / "data")
    options = argv_for(data, tmp_path / "out", *SIZE, *GREY, *AS_IT_IS, *rule)
    folder = train([*options, "TRAIN.NUM_EPOCHS=1"])
    held_out = held_out_of(folder)
    assert len(held_out) == 8
    (data / held_out[0]).unlink()
    for number in range(20, 40):
        shutil.copy(data / "bee" / "1.png", data / "bee" / f"{number}.png")
    state = load_checkpoint(folder / "last.pth")
    old = tmp_path / "old.pth"
    export = tmp_path / "export.safetensors"
    del state["split"]
    atomic_save(old, state)
    read = read_record(str(folder / "last.pth"))
    named = {key: read_run(folder)[key] for key in ("class_names", "preprocessing")} | exported_entry(read.split)
    save_file(state["model"], export, to_metadata(named, {"MODEL": read.model, "DATA": read.data}))
    for weights in (folder / "best.pth", export, old):
        found = paths_of(planned(data, tmp_path, f"MODEL.PRETRAINED={weights}"), data)
        assert weights == old or sorted(found) == held_out[1:]
    train([f"-resume={folder}", *options, "TRAIN.NUM_EPOCHS=2"])
    assert held_out_of(folder) == held_out
    assert len(load_checkpoint(folder / "last.pth")["split"]["trained"]) == 72 + 20


def test_a_renamed_class_keeps_its_images_and_its_output(images, tmp_path):
    """The folder of the training is renamed: an evaluation has the same held-out images."""
    data = shutil.copytree(images, tmp_path / "data")
    goal = "EVAL.OPERATING_POINT={class: bee, specificity: 0.5}"
    options = [*argv_for(data, tmp_path / "out", *SIZE, *GREY, *AS_IT_IS), goal]
    folder = train([*options, "TRAIN.NUM_EPOCHS=2"])
    before, _ = evaluate(folder / "best.pth", data, tmp_path / "before")
    held_out = held_out_of(folder)
    (data / "bee").rename(data / "Käfer")
    _, log = evaluate(folder / "best.pth", data, tmp_path / "warned")
    (rename,) = shlex.split(re.search(r"-opts ('DATA\.RENAME=[^']*')", log)[1])
    after, _ = evaluate(folder / "best.pth", data, tmp_path / "after", rename)
    assert after["samples"] == before["samples"] == len(held_out) == 8
    assert (after["top1"], after["loss"]) == (before["top1"], before["loss"])
    with refused("'Käfer': not a class"):
        train([f"-resume={folder}", *options, "TRAIN.NUM_EPOCHS=3"])
    (data / "Käfer").rename(data / "bee")
    train([f"-resume={folder}", *options, "TRAIN.NUM_EPOCHS=3"])
    assert held_out_of(folder) == held_out


def test_merged_classes_add_their_probabilities(trained, images, tmp_path):
    def figures(data, name, *options):
        result, _ = evaluate(trained / "best.pth", data, tmp_path / name, "EVAL.SAVE_LOGITS=true", *options)
        stored = np.load(only_run(tmp_path / name, "eval") / "evaluation/logits.npz")
        return result, stored["logits"].astype(np.float64), stored["labels"]

    data = shutil.copytree(images, tmp_path / "data")
    _, logits, targets = figures(data, "before")
    for file in sorted((data / "dog").iterdir()):
        file.rename(data / "bee" / f"{30 + int(file.stem)}.png")
    (data / "dog").rmdir()
    (data / "bee").rename(data / "animal")
    rename = "DATA.RENAME={bee: animal, dog: animal}"
    result, _, labels = figures(data, "after", rename)
    probabilities = softmax(logits, axis=1) @ np.eye(3)[[0, 1, 2, 1]]
    merged = np.array([0, 1, 2, 1])[targets]
    assert np.bincount(labels).tolist() == [20, 40, 20]
    assert result["top1"] == approx(100 * accuracy_score(merged, probabilities.argmax(1)))
    assert result["loss"] == approx(log_loss(merged, probabilities), rel=1e-2)  # from logits in float16
    for label, name in enumerate(("ant", "animal", "cat")):
        write_class(tmp_path / "new" / name, label, 12)
    options = [*SIZE, *GREY, f"MODEL.PRETRAINED={trained / 'best.pth'}", rename]
    options += cli("TRAIN.MAX_STEPS=1 TRAIN.WARMUP_EPOCHS=0 TRAIN.BASE_LR=0")
    folder = train(argv_for(tmp_path / "new", tmp_path / "head", *options))
    before, head = (load_checkpoint(path)["model"] for path in (trained / "best.pth", folder / "last.pth"))
    for key in ("head.weight", "head.bias"):
        kept = dict(zip(read_run(folder)["class_names"], head[key], strict=True))
        assert torch.equal(kept["animal"], before[key][1])
        assert torch.equal(kept["cat"], before[key][2])


def test_outputs_that_are_numbers_are_merged_in_an_evaluation(trained, images, tmp_path):
    """Of a table of numbers, and weights without names."""
    rows = [f"{path},{CLASSES.index(path.parent.name)}" for path in sorted(images.rglob("*.png"))]
    (tmp_path / "all.csv").write_text("\n".join(["image_path,target", *rows]))
    state = torch.load(trained / "best.pth")
    atomic_save(tmp_path / "numbers.pth", state | {"class_names": None})
    flags = cli(f"-eval -dataset=csv -data_path={tmp_path / 'all.csv'} -pretrained={tmp_path / 'numbers.pth'} -opts")
    rename = "DATA.RENAME={0: none, 1: ill, 2: ill, 3: ill}"
    command = parse_command_line([*flags, *MODEL, f"DATA.IMAGE_ROOT={images}", rename])
    plan = plan_evaluation(command, CPU, RunLogger(CPU))
    assert plan.merged == {1: [1, 2, 3]}
    assert np.bincount(plan.samples.targets).tolist() == [20, 60]


def test_the_data_are_merged_in_a_new_training(images, tmp_path):
    rename = "DATA.RENAME={bee: insect, ant: insect}"
    folder = train(argv_for(images, tmp_path, *SIZE, *GREY, "TRAIN.NUM_EPOCHS=1", rename))
    assert read_run(folder)["class_names"] == ["insect", "cat", "dog"]
    assert load_checkpoint(folder / "last.pth")["model"]["head.weight"].shape[0] == 3
    result, _ = evaluate(folder / "best.pth", images, tmp_path / "eval", rename)
    assert result["samples"] == 8
    for wrong in ("DATA.RENAME={bea: wasp}", "DATA.RENAME={bea: ant}"):  # `ant` is a class: nothing would be merged
        with refused(f"RENAME: {images} has no class 'bea'; did you mean bee"):
            train(argv_for(images, tmp_path, wrong))
        with refused("RENAME: the checkpoint has no class 'bea'"):
            evaluate(folder / "best.pth", images, tmp_path / "eval", wrong)


KEPT = """
names | known | option | rows
[aardvark, bee, cat, dog] | [ant, bee, cat, dog] | SEED=0 | [-1, 1, 2, 3]
[dog, newt] | [ant, bee, cat, dog] | SEED=0 | [3, -1]
['1', '10', '2', '3'] | | SEED=0 | [-1, -1, -1, -1]  # another order in another program
['1', '10', '2', '3'] | | DATA.CLASSES=natural | []
['1', '2', '3', '4'] | | SEED=0 | []
"""


@each_value(KEPT)
def test_a_head_is_kept_by_class_name_or_in_an_order_that_is_clear(names, known, option, rows):
    config = config_for("-pretrained=x.pth", "-opts", f"MODEL.NUM_CLASSES={len(names)}", option)
    plan = SimpleNamespace(config=config, class_names=names, start=SimpleNamespace(class_names=known), found=None)
    classes = match_classes(plan)
    assert [*classes.rows] == rows
    fitted = SimpleNamespace(notes=list, new_heads={"head": NewHead.NO_KNOWN_CLASS})
    assert len(notes_on_weights(fitted, classes, False)) == bool(rows)
