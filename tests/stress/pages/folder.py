"""The folder of a page: a copy of the project, and small data, runs and weights under the names that the page uses."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import timm
import torch
from rank_pool import environment as environment_of_user
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from tests.datasets.shards.tar_files import jpeg, write_shards
from tests.scripts.test_benchmark_train import TIMM

ROOT = Path(__file__).parents[3]
_FOLDERS = ("configs", "datasets", "docs", "engine", "models", "scripts", "tests", "utils")
_PUBLISHED = ("vit_small_patch16_224", "resnet50", "vit_small_patch16_dinov3.lvd1689m")
_PUBLISHED += ("vit_base_patch16_dinov3.lvd1689m",)
_RUNS = ("RUN", "RUN2", "RUN3", "output/RUN", "output/vit_digits-20260101-12-00")
_TINY = {"embed_dim": 48, "depth": 1, "num_heads": 3}
_PYTHON = """#!/usr/bin/env bash
if [[ "$1 $2" == "-m pip" ]]; then exit; fi
eval "set -- \\"\\$@\\" $ADDED"
exec {} "$@"
"""
_TIMM = f"""
import sys
from pathlib import Path
if sys.argv[sys.argv.index("--val-split") + 1]:  # the top-1 is wanted, not the speed
    run = Path(sys.argv[sys.argv.index("--output") + 1], "run")
    run.mkdir(parents=True)
    (run / "summary.csv").write_text("epoch,eval_top1\\n1,90\\n")
    sys.exit()
{TIMM}"""


class Workshop:
    """What all pages share: trained runs, weights in the cache of the Hub, programs that add flags.

    root: holds it, and a folder for each page.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.bin = root, root / "home", root / "venv/bin"
        self._make_programs()
        self._publish()
        (self.home / "pytorch-image-models").mkdir()
        (self.home / "pytorch-image-models/train.py").write_text(_TIMM)
        recipe, options = f"-cfg={ROOT / 'configs/vit_digits.yaml'}", ("-opts", "SAVE_FREQ=1", "VALIDATE_FREQ=1")
        self.run = self._start("runs", recipe, "-epochs=2", "-batch_size=256", *options)

    def environment(self, added: str = "") -> dict[str, str]:
        """added: flags for each Python program of the command."""
        own = {"HOME": str(self.home), "HF_HOME": str(self.home / "hub"), "HF_HUB_OFFLINE": "1", "ADDED": added}
        own["PYTHONPYCACHEPREFIX"] = str(self.root / "pycache")
        base = environment_of_user()
        return base | own | {"PATH": f"{self.bin}:{base['PATH']}"}

    def make_folder(self, page: Path, commands: Sequence[str]) -> Path:
        """A copy of the project, with the files that the page shows, and the names in its commands."""
        text, folder = "\n".join(commands), self.root / page.stem
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (path for path in ROOT.glob("[!.]*") if path.suffix in (".md", ".py", ".toml", ".txt", ".lock")):
            shutil.copy(file, folder)
        (folder / ".venv").symlink_to(self.bin.parent)
        for name, make in self._makers().items():
            if re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", text):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                make(folder / name)
        for name, content in re.findall(r"`(\w+\.(?:py|yaml))`:[^`]*```\w+\n(.*?)```", page.read_text(), re.S):
            (folder / name).write_text(content)
        return folder

    def _makers(self) -> dict[str, Callable[[Path], object]]:
        family = ROOT / "tests/fixtures/families/CaiT"
        return {
            **dict.fromkeys(_RUNS, lambda path: shutil.copytree(self.run, path)),
            "output/vit_digits-sweep-": self._copy_two,
            **dict.fromkeys(("flowers", "DIR", "DATA", "photos"), write_images),
            "CIFAR-10-images": lambda path: [write_images(path / split) for split in ("train", "test")],
            "Sign-Language-Digits-Dataset": lambda path: write_images(path / "Dataset", "abcd", 126),
            **dict.fromkeys(("TEST", "other_digits"), lambda path: write_images(path, "0123456789", 2)),
            **dict.fromkeys(("imagenet", "dataset/imagenet"), _write_imagenet),
            "dataset/imagenet-r": lambda path: write_images(path, ("n01443537", "n01484850")),
            "dataset/caltech256": lambda path: write_images(path, [f"{n:03d}.class" for n in range(1, 257)], 3),
            "imagenet-tar": write_shards,
            "cat.jpg": lambda path: path.write_bytes(jpeg(0)),
            "images.txt": lambda path: path.write_text("docs/digits/0.png\n"),
            "P/CaiT/configs/cait_xxs24_224.yaml": lambda path: shutil.copy(family / "model.yaml", path),
            "cait_xxs24_224": lambda path: shutil.copy(family / "weights.pdparams", f"{path}.pdparams"),
            "vit.pth": lambda path: torch.save(VisionTransformer(32, **_TINY).state_dict(), path),
            "weights.safetensors": lambda path: shutil.copy(self._file_of(_PUBLISHED[0]), path),
        }

    def _copy_two(self, path: Path) -> None:
        for number in range(2):
            shutil.copytree(self.run, path / str(number))

    def _make_programs(self) -> None:
        self.bin.mkdir(parents=True)
        programs = {"python": sys.executable, "python3": sys.executable, "pip": "true"}
        programs["torchrun"] = f"{sys.executable} -m torch.distributed.run"
        for name, command in programs.items():
            (self.bin / name).write_text(_PYTHON.format(command))
            (self.bin / name).chmod(0o755)
        (self.bin / "activate").touch()
        files = ("requirements.txt", "requirements-export.txt", "requirements-dev.txt")
        (self.bin.parent / ".installed").write_text("".join((ROOT / file).read_text() for file in files))

    def _file_of(self, name: str) -> Path:
        repository = timm.get_pretrained_cfg(name).hf_hub_id.replace("/", "--")
        return self.home / "hub/hub" / f"models--{repository}/snapshots/1/model.safetensors"

    def _publish(self) -> None:
        """Writes random weights where the Hub's client keeps its downloads."""
        for name in _PUBLISHED:
            file = self._file_of(name)
            file.parent.mkdir(parents=True)
            (file.parents[2] / "refs").mkdir()
            (file.parents[2] / "refs/main").write_text("1")
            save_file(timm.create_model(name).state_dict(), file, metadata={"format": "pt"})

    def _start(self, output: str, *flags: str) -> Path:
        """Returns the folder of the run."""
        command = [sys.executable, str(ROOT / "main_single_gpu.py"), f"-output={self.root / output}", *flags]
        subprocess.run(command, env=self.environment(), stdout=subprocess.DEVNULL, check=True)
        return next((self.root / output).iterdir())


