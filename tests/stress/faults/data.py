"""Faults in data sets: lists, tables, class folders."""

import os
import pickle
import shutil
from itertools import product

from faults.runner import Fault, Provoke
from faults.scene import RunsCode, Scene, Skipped, image_bytes

from utils.system import is_installed


def with_file(name: str, content: str | bytes, *options: str, dataset: str = "imagenet2012") -> Provoke:
    """The data set with one file replaced."""

    def provoke(scene: Scene) -> list[str]:
        flags = scene.images(*options, dataset=dataset)
        scene.write(f"data/{name}", content)
        return flags

    return provoke


def with_table(split: str, row: str, *options: str) -> Provoke:
    return with_file(f"{split}.csv", f"image_path,target\n{row}\n", *options, dataset="csv")


def list_faults() -> list[Fault]:
    listed = "train_list.txt"
    table: dict[str, tuple[Provoke, str]] = {
        "no such folder": (lambda scene: scene.images(flags=("-data_path=nowhere",)), r"nowhere"),
        "no list": (_without(listed), r"train_list.txt: cannot be read \(No such file"),
        "no list for validation": (_without("val_list.txt"), r"val_list.txt: cannot be read \(No such file"),
        "a pipe as list": (_pipe_as_list, r"train_list.txt"),
        "an empty list": (with_file(listed, ""), r"train_list.txt: lists no images"),
        "no label": (with_file(listed, "train/cat/0.jpg\n"), r"train_list.txt:1: .* is not a path and a label"),
        "a label that is not a number": (with_file(listed, "train/cat/0.jpg cat\n"), r"train_list.txt:1: label 'cat'"),
        "a negative label": (with_file(listed, "train/cat/0.jpg -1\n"), r"train_list.txt:1: label '-1' is not a class"),
        "a label out of range": (with_file(listed, "train/cat/0.jpg 10\n"), r"10.*MODEL.NUM_CLASSES is 10"),
        "a path outside the folder": (with_file(listed, "../../etc/passwd 1\n"), r":1: path .* is not inside"),
        "an absolute path": (with_file(listed, "/etc/passwd 1\n"), r":1: path '/etc/passwd' is not inside"),
        "a listed file that is missing": (with_file(listed, "a.jpg 1\n"), r"train_list.txt:1: 'a.jpg' is not a file"),
        "a list of bytes": (with_file(listed, bytes(range(256))), r"train_list.txt:\d+: "),
    }
    return [Fault(f"data: {name}", provoke, line) for name, (provoke, line) in table.items()]


def data_set_faults() -> list[Fault]:
    def folders_of_labels(scene: Scene) -> list[str]:
        return scene.images("DATA.MULTI_LABEL=true", dataset="folder")

    def with_folds(number: int, part: str = "") -> Provoke:
        keys = f"DATA.FOLDS={number}", "DATA.FOLD=0"
        return lambda scene: scene.images(*keys, dataset="folder", flags=(f"-data_path={scene.data / part}",))

    table: dict[str, tuple[Provoke, str]] = {
        "a table without a header": (with_file("train.csv", "a.jpg,1\n", dataset="csv"), r"train.csv:1: the header"),
        "an unknown class": (with_table("val", "val/cat/0.jpg,emu"), r"val.csv:2: .*emu"),
        "columns with other names": (with_file("train.csv", "a;b\n", dataset="csv"), r"csv:1: .*'a', 'b'.*';'"),
        "a table in no encoding": (with_file("train.csv", b"\x81\xff", dataset="csv"), r"train.csv: is not text"),
        "an archive": (_archive, r"data.zip: is an archive; unpack it"),
        "a folder beside train": (_moved(["val"], "unsorted/0.jpg"), r"is train the training split or a class"),
        "two folders of a split": (_moved(["val"], "valid/a/0.jpg", "validation/a/0.jpg"), r"which one is val"),
        "splits with unknown names": (_moved(["train", "val"], "train_a/a/0.jpg", "val_a/a/0.jpg"), r"splits\? Rename"),
        "HEIC without a decoder": (_heic_class, r"emu: all of its images are HEIC; pip install pillow-heif"),
        "several labels": (with_table("train", "train/cat/0.jpg,0|1"), r"csv:2: .*MULTI_LABEL"),
        "an unknown label": (with_table("val", "val/cat/0.jpg,0|x", "DATA.MULTI_LABEL=true"), r"val.csv:2: label 'x'"),
        "no label in val": (with_table("val", "val/cat/0.jpg,", "DATA.MULTI_LABEL=true"), r"val.csv: .*split val"),
        "labels of class folders": (folders_of_labels, r"DATA.MULTI_LABEL needs the data set csv"),
        "a data set of a hub": (lambda scene: scene.images(dataset="hf:food101"), r"unknown data set hf:food101"),
        "a test class": (with_file("test/cat/0.jpg", image_bytes(), dataset="folder"), r"'dog' .*train and test"),
        "test images beside class folders": (_test_beside_classes, r"data/train/test: is it a class"),
        "a missing test image": (with_table("test", "val/cat/9.jpg,0"), r"test.csv:2: 'val/cat/9.jpg'"),
        "a class without images": (_empty_class, r"emu: contains no images"),
        "a class in two Unicode forms": (_two_forms, r"two classes are named 'Ähre', in two Unicode forms"),
        "one class": (_one_class, r"contains only one folder, cat"),
        "classes beside examples": (_classes_beside_examples, r"10 of 11 images .* give -data_path=\S+/clone/Dataset;"),
        "a class only in val": (with_file("val/emu/0.jpg", image_bytes(), dataset="folder"), r"'emu' .*train and val"),
        "less than a batch": (lambda scene: scene.images(flags=("-batch_size=64",)), r"24 training .*batch of 64"),
        "folds beside a val split": (with_folds(5), r"DATA.FOLDS 5: folder has a validation split here; give the tr"),
        "fewer images than folds": (with_folds(13, "train"), r"2 class\(es\) have fewer images than DATA.FOLDS 13"),
        "a pickle with code for CIFAR": (_cifar_with_code, r"batches.meta: is not a CIFAR batch .*posix.system"),
        "ImageNet-R in other folders": (_imagenet_set("imagenet-r", 1000), r"'cat', 'dog': not a class of imagenet-r"),
        "ReaL labels of other images": (
            _imagenet_set("imagenet-real", 1000),
            r"real.json: ReaL labels of other images",
        ),
        "ReaL labels for 10 classes": (_imagenet_set("imagenet-real", 10), r"classes of the model are not ImageNet's"),
    }
    return [Fault(f"data: {name}", provoke, line) for name, (provoke, line) in table.items()]


