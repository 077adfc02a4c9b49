"""Which output is which class: weights whose files name the classes, or do not, on data of many kinds.

The expected figures are computed with timm and torch, for the order of classes that the other program had.
"""

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import cells_of, cli, line_of, of_module, predict, read_result, refused, slow
from conftest import evaluate as run_evaluation
from numpy.random import default_rng
from pytest import approx, mark
from timm import create_model
from timm.data import ImageNetInfo
from timm.models import save_for_hf
from timm.utils.misc import natural_key
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.command_line import parse_command_line
from configs.schema.families.family import TimmModel
from datasets.sources.class_names import find_ambiguity, map_labels, names_of_labels, read_class_list
from engine.checkpoint.weights_record import weights_record
from engine.plan.evaluation import options_of_weights
from tests.datasets.sources.source_helpers import write_image
from utils.files import read_json
from utils.tables import read_csv_rows

NAME = "test_vit"
SIZE = 32
DATA = cli("DATA.CROP_PCT=1.0 DATA.IMAGENET_MEAN=[0.5,0.5,0.5] DATA.IMAGENET_STD=[0.5,0.5,0.5]")
NUMBERS = [str(number) for number in range(1, 13)]
WORDNET = ["n01440764", "n01443537", "n02007558", "n03028079", "n15075141"]


@of_module
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("outputs")


def write_weights(folder: Path, outputs: int, **config: object) -> nn.Module:
    """`NAME-outputs.pth`; with `config` the folder `hf`, as timm saves it."""
    torch.manual_seed(0)
    model = create_model(NAME, num_classes=outputs, img_size=SIZE).eval()
    nn.init.normal_(model.head.weight)
    if config:
        same = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
        cfg = {"input_size": [3, SIZE, SIZE], **same}
        save_for_hf(model, folder / "hf", {"num_classes": outputs, **config}, {"img_size": SIZE}, data_config=cfg)
    else:
        torch.save(model.state_dict(), folder / f"{outputs}.pth")
    return model


def write_noise(root: Path, files: list[str], size: int) -> np.ndarray:
    """An image of noise in each file; their pixels (N, size, size, 3)."""
    pixels = default_rng(1).integers(256, size=(len(files), size, size, 3), dtype=np.uint8)
    for name, values in zip(files, pixels, strict=True):
        write_image(root / name, values)
    return pixels


def write_images(folder: Path, names: list[str]) -> np.ndarray:
    """Two images in a folder of each class."""
    return write_noise(folder, [f"{name}/{number}.png" for name in names for number in range(2)], SIZE)