def write_images(folder: Path, classes: Sequence[str] = ("cat", "dog"), count: int = 20) -> None:
    """A folder per class, `train.csv`, `test.csv` of ids as Kaggle's, and `groups.csv` beside the folder."""
    table, groups = ["image_path,target,id,breed,patient"], ["path,group"]
    for name, number in product(classes, range(count)):
        file = f"{name}/p{number // 3:02d}_{number:03d}.jpg"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(jpeg(number))
        table.append(f"{file},{name},{file},{name},{number // 3}")
        groups.append(f"{file},{number // 3}")
    if folder.name == "DIR":
        (folder / "train.csv").write_text("\n".join(table) + "\n")
        ids = (path.relative_to(folder).with_suffix("") for path in sorted(folder.glob("*/*.jpg")))
        (folder / "test.csv").write_text("\n".join(["id", *map(str, ids)]) + "\n")
        (folder.parent / "groups.csv").write_text("\n".join(groups) + "\n")


def _write_imagenet(folder: Path) -> None:
    for split in ("train", "val"):
        write_images(folder / split, count=8)
        lines = [f"{path.relative_to(folder)} {path.parent.name == 'dog':d}" for path in folder.glob(f"{split}/*/*")]
        (folder / f"{split}_list.txt").write_text("\n".join(sorted(lines)) + "\n")
