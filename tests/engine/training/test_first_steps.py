"""Before the first step of a training: counts of images, passes and modules. Beside the first steps: bad images."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY_VIT, digits_flags, environment, noise_folder, only_run, train
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from datasets.sources.samples import EncodedImages
from engine.training import trainer
from utils.errors import UserError

FOLDER = ["-dataset=folder", "-batch_size=4", "-image_size=32"]


def jpegs(root: Path) -> Path:
    noise_folder(root, train=32, val=8, shape=(40, 50, 3))
    for path in root.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"), quality=90)
        path.unlink()
    return root


@pytest.mark.parametrize("data", ["digits", "folder"])
def test_no_image_is_decoded_and_no_pass_is_made_before_the_first_step(data, tmp_path, cpu, monkeypatch):
    flags = digits_flags(tmp_path / "out")
    if data == "folder":
        flags = [f"-data_path={jpegs(tmp_path / 'data')}", *FOLDER, f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT]
    passes, decoded, before = [0], [0], []
    open_image, real_steps = EncodedImages.open, trainer.train_steps

    def opened(self, *arguments):
        decoded[0] += 1
        return open_image(self, *arguments)

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        passes[0] += isinstance(module, nn.LayerNorm)

    def steps(*arguments):
        before.append((decoded[0], passes[0]))
        return real_steps(*arguments)

    monkeypatch.setattr(EncodedImages, "open", opened)
    monkeypatch.setattr(trainer, "train_steps", steps)
    hook = register_module_forward_pre_hook(count)
    try:
        train([*flags, "TRAIN.MAX_STEPS=1", "DATA.NUM_WORKERS=0"], cpu)
    finally:
        hook.remove()
    assert before == [(0, 0)] and passes[0] > 0 and (decoded[0] > 0) == (data == "folder")


LOADED_LATE = (
    "boto3", "engine.profiling", "engine.report.charts", "engine.report.page", "jinja2", "mlflow",
    "obstore", "pandas", "pyarrow", "scipy", "sklearn", "tensorboard", "transformers", "wandb",
)  # fmt: skip
AT_FIRST_STEP = f"""
import sys
import main_single_gpu
from engine.training import trainer
real_steps = trainer.train_steps

def steps(*arguments):
    print("loaded:", *set({LOADED_LATE}) & set(sys.modules))
    return real_steps(*arguments)

trainer.train_steps = steps
main_single_gpu.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_plain_run_imports_no_optional_package_before_its_first_step(tmp_path):
    flags = [f"-data_path={jpegs(tmp_path / 'data')}", *FOLDER, f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT]
    command = [sys.executable, "-c", AT_FIRST_STEP, *flags, "DATA.NUM_WORKERS=0", "TRAIN.MAX_STEPS=1"]
    output = subprocess.run(command, cwd=ROOT, env=environment(""), stdout=subprocess.PIPE, text=True, check=True)
    assert "loaded:" in output.stdout.splitlines()


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_validation_images_end_a_run_before_its_first_validation(workers, tmp_path, cpu, monkeypatch):
    """With a worker and a second core, while the first epoch runs; else before the evaluation."""
    monkeypatch.setattr("engine.training.first_steps.usable_cores", lambda: {0, 1})
    data = noise_folder(tmp_path / "data", train=64, val=6, shape=(40, 50, 3))
    for name in ("class0/2.png", "class1/5.png"):
        path = data / "val" / name
        content = path.read_bytes()
        path.write_bytes(content[:2000] + bytes(400) + content[2400:])
    flags = [f"-data_path={data}", *FOLDER, f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT, "TRAIN.NUM_EPOCHS=400"]
    freq = "VALIDATE_FREQ=1" if workers == 0 else "VALIDATE_FREQ=400"
    with pytest.raises(UserError, match="2 images cannot be read"):
        train([*flags, f"DATA.NUM_WORKERS={workers}", freq], cpu)
    assert "Validation" not in (only_run(tmp_path / "out") / "log.txt").read_text()