def _imagenet_set(dataset: str, num_classes: int) -> Provoke:
    """Evaluates the class folders of the scene as a test set of ImageNet."""

    def provoke(scene: Scene) -> list[str]:
        scene.write("data/val/real.json", "[[1], [2]]")
        flags = "-eval", f"-pretrained={scene.edited_weights()}", f"-data_path={scene.data / 'val'}"
        return scene.images(f"MODEL.NUM_CLASSES={num_classes}", dataset=dataset, flags=flags)

    return provoke


def _without(name: str) -> Provoke:
    def provoke(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / name).unlink()
        return flags

    return provoke


def _archive(scene: Scene) -> list[str]:
    return scene.images(flags=(f"-data_path={scene.write('data.zip', b'PK')}",))


def _moved(removed: list[str], *added: str) -> Provoke:
    """Class folders, without some folders of splits, and with other images."""

    def provoke(scene: Scene) -> list[str]:
        flags = scene.images(dataset="folder")
        for name in removed:
            shutil.rmtree(scene.data / name)
        for name in added:
            scene.write(f"data/{name}", image_bytes())
        return flags

    return provoke


def _heic_class(scene: Scene) -> list[str]:
    if is_installed("pillow_heif"):
        raise Skipped("pillow-heif is installed")
    for split in ("train", "val"):
        scene.write(f"data/{split}/emu/0.heic", b"\0\0\0\x18ftypheic" + bytes(20))
    return scene.images(dataset="folder")


def _empty_class(scene: Scene) -> list[str]:
    flags = scene.images(dataset="folder")
    (scene.data / "train" / "emu").mkdir()
    (scene.data / "val" / "emu").mkdir()
    return flags


def _two_forms(scene: Scene) -> list[str]:
    flags = scene.images(dataset="folder")
    for split, name in product(("train", "val"), ("Ähre", "A\u0308hre")):
        scene.write(f"data/{split}/{name}/0.jpg", image_bytes())
    return flags


def _test_beside_classes(scene: Scene) -> list[str]:
    """Gives the folder train, with class folders and test, as the data."""
    scene.write("data/train/test/0.jpg", image_bytes())
    return scene.images(dataset="folder", flags=(f"-data_path={scene.data / 'train'}",))


def _one_class(scene: Scene) -> list[str]:
    root = scene.write("one/cat/a.jpg", "").parents[1]
    return scene.images(dataset="caltech101", flags=(f"-data_path={root}",))


def _classes_beside_examples(scene: Scene) -> list[str]:
    for number in range(10):
        scene.write(f"clone/Dataset/{number % 2}/{number}.jpg", image_bytes())
    root = scene.write("clone/Examples/0.jpg", image_bytes()).parents[1]
    return scene.images(dataset="folder", flags=(f"-data_path={root}",))


def _cifar_with_code(scene: Scene) -> list[str]:
    scene.write("cifar/batches.meta", pickle.dumps(RunsCode()))
    return scene.images(dataset="cifar10", flags=(f"-data_path={scene.folder / 'cifar'}",))


def _pipe_as_list(scene: Scene) -> list[str]:
    flags = _without("train_list.txt")(scene)
    os.mkfifo(scene.data / "train_list.txt")
    return flags
