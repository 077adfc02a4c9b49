"""Faults in the teacher of a distillation."""

import shutil

import torch
from faults.runner import Fault, Provoke
from faults.scene import Scene, truncated

from engine.checkpoint.reader import FORMAT, load_checkpoint
from utils.atomic_file import atomic_save


def distillation_faults() -> list[Fault]:
    def given(*options: str, kind: str = "soft") -> Provoke:
        """Options of a student whose teacher is the finished run of the scene."""

        def provoke(scene: Scene) -> list[str]:
            teacher = f"-teacher_model_path={scene.trained / 'last.pth'}"
            return scene.digits(f"TRAIN.DISTILLATION_TYPE={kind}", *options, flags=(teacher,))

        return provoke

    def cut_short(scene: Scene) -> list[str]:
        weights = truncated(shutil.copy(scene.trained / "last.pth", scene.folder / "teacher.pth"))
        return given(f"TRAIN.TEACHER_WEIGHTS={weights}")(scene)

    def edited(options: dict[str, str], **tensors: torch.Tensor) -> Provoke:
        """A teacher with other options or tensors; `__` in the name of a tensor means a dot."""

        def provoke(scene: Scene) -> list[str]:
            content = load_checkpoint(scene.trained / "last.pth")
            for old, new in options.items():
                assert old in content["options"]
                content["options"] = content["options"].replace(old, new)
            content["model"] |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
            file = scene.folder / "teacher.pth"
            atomic_save(file, content | {"format": FORMAT, "preprocessing": None, "class_names": None})
            return given(f"TRAIN.TEACHER_WEIGHTS={file}")(scene)

        return provoke

    color = {
        "IMAGE_CHANNELS: 1": "IMAGE_CHANNELS: 3",
        "IMAGENET_MEAN: [0.5]": "IMAGENET_MEAN: [0.5, 0.5, 0.5]",
        "IMAGENET_STD: [0.5]": "IMAGENET_STD: [0.5, 0.5, 0.5]",
    }
    weights, model = "TRAIN.TEACHER_WEIGHTS", "TRAIN.TEACHER_MODEL"
    regnet = "./regnety_160.pdparams"
    table: dict[str, tuple[Provoke, str]] = {
        "without weights": (given(f"{weights}=null"), r"^TRAIN.TEACHER_WEIGHTS: DISTILLATION_TYPE soft"),
        "missing": (given(f"{weights}=none.pth"), r"TRAIN.TEACHER_WEIGHTS: none.pth: no such file"),
        "PaddleViT's default": (given(f"{weights}=null", f"{model}={regnet}", kind="hard"), rf"WEIGHTS: {regnet}"),
        "unknown": (given(f"{model}=regnety_161"), r"TRAIN.TEACHER_MODEL: regnety_161 is neither a recipe in configs/"),
        "cut short": (cut_short, r"TRAIN.TEACHER_WEIGHTS, teacher .*teacher.pth: is damaged"),
        "of another model": (given(f"{model}=vit_digits"), r"TRAIN.TEACHER_WEIGHTS, teacher vit_digits: .*last.pth: "),
        "another head": (edited({}, head__weight=torch.ones(7, 16), head__bias=torch.ones(7)), r"teacher.pth: .*7 cl"),
        "other classes": (edited({"NUM_CLASSES: 10": "NUM_CLASSES: 7"}), r"TEACHER_WEIGHTS: .*vit has 7 .*student 10"),
        "for color images": (edited(color, patch_embed__proj__weight=torch.ones(16, 3, 4, 4)), r"CHANNELS is 1"),
        "of a wrong size": (edited({"IMAGE_SIZE: 8": "IMAGE_SIZE: 9"}), r"TEACHER_MODEL vit: DATA.IMAGE_SIZE 9"),
        "without distillation": (
            given(kind="none"),
            r"-teacher_model_path: TRAIN.TEACHER_WEIGHTS needs a distillation",
        ),
        "unknown type": (given(kind="medium"), r"TRAIN.DISTILLATION_TYPE is 'medium'"),
    }
    return [Fault(f"teacher: {name}", provoke, line) for name, (provoke, line) in table.items()]
