"""Faults in what a run is given: command lines, recipes, data, images, weights."""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faults.runner import Fault, Provoke
from faults.scene import Scene, Skipped, flipped, image_bytes, torch_bytes, truncated
from PIL import Image

from datasets.sources.packed import Packable, write_packed


class _Code:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch exploded",)


def input_faults() -> list[Fault]:
    return [*_command_line(), *_recipes(), *_data(), *_images(), *_weights()]


def _command_line() -> list[Fault]:
    def given(*flags: str, options: tuple[str, ...] = ()) -> Provoke:
        return lambda scene: scene.digits(*options, flags=flags)

    def option(*options: str) -> Provoke:
        return given(options=options)

    timm = ("MODEL.TYPE=timm", "MODEL.PATCH_SIZE=16", "MODEL.EMBED_DIM=768", "MODEL.DEPTH=12", "MODEL.NUM_HEADS=12")
    table: dict[str, tuple[Provoke, str]] = {
        "misspelt flag": (given("-batchsize=4"), r"unknown flag -batchsize; did you mean -batch_size\?"),
        "abbreviated flag": (given("-e"), r"unknown flag -e"),
        "text for a number": (given("-batch_size=x"), r"-batch_size.*invalid int value: 'x'"),
        "batch of none": (given("-batch_size=0"), r"-batch_size: DATA.BATCH_SIZE is 0: .* greater than or equal to 1"),
        "no value": (lambda scene: ["-cfg"], r"-cfg: expected one argument"),
        "no processes": (given("-ngpus=0"), r"-ngpus 0: must be at least 1"),
        "many processes for the single script": (given("-ngpus=2"), r"-ngpus 2: this script uses one process"),
        "option without a value": (option("SEED"), r"-opts SEED: expected KEY=VALUE"),
        "misspelt key": (option("TRAIN.BASE_LRR=1"), r"unknown key TRAIN.BASE_LRR; did you mean TRAIN.BASE_LR\?"),
        "number of 9000 digits": (option("SEED=" + "9" * 9000), r"'9+\.\.\.9+' cannot be read as a value"),
        "long unknown flag": (given("-" + "x" * 50_000), r"unknown flag -x{70,90}"),
        "unknown half type": (given("-amp_dtype=int8"), r"-amp_dtype: AMP.DTYPE is 'int8'"),
        "evaluation without weights": (given("-eval"), r"EVAL needs weights"),
        "misspelt data set": (given("-dataset=digit"), r"unknown data set digit; did you mean digits\?"),
        "patches that do not divide": (
            option("DATA.IMAGE_SIZE=9"),
            r"IMAGE_SIZE 9 is not a multiple of",
        ),
        "misspelt optimizer": (option("TRAIN.OPTIMIZER.NAME=AdamX"), r"unknown optimizer AdamX; did you mean"),
        "unknown timm model": (option(*timm, "MODEL.NAME=resnet180"), r"timm has no model resnet180; did you mean"),
        "size a timm model refuses": (
            option(*timm, "MODEL.NAME=convnext_atto", "DATA.IMAGE_SIZE=16"),
            r"DATA.IMAGE_SIZE 16: convnext_atto does not accept it",
        ),
        "nothing left to train": (given("-last_epoch=2"), r"LAST_EPOCH 2 of NUM_EPOCHS 2: no epoch is left"),
        "more memory than there is": (option("DATA.IMAGE_SIZE=400000"), r"memory"),
    }
    single = r"a launcher started several processes, this script uses one"
    return [
        *(Fault(f"command line: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault("launcher: many processes of the single script", given(), single, environment={"WORLD_SIZE": "2"}),
        Fault("launcher: a world size of letters", given(), r"WORLD_SIZE", environment={"WORLD_SIZE": "two"}),
    ]


def _recipes() -> list[Fault]:
    def text(content: str | bytes) -> Provoke:
        return lambda scene: [f"-cfg={scene.write('recipe.yaml', content)}"]

    def circle(scene: Scene) -> list[str]:
        scene.write("b.yaml", "BASE: [recipe.yaml]")
        return text("BASE: [b.yaml]")(scene)

    def pipe(scene: Scene) -> list[str]:
        os.mkfifo(scene.folder / "pipe.yaml")
        return [f"-cfg={scene.folder / 'pipe.yaml'}"]

    def outside(scene: Scene) -> list[str]:
        recipe = scene.write("deep/recipe.yaml", "BASE: [../../secret.yaml]")
        return [f"-cfg={recipe}"]

    def twice_over(scene: Scene) -> list[str]:
        for number in range(40):
            scene.write(f"{number}.yaml", f"BASE: [{number + 1}.yaml, {number + 1}.yaml]")
        return [f"-cfg={scene.folder / '0.yaml'}"]

    table: dict[str, tuple[Provoke, str]] = {
        "missing": (lambda scene: ["-cfg=none.yaml"], r"none.yaml: cannot be read: No such file"),
        "a folder": (lambda scene: [f"-cfg={scene.folder}"], r"not a regular file"),
        "a pipe": (pipe, r"pipe.yaml: cannot be read: not a regular file"),
        "a device without end": (
            lambda scene: ["-cfg=/dev/zero"],
            r"/dev/zero: cannot be read: not a regular file",
        ),
        "bytes": (text(bytes(range(256))), r"recipe.yaml: is not a text file in UTF-8"),
        "two megabytes": (text("#" * 2_000_000), r"recipe.yaml: is larger than 65536 bytes"),
        "a key twice": (text("SEED: 1\nSEED: 2"), r"recipe.yaml:2: SEED is given twice, first in line 1"),
        "a tag with code": (text("SAVE: !!python/object/apply:os.system [ls]"), r":1: the tag .* is not allowed"),
        "an alias": (text("SEED: &a 1\nSAVE_FREQ: *a"), r":2: aliases are not allowed"),
        "an unknown key": (text("TRAIN:\n  EPOCHS: 3"), r":2: unknown key TRAIN.EPOCHS; did you mean"),
        "a wrong type": (text("DATA:\n  IMAGE_SIZE: big"), r":2: DATA.IMAGE_SIZE is 'big'"),
        "not a number": (text("TRAIN: {BASE_LR: .nan}"), r":1: TRAIN.BASE_LR is '.nan'"),
        "broken": (text("DATA:\n  A: [1"), r"recipe.yaml:\d+: "),
        "nested 5000 deep": (text("SEED: " + "[" * 5000), r"nested too deeply"),
        "a feature to come": (text("TRAIN: {RAND_AUGMENT: true}"), r":1: TRAIN.RAND_AUGMENT: .* not available yet"),
        "an escape code in a key": (text('"\\e[2J": 1'), r":1: '.x1b\[2J' is not a valid key"),
        "a zero byte in a path": (text('SAVE: "a\\0"'), r":1: SAVE is .*: no name holds a zero byte"),
        "a base that is missing": (text("SEED: 1\nBASE: [none.yaml]"), r"recipe.yaml:2: BASE: .*none.yaml: cannot be"),
        "bases in a circle": (circle, r"b.yaml:1: BASE is cyclic: recipe.yaml -> b.yaml -> recipe.yaml"),
        "a base outside": (outside, r"recipe.yaml:1: BASE '../../secret.yaml' is outside"),
        "bases twice over, forty deep": (twice_over, r"BASE leads to more than 32 files"),
    }
    return [Fault(f"recipe: {name}", provoke, line) for name, (provoke, line) in table.items()]


def _with_file(name: str, content: str | bytes, *options: str, dataset: str = "imagenet2012") -> Provoke:
    """The images with one file of theirs replaced."""

    def provoke(scene: Scene) -> list[str]:
        flags = scene.images(*options, dataset=dataset)
        scene.write(f"data/{name}", content)
        return flags

    return provoke


def _data() -> list[Fault]:
    def nowhere(scene: Scene) -> list[str]:
        return scene.images(flags=(f"-data_path={scene.folder / 'nowhere'}",))

    def without(name: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            flags = scene.images()
            (scene.data / name).unlink()
            return flags

        return provoke

    def empty_class(scene: Scene) -> list[str]:
        flags = scene.images(dataset="folder")
        (scene.data / "train" / "emu").mkdir()
        (scene.data / "val" / "emu").mkdir()
        return flags

    def one_class(scene: Scene) -> list[str]:
        return [
            *scene.images(dataset="caltech101", flags=(f"-data_path={scene.write('one/cat/a.jpg', '').parents[1]}",))
        ]

    def cifar_with_code(scene: Scene) -> list[str]:
        scene.write("cifar/batches.meta", pickle.dumps(_Code()))
        return scene.images(dataset="cifar10", flags=(f"-data_path={scene.folder / 'cifar'}",))

    def pipe_for_a_list(scene: Scene) -> list[str]:
        flags = without("train_list.txt")(scene)
        os.mkfifo(scene.data / "train_list.txt")
        return flags

    def packed(name: str, damage: Callable[[Path], Path]) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            folder = scene.write("packed/readme", "").parent
            for split in ("train", "val"):
                write_packed(folder, split, ["cat", "dog"], [Packable(image_bytes(), i % 2, f"{i}") for i in range(8)])
            damage(folder / name)
            return scene.images(dataset="packed", flags=(f"-data_path={folder}",))

        return provoke

    listed = "train_list.txt"
    table: dict[str, tuple[Provoke, str]] = {
        "no such folder": (nowhere, r"nowhere"),
        "no list": (without(listed), r"train_list.txt: cannot be read \(No such file"),
        "no list for validation": (without("val_list.txt"), r"val_list.txt: cannot be read \(No such file"),
        "a pipe for a list": (pipe_for_a_list, r"train_list.txt"),
        "an empty list": (_with_file(listed, ""), r"train_list.txt: lists no images"),
        "no label": (_with_file(listed, "train/cat/0.jpg\n"), r"train_list.txt:1: .* is not a path and a label"),
        "a label of letters": (_with_file(listed, "train/cat/0.jpg cat\n"), r"train_list.txt:1: label 'cat' is no"),
        "a negative label": (_with_file(listed, "train/cat/0.jpg -1\n"), r"train_list.txt:1: label '-1' is no class"),
        "a label out of range": (_with_file(listed, "train/cat/0.jpg 10\n"), r"10.*MODEL.NUM_CLASSES is 10"),
        "a path that leads out": (_with_file(listed, "../../etc/passwd 1\n"), r":1: path .* leads out of"),
        "a path from the root": (_with_file(listed, "/etc/passwd 1\n"), r":1: path '/etc/passwd' leads out of"),
        "a listed file that is not there": (_with_file(listed, "a.jpg 1\n"), r"train_list.txt:1: 'a.jpg' is no file"),
        "a list of bytes": (_with_file(listed, bytes(range(256))), r"train_list.txt:\d+: "),
        "a table without a header": (_with_file("train.csv", "a.jpg,1\n", dataset="csv"), r"train.csv:1: the header"),
        "a class that training lacks": (
            _with_file("val.csv", "image_path,target\nval/cat/0.jpg,emu\n", dataset="csv"),
            r"val.csv:2: .*emu",
        ),
        "a class without images": (empty_class, r"emu: holds no images"),
        "one class": (one_class, r"holds one folder only, cat"),
        "classes that differ": (
            _with_file("val/emu/0.jpg", image_bytes(), dataset="folder"),
            r"class folder 'emu' is only in one of train and val",
        ),
        "fewer images than a batch": (
            lambda scene: scene.images(flags=("-batch_size=64",)),
            r"24 training samples do not fill one batch of 64",
        ),
        "a pickle with code for CIFAR": (
            cifar_with_code,
            r"batches.meta: is no batch of CIFAR \(it asks for posix.system",
        ),
        "a folder that is not packed": (
            lambda scene: scene.images(dataset="packed"),
            r"train.index: cannot be read \(No such file",
        ),
        "a packed index cut short": (packed("val.index", truncated), r"val.index: is damaged \(its checksum"),
        "a bit of a packed index": (packed("train.index", flipped), r"train.index: is damaged \(its checksum"),
        "packed images cut short": (packed("train.blob", truncated), r"train.index: is of a blob of"),
        "a bit of a packed image": (packed("train.blob", flipped), r"train.blob: image \d .*its checksum does not"),
    }
    return [Fault(f"data: {name}", provoke, line) for name, (provoke, line) in table.items()]


def _png_of(width: int, height: int) -> bytes:
    """A few bytes that claim to be so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _images() -> list[Fault]:
    def folder_for_an_image(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").unlink()
        (scene.data / "train/cat/3.jpg").mkdir()
        return flags

    def pipe_for_an_image(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").unlink()
        os.mkfifo(scene.data / "train/cat/3.jpg")
        return flags

    def forbidden(scene: Scene) -> list[str]:
        if os.geteuid() == 0:
            raise Skipped("root may read everything")
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").chmod(0)
        return flags

    def replaced(content: bytes, name: str = "train/cat/3.jpg", *options: str) -> Provoke:
        return _with_file(name, content, *options)

    cut = r"3\.jpg: cannot be decoded \(.*\); replace or remove it"
    table: dict[str, tuple[Provoke, str]] = {
        "cut short": (replaced(image_bytes()[:400]), cut),
        "cut short, read by a worker": (replaced(image_bytes()[:400], "train/cat/3.jpg", "DATA.NUM_WORKERS=1"), cut),
        "cut short, in validation": (replaced(image_bytes()[:400], "val/cat/3.jpg"), cut),
        "text": (replaced(b"hello"), r"3\.jpg: is no image in any of JPEG, PNG"),
        "empty": (replaced(b""), r"3\.jpg: is no image in any of JPEG, PNG"),
        "PostScript": (
            replaced(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
            r"3\.jpg: is no image in any of",
        ),
        "a bomb of 10^10 pixels": (replaced(_png_of(100_000, 100_000)), r"3\.jpg: cannot be decoded \(.*pixels"),
        "a bomb of 10^8 pixels": (replaced(_png_of(10_000, 10_000)), r"3\.jpg: cannot be decoded"),
        "floating-point pixels": (
            replaced(_encoded(np.ones((8, 8), "f4"), "TIFF")),
            r"3\.jpg: cannot be decoded \(floating-point",
        ),
        "missing": (_without_image, r"train_list.txt:7: 'train/cat/3\.jpg' is no file"),
        "a folder": (folder_for_an_image, r"3\.jpg' is no file"),
        "a pipe": (pipe_for_an_image, r"3\.jpg' is no file"),
        "not to be read": (forbidden, r"3\.jpg: cannot be read \(Permission denied"),
    }
    return [
        *(Fault(f"image: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault(
            "image: 16 bits deep",
            replaced(_encoded(np.arange(64, dtype="u2").reshape(8, 8) * 900, "PNG")),
            None,
            status=(0,),
        ),
        Fault(
            "image: text, to be skipped",
            replaced(b"hello", "train/cat/3.jpg", "DATA.ON_BAD_IMAGE=skip"),
            None,
            (0,),
            state="finished",
            says="1 of 24 training images could not be read and were skipped",
        ),
    ]


def _without_image(scene: Scene) -> list[str]:
    flags = scene.images()
    (scene.data / "train/cat/3.jpg").unlink()
    return flags


def _encoded(pixels: np.ndarray, form: str) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), form)
    return buffer.getvalue()


def _weights() -> list[Fault]:
    def named(name: str, content: bytes | None = None) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            path = scene.folder / name if content is None else scene.write(name, content)
            return scene.digits(flags=(f"-pretrained={path}",))

        return provoke

    def trained(change: Callable[[Path], Any]) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            best = scene.run_copy() / "last.pth"
            change(best)
            return scene.digits(flags=(f"-pretrained={best}",))

        return provoke

    def edited(**changes: torch.Tensor | None) -> Provoke:
        return lambda scene: scene.digits(flags=(f"-pretrained={scene.edited_weights(**changes)}",))

    def other_head(scene: Scene) -> list[str]:
        weights = scene.edited_weights(head__weight=torch.ones(7, 16), head__bias=torch.ones(7))
        return scene.digits(flags=("-eval", f"-pretrained={weights}"))

    table: dict[str, tuple[Provoke, str]] = {
        "missing": (named("none"), r"none: no such file, also with .pdparams"),
        "of an unknown ending": (named("vit.onnx", b""), r"vit.onnx: unknown file extension"),
        "a page of the web": (
            named("vit.pdparams", b"<html></html>"),
            r"vit.pdparams: is damaged or not a .pdparams file",
        ),
        "empty": (named("vit.safetensors", b""), r"vit.safetensors: is damaged or not a .safetensors file"),
        "cut short": (trained(truncated), r"last.pth: is damaged"),
        "with a bit flipped": (trained(flipped), r"last.pth: is damaged \(its checksum does not match\)"),
        "not finite": (edited(norm__bias=torch.full((16,), torch.nan)), r"NaN or infinite values: norm.bias"),
        "of another shape": (edited(norm__bias=torch.ones(17)), r"wrong shapes: norm.bias 17, not 16"),
        "incomplete": (edited(norm__bias=None), r"missing tensors: norm.bias"),
        "larger than the file": (edited(norm__bias=torch.ones(1).expand(10**12)), r"norm.bias is larger than its data"),
        "with another head, to be evaluated": (other_head, r"head: 7 classes in the file, 10 in the model"),
        "pdparams with code": (
            named("vit.pdparams", pickle.dumps(_Code())),
            r"refers to posix.system, which is not data",
        ),
        "pth with code": (named("vit.pth", torch_bytes({"a": _Code()})), r"refers to posix.system, which is not data"),
        "an archive that unpacks without end": (
            named("vit.npz", _zip_bomb()),
            r"would unpack from \d+ to 200000000 bytes",
        ),
    }
    return [Fault(f"weights: {name}", provoke, line) for name, (provoke, line) in table.items()]


def _zip_bomb() -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", bytes(200_000_000))
    return buffer.getvalue()