@torch.inference_mode()
def logits_of(model: nn.Module, pixels: np.ndarray) -> Tensor:
    return model((torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)


def figures(model: nn.Module, pixels: np.ndarray, outputs: Iterable[int]) -> Any:
    """Top-1 and loss of two images of each class."""
    logits = logits_of(model, pixels)
    targets = torch.tensor([*outputs]).repeat_interleave(2)
    top1 = 100 * (logits.argmax(1) == targets).double().mean().item()
    return approx([top1, cross_entropy(logits, targets).item()], abs=1e-4)


def evaluate(folder: Path, data: Path, *options: str, weights: str = "12.pth", dataset: str = "folder") -> list[float]:
    model = [f"-model={NAME}", f"-image_size={SIZE}"] if weights.endswith(".pth") else []
    flags = [*model, f"-pretrained={folder / weights}", f"-data_path={data}", f"-dataset={dataset}", "-num_workers=0"]
    output = folder / f"out{len([*folder.iterdir()])}"
    options = [*(DATA if model else []), "SEED=0", *options]
    result = read_result(run_evaluation(output, *flags, "-opts", *options))
    return [result["top1"], result["loss"]]


@mark.parametrize("names", [NUMBERS, slow(["Dog", "ant", "Cat"])])
def test_each_fix_of_an_unclear_order_is_right(names, folder, tmp_path):
    """The error names the keys. Their figures are those of timm and of torchvision for weights trained there."""
    model = write_weights(folder, len(names))
    pixels = write_images(tmp_path, names)
    weights = f"{len(names)}.pth"
    error = line_of(evaluate, folder, tmp_path, weights=weights)
    fixes = re.findall(r"(\w+) \((timm|torchvision)\)", error)
    orders = {"timm": sorted(names, key=natural_key), "torchvision": sorted(names)}
    expected = {program: figures(model, pixels, map(order.index, names)) for program, order in orders.items()}
    assert orders["timm"] != orders["torchvision"]
    assert {program for _, program in fixes} == orders.keys()
    (folder / "a.txt").write_text("\n".join(orders["timm"]))
    for value, program in [*fixes, (folder / "a.txt", "timm")]:
        assert evaluate(folder, tmp_path, f"DATA.CLASSES={value}", weights=weights) == expected[program]


LISTS = {
    "lines": "2\n10\n1",
    "a list": '["2", "10", "1"]',
    "names by number": '{"0": "2", "1": "10", "2": "1"}',
    "numbers by name": '{"1": 2, "10": 1, "2": 0}',
}


@mark.parametrize("text", LISTS.values(), ids=LISTS)
@mark.parametrize("name", ["a.txt", "a.json", "a"])
def test_a_list_of_classes_has_any_ending(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_class_list(tmp_path / name) == ["2", "10", "1"]


def test_orders_that_all_programs_share_need_no_key(folder, tmp_path):
    names = [f"{number:02}" for number in range(12)]
    model = write_weights(folder, 12)
    pixels = write_images(tmp_path, names)
    assert evaluate(folder, tmp_path) == figures(model, pixels, range(12))
    (tmp_path / "00").rename(tmp_path.with_name("away"))
    with refused(r"12 outputs, and the data 11 classes; set DATA\.CLASSES to"):
        evaluate(folder, tmp_path)
    (folder / "all.txt").write_text("\n".join(names))
    found = evaluate(folder, tmp_path, f"DATA.CLASSES={folder / 'all.txt'}")
    assert found == figures(model, pixels[2:], range(1, 12))


def test_english_names_of_imagenet_in_the_file_are_wordnet_ids(folder, tmp_path):
    """As models of transformers name their outputs, with crane and maillot twice."""
    info = ImageNetInfo()
    model = write_weights(folder / "english", 1000, label_names=info.label_descriptions())
    pixels = write_images(tmp_path, WORDNET[:4])
    expected = figures(model, pixels, [info.label_names().index(name) for name in WORDNET[:4]])
    assert evaluate(folder / "english", tmp_path, weights="hf") == expected


@mark.slow
def test_folders_of_imagenet_classes(tmp_path):
    """By WordNet id, or by an English name of one class alone; other names could be in any order."""
    model = write_weights(tmp_path, 1000)
    names = [f"{name}_{number}" for number, name in enumerate([*WORDNET[:4], WORDNET[4].upper()])]
    data = tmp_path / "data"
    pixels = write_images(data, names)
    outputs = [ImageNetInfo().label_names().index(name) for name in WORDNET]
    assert evaluate(tmp_path, data, weights="1000.pth") == figures(model, pixels, outputs)
    (table,) = tmp_path.glob("out*/eval*/evaluation/per_class.csv")
    assert {row["class"] for row in read_csv_rows(table)} >= {*names}  # as the folders are named
    english = ["tench", "Carassius auratus", "flamingo", "church_building", "Toilet Paper"]
    pixels = write_images(tmp_path / "english", english)
    assert evaluate(tmp_path, tmp_path / "english", weights="1000.pth") == figures(model, pixels, outputs)
    (tmp_path / "english/flamingo").rename(tmp_path / "english/crane")  # a bird and a machine
    with refused(r"is of imagenet-1k: 'crane': no .* name of one class of it; set DATA\.CLASSES"):
        evaluate(tmp_path, tmp_path / "english", weights="1000.pth")


def shuffled(names: list[str]) -> dict[str, str]:
    numbers = default_rng(0).permutation(len(names)).tolist()
    return {str(number): names[number] for number in numbers}


@mark.parametrize("names", [shuffled(NUMBERS), NUMBERS, {name: int(name) - 1 for name in sorted(NUMBERS)}])
def test_names_in_config_json(names, folder, tmp_path):
    model = write_weights(folder, 12, label_names=names)
    pixels = write_images(tmp_path, NUMBERS)
    assert evaluate(folder, tmp_path, weights="hf") == figures(model, pixels, range(12))


def test_incomplete_names_in_config_json(folder, tmp_path):
    """An evaluation refuses them; a prediction shows the number of an output without a name."""
    partial = shuffled(NUMBERS)
    del partial["4"]
    model = write_weights(folder, 12, label_names=partial)
    pixels = write_images(tmp_path / "data", NUMBERS)
    expected = figures(model, pixels, range(12))
    with refused(r"12 outputs, .*; set DATA\.CLASSES"):
        evaluate(folder, tmp_path / "data", weights="hf")
    assert set(predicted(tmp_path, f"-pretrained={folder / 'hf'}")) == {*NUMBERS, "4 (3)", "4 (4)"} - {"4", "5"}
    config = read_json(folder / "hf/config.json")
    (folder / "hf/config.json").write_text(json.dumps(config | {"label_names": partial | {"4": "5"}}))
    assert evaluate(folder, tmp_path / "data", weights="hf") == expected
    texts = {name: f"class {name}" for name in NUMBERS}
    (folder / "hf/config.json").write_text(json.dumps(config | {"label_names": NUMBERS, "label_descriptions": texts}))
    assert set(predicted(tmp_path, f"-pretrained={folder / 'hf'}")) == set(texts.values())


def predicted(folder: Path, *weights: str) -> list[str]:
    """All classes of the first prediction of the images in `data`, the most probable first."""
    row, *_ = predict(folder / "predictions", str(folder / "data"), "-top_k=2000", "-num_workers=0", *weights)
    return [text for key, text in row.items() if key.startswith("class_")]


def test_a_threshold_that_the_most_probable_class_always_reaches_is_refused(folder, tmp_path):
    write_weights(folder, 12)
    write_images(tmp_path / "data", ["a"])
    given = cli(f"-model={NAME} -image_size={SIZE} -pretrained={folder / '12.pth'}")
    with refused("-threshold=0.08"):
        predicted(tmp_path, *given, "-threshold=0.08", "-opts", *DATA)
    assert predicted(tmp_path, *given, "-threshold=0.54", "-opts", *DATA)


def test_names_of_several_classes_decide_nothing():
    """They are an error unless the order is the one of the weights, and are shown with their labels."""
    names = ["crane", "dog", "crane"]
    assert map_labels(names, names, "the weights").tolist() == [0, 1, 2]
    assert map_labels(["dog", "emu"], names, "the weights").tolist() == [1, -1]
    with refused("the weights: 'crane': the name of several classes"):
        map_labels(["crane", "dog"], names, "the weights")
    shown = names_of_labels(Namespace(class_names=names, has_class_names=True), 4)
    assert shown == ["crane (0)", "dog", "crane (2)", "3"]


def test_names_in_predictions(folder, tmp_path):
    """Of DATA.CLASSES; of timm's for a model that it publishes for ImageNet with as many outputs; else numbers."""
    models = {number: write_weights(folder, number) for number in (12, 1000)}
    pixels = write_images(tmp_path / "data", ["a"])
    opened = [f"-model={NAME}", f"-image_size={SIZE}"]
    (folder / "12.txt").write_text("\n".join(NUMBERS))
    names = {"12": [str(i) for i in range(12)], "1000": ImageNetInfo().label_descriptions()}
    for number, more in (("12", []), ("12", [f"DATA.CLASSES={folder / '12.txt'}"]), ("1000", [])):
        logits = logits_of(models[int(number)], pixels[:1])[0]
        found = predicted(tmp_path, *opened, f"-pretrained={folder / number}.pth", "-opts", *DATA, *more)
        expected = NUMBERS if more else names[number]
        assert found[:3] == [expected[label] for label in logits.topk(3).indices.tolist()]
    with refused("12 names for 1000 outputs; give one for each"):
        more = ["-opts", *DATA, f"DATA.CLASSES={folder / '12.txt'}"]
        predicted(tmp_path, *opened, f"-pretrained={folder / '1000.pth'}", *more)


# Names in the order of a data set, and a part of the reason why another program may have another order
ORDERS = """
00 01 10 |
b a |
1 10 2 | timm and torchvision
Cat ant | timm and torchvision
A a b | not unique
Birke Zeder Ähre | not unique  # as macOS writes it, Ä comes before B
a² ² |
"""


@mark.parametrize("names, reason", cells_of(ORDERS))
def test_orders_of_names(names, reason):
    ambiguity = find_ambiguity(names.split())
    assert (reason in ambiguity) if reason else (ambiguity is None)


@mark.parametrize("content", [None, "", "a\n\nb", "[1, ", '{"0": "a", "2": "b"}', "\udcff", "1 a\n0 b", "2: a\n1: b"])
def test_a_list_of_classes_that_cannot_be_used_is_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "list").write_bytes(content.encode(errors="surrogateescape"))
    assert f"DATA.CLASSES: {tmp_path / 'list'}: " in line_of(read_class_list, tmp_path / "list")


class Inner:
    """An object of another program."""

    def __init__(self, **attributes):
        self.__dict__ |= attributes


PETS = ["dog", "cat", "bee"]
LABEL_OF_PET = {"dog": 0, "cat": 1, "bee": 2}
OTHERS = {
    "scikit-learn's classes_": {"classes": np.array(PETS, dtype=object)},
    "MMPretrain": {"meta": {"epoch": 1, "dataset_meta": {"classes": tuple(PETS)}}},
    "transformers": {"config": {"label2id": LABEL_OF_PET}},
    "Lightning": {"datamodule_hyper_parameters": {"class_names": PETS}},
    "a Namespace": {"args": Namespace(classes=PETS)},
    "numpy's keys": {"idx_to_class": {np.int64(label): name for label, name in enumerate(PETS)}},
    "scikit-learn's LabelEncoder": {"label_encoder": Inner(classes_=np.array(PETS, dtype=object))},
    "fastai's vocab": {"vocab": Inner(o2i=LABEL_OF_PET, items=Inner(items=PETS))},
}


def test_names_as_other_programs_write_them(tmp_path):
    file = tmp_path / "named.pth"
    options = TimmModel.model_construct(type="timm", name=NAME, pretrained=str(file))
    for program, entries in OTHERS.items():
        torch.save({"state_dict": {"head.bias": torch.zeros(3)}, **entries}, file)
        assert weights_record(options).class_names == PETS, program


def test_names_of_other_classes_beside_the_weights_name_no_output(tmp_path):
    for outputs, expected in ((12, NUMBERS), (10, None)):
        file = tmp_path / f"{outputs}.pth"
        torch.save({"state_dict": write_weights(tmp_path, outputs).state_dict(), "class_names": NUMBERS}, file)
        command = parse_command_line(cli(f"-eval -model={NAME} -pretrained={file}"))
        options, record, _ = options_of_weights(command)
        assert (options.model.num_classes, record.class_names) == (outputs, expected)


def test_weights_of_others_are_evaluated_on_val_or_test_before_a_part_of_train(folder, tmp_path):
    names = ["ant", "bee"]
    write_weights(folder, 2)
    for split in ("train", "test", "val"):
        write_images(tmp_path / split, names)
    ants = tmp_path / "train" / "ant"
    for number in range(2, 9):
        shutil.copy(ants / "0.png", ants / f"{number}.png")

    def evaluated(*flags):
        output = folder / f"split{len([*folder.iterdir()])}"
        words = cli(f"-model={NAME} -pretrained={folder / '2.pth'} -data_path={tmp_path} -batch_size=99")
        result = read_result(run_evaluation(output, *words, "-num_workers=0", *flags))
        return result["split"], result["samples"]

    assert evaluated("-split=train") == ("train", 11)
    for split, number in (("val", 4), ("test", 4), ("train", 2)):  # of train, one image of each class
        assert evaluated() == ("val" if split == "train" else split, number)
        shutil.rmtree(tmp_path / split)


@mark.parametrize("names", ["0 a\n1 b", "1 a\n2 b", "1\n0", "5 euro\n1 euro"])
def test_numbers_in_the_order_of_the_lines_and_other_ones_are_parts_of_names(names, tmp_path):
    (tmp_path / "list").write_text(names)
    assert read_class_list(tmp_path / "list") == names.split("\n")
