"""Faults in checkpoints and in resuming."""

import fcntl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from faults.runner import Fault, Provoke, finished
from faults.scene import GREY, Scene, flipped, in_namespace, require_mounts, torch_bytes, truncated, with_last

from engine.checkpoint.reader import load_checkpoint
from utils.atomic_file import atomic_save

_resumed = partial(with_last, "resume")
_FULL = in_namespace(
    "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/fill || true) 2>&-"
)


def checkpoint_faults() -> list[Fault]:
    def of_paddlevit(name: str, named: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            scene.write(name, "x")
            return scene.digits(flags=(f"-resume={scene.folder / named}",))

        return provoke

    def keep_the_format(path: Path) -> None:
        atomic_save(path, {"format": load_checkpoint(path)["format"]})

    damaged = r"last.pth: is damaged"
    table: dict[str, tuple[Provoke, str]] = {
        "missing": (lambda scene: scene.digits(flags=("-resume=none.pth",)), r"none.pth: no such file or folder"),
        "a folder without one": (lambda scene: scene.digits(flags=(f"-resume={scene.folder}",)), r"no checkpoint"),
        "empty": (_resumed(lambda path: path.write_bytes(b"")), damaged),
        "cut short": (_resumed(truncated), damaged),
        "with a bit flipped": (_resumed(flipped), damaged),
        "of torch.save": (_resumed(lambda path: path.write_bytes(torch_bytes({"a": 1}))), r"last.pth: is damaged"),
        "PaddleViT's": (of_paddlevit("vit.pdparams", "vit"), r"vit.pdparams: PaddleViT's optimizer state cannot be"),
        "PaddleViT's optimizer": (of_paddlevit("a.pdopt", "a.pdopt"), r"a.pdopt: .* -pretrained=.*a.pdparams"),
        "PaddleViT's folder": (of_paddlevit("pv/Epoch-9.pdparams", "pv"), r"Epoch-9.pdparams: .* -last_epoch=9"),
        "of another format": (_edited(format=1), r"last.pth: is not a checkpoint of format"),
        "a list with a valid checksum": (_resumed(lambda path: atomic_save(path, [1, 2])), r"last.pth: is not"),
        "incomplete, with a valid checksum": (_resumed(keep_the_format), r"model, ema, .* missing"),
        "not finite": (_not_finite, r"NaN|not finite|infinite"),
        "of another model": (_resumed(_unchanged, "MODEL.EMBED_DIM=32"), r"checkpoint is of another model"),
        "without adapters": (_resumed(_unchanged, "MODEL.TUNE=lora"), r"MODEL.TUNE: differs"),
        "of another optimizer": (_resumed(_unchanged, "TRAIN.OPTIMIZER.NAME=SGD"), r"OPTIMIZER.NAME: differs .* AdamW"),
        "without the average": (_resumed(_unchanged, "TRAIN.MODEL_EMA=true"), r"TRAIN.MODEL_EMA: differs"),
        "of another metric": (_resumed(_unchanged, "EVAL.BEST_METRIC=loss"), r"EVAL.BEST_METRIC: differs .* null"),
        "with a forged evaluation": (_edited(best={"top1": "100", "top5": 1.0, "epoch": 1, "loss": None}), r"entries"),
        "of one label per image": (_of_one_label, r"DATA.MULTI_LABEL: differs from the checkpoint"),
        "beyond the last epoch": (_resumed(_unchanged, "TRAIN.NUM_EPOCHS=1"), r"NUM_EPOCHS 1: the checkpoint has 2"),
    }
    return [Fault(f"checkpoint: {name}", provoke, line) for name, (provoke, line) in table.items()]


def resume_faults() -> list[Fault]:
    longer = "TRAIN.NUM_EPOCHS=3"
    return [
        Fault("resume: another run has locked the folder", _locked_folder, r"output/.*: is in use by"),
        Fault("resume: a full disk", _full_disk, r"output/\S+: No space left", shell=_FULL),
        Fault("resume: another batch size, inside an epoch", _inside_an_epoch, r"used 192 samples .* batch size 80"),
        Fault("resume: balanced sampling, inside an epoch", _then_balanced, r"DATA.BALANCED_SAMPLING false"),
        finished("resume: a folder, the last is damaged", _damaged_in_folder, prints="Resume: skipped"),
        finished("resume: auto, the last is damaged", _auto(flipped, longer)),
        finished("resume: auto, the last is cut short", _auto(truncated, longer)),
        finished("resume: auto, no run yet", lambda scene: scene.digits(flags=("-resume=auto",))),
    ]


def _edited(**changes: Any) -> Provoke:
    return lambda scene: scene.digits(flags=(f"-resume={scene.edited_checkpoint(**changes)}",))


def _of_one_label(scene: Scene) -> list[str]:
    last = scene.run_copy() / "last.pth"
    rows = "".join(f"train/cat/{number}.jpg,{number % 10}|{(number + 1) % 10}\n" for number in range(12))
    for split in ("train", "val"):
        (scene.data / f"{split}.csv").write_text(f"image_path,target\n{rows}")
    return scene.images("DATA.MULTI_LABEL=true", "LOSS.NAME=bce", *GREY, dataset="csv", flags=(f"-resume={last}",))


def _not_finite(scene: Scene) -> list[str]:
    model = load_checkpoint(scene.trained / "last.pth")["model"]
    model["norm.bias"] = torch.full((16,), torch.nan)
    return _edited(model=model)(scene)


def _auto(change: Callable[[Path], Any], *options: str) -> Provoke:
    def provoke(scene: Scene) -> list[str]:
        change(scene.run_copy() / "last.pth")
        return scene.digits(*options, flags=("-resume=auto",))

    return provoke


def _unchanged(path: Path) -> None:
    pass


def _damaged_in_folder(scene: Scene) -> list[str]:
    return scene.digits("TRAIN.NUM_EPOCHS=3", flags=(f"-resume={flipped(scene.run_copy() / 'last.pth').parent}",))


def _locked_folder(scene: Scene) -> list[str]:
    folder = scene.run_copy()
    scene.lock = open(folder / ".lock", "a")  # noqa: SIM115  # keeps the lock while the scene exists
    fcntl.flock(scene.lock, fcntl.LOCK_EX)
    return scene.digits(flags=(f"-resume={folder}",))


def _full_disk(scene: Scene) -> list[str]:
    require_mounts()
    saved = scene.run_copy()
    scene.output.rename(scene.folder / "saved")
    scene.output.mkdir()
    return scene.digits("TRAIN.NUM_EPOCHS=3", flags=(f"-resume={saved}",))


def _inside_an_epoch(scene: Scene, option: str = "DATA.BATCH_SIZE=80") -> list[str]:
    last = scene.edited_checkpoint(epoch=1, done_steps=3)
    return scene.digits(option, flags=(f"-resume={last}",))


def _then_balanced(scene: Scene) -> list[str]:
    return _inside_an_epoch(scene, "DATA.BALANCED_SAMPLING=true")
