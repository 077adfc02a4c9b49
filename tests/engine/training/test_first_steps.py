"""Before the first step of a training: counts of images, passes and modules. Beside the first steps: bad images, and
`train_batch.png`, which shows the images and targets of a step, and changes nothing in it."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import torch
from conftest import (
    ROOT,
    TINY_VIT,
    assert_same_state,
    cli,
    digits_flags,
    environment,
    noise_folder,
    only_run,
    slow,
    states,
    train,
)
from PIL import Image
from pytest import mark
from torch import Tensor, nn

from datasets.sources import checks
from datasets.sources.samples import EncodedImages
from engine.progress import Observer
from engine.training import trainer
from engine.training.train_batch import TrainBatch, target_text

FOLDER = cli("-dataset=folder -batch_size=4 -image_size=32")


def jpegs(root: Path) -> Path:
    noise_folder(root, train=32, val=8, shape=(40, 50, 3))
    for path in root.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"), quality=90)
        path.unlink()
    return root


@mark.parametrize("data", ["digits", "folder"])
def test_no_image_is_decoded_and_no_pass_is_made_before_the_first_step(data, tmp_path, monkeypatch):
    flags = digits_flags(tmp_path / "out")
    if data == "folder":
        flags = [f"-data_path={jpegs(tmp_path / 'data')}", *FOLDER, f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT]
    decodes = create_autospec(EncodedImages.open, side_effect=EncodedImages.open)
    passes = create_autospec(nn.Linear.forward, side_effect=nn.Linear.forward)
    before = []
    real_steps = trainer.train_steps

    def steps(*arguments):
        before.append((decodes.called, passes.called))
        return real_steps(*arguments)

    monkeypatch.setattr(EncodedImages, "open", decodes)
    monkeypatch.setattr(nn.Linear, "forward", passes)
    monkeypatch.setattr(trainer, "train_steps", steps)
    train([*flags, "TRAIN.MAX_STEPS=1", "DATA.NUM_WORKERS=0"])
    assert before == [(False, False)]
    assert passes.called
    assert decodes.called == (data == "folder")


def test_a_resumed_run_looks_at_no_file_of_the_same_images(tmp_path, monkeypatch):
    opened = []
    look = checks.open_descriptor
    monkeypatch.setattr(checks, "open_descriptor", lambda path: opened.append(path) or look(path))
    data = jpegs(tmp_path / "data")
    flags = [f"-data_path={data}", *FOLDER, f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT, "DATA.NUM_WORKERS=0"]

    def files_opened(steps, *more):
        opened.clear()
        train([*more, *flags, f"TRAIN.MAX_STEPS={steps}"])
        return len({*opened})

    assert files_opened(1) == 40
    resume = f"-resume={only_run(tmp_path / 'out')}"
    assert files_opened(2, resume) == 0
    image = next(data.rglob("val/**/*.jpg"))
    image.with_stem("more").write_bytes(image.read_bytes())
    assert files_opened(3, resume) == 41


LOADED_LATE = cli("""
boto3 engine.profiling engine.report.charts engine.report.page jinja2 mlflow obstore pandas pyarrow scipy sklearn
sympy tensorboard torch._dynamo.config torch._inductor torch.distributed.fsdp torch.distributed.tensor transformers
triton wandb
""")
UNUSED = cli("""
boto3 botocore fsspec mlflow pandas pyarrow scipy sklearn sympy trackio transformers triton wandb
""")  # up to the end
AT_FIRST_LOSS = f"""
import atexit, gc, sys
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 0))
atexit.register(lambda: print(" ".join(["unused:", *set({UNUSED}) & set(sys.modules)])))
import main_single_gpu

class Screen:
    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        if "Loss: " in text:
            self.stream.write(" ".join(["loaded:", *set({LOADED_LATE}) & set(sys.modules), "\\n"]))
        return self.stream.write(text)

sys.stdout = Screen(sys.stdout)
main_single_gpu.main(sys.argv[1:])
"""


@mark.slow
def test_a_plain_run_imports_no_package_that_it_can_do_without_before_its_first_loss(tmp_path):
    """Nor does an evaluation, whose line with the loss follows its last batch. At exit Python collects no modules."""
    data = jpegs(tmp_path / "data")
    out = tmp_path / "out"
    flags = [f"-data_path={data}", *FOLDER, "-opts", *TINY_VIT, "DATA.NUM_WORKERS=0"]

    def lines(*more):
        command = [sys.executable, "-c", AT_FIRST_LOSS, *more, *flags]
        run = subprocess.run(command, cwd=ROOT, env=environment(""), stdout=subprocess.PIPE, text=True, check=True)
        return [line.strip() for line in run.stdout.splitlines() if line.startswith(("loaded:", "unused:", "frozen:"))]

    flags.append("TRAIN.MAX_STEPS=1")
    assert lines(f"-output={out / 'train'}")[:2] == ["loaded:", "unused:"]
    flags.pop()
    weights = only_run(out / "train") / "last.pth"
    assert lines("-eval", f"-pretrained={weights}", f"-output={out / 'eval'}") == ["loaded:", "unused:", "frozen: True"]


AUGMENTED = cli("TRAIN.MIXUP_ALPHA=0.8 TRAIN.CUTMIX_ALPHA=1.0 DATA.AFFINE_DEGREES=20 TRAIN.RANDOM_ERASE_PROB=0.5")


def picture(folder) -> np.ndarray:
    return np.array(Image.open(folder / "details/train_batch.png"))


def test_training_is_bit_equal_without_it_and_a_resumed_run_keeps_it(digits_argv, tmp_path, monkeypatch):
    argv = [*digits_argv, *AUGMENTED]
    folder = train([*argv, "TRAIN.MAX_STEPS=3"])
    before = picture(folder)
    train([f"-resume={folder}", *argv, "TRAIN.MAX_STEPS=4"])
    assert np.array_equal(picture(folder), before)
    monkeypatch.setattr("engine.training.trainer.TrainBatch", lambda session, outputs: Observer())
    other = train([f"-output={tmp_path / 'without'}", *argv, "TRAIN.MAX_STEPS=4"])
    assert not (other / "details/train_batch.png").exists()
    assert_same_state(states(folder), states(other))


def test_the_picture_has_the_images_that_the_model_gets(digits_argv, monkeypatch):
    given = list[Tensor]()

    def keep(session, outputs):
        session.state.wrapped.register_forward_pre_hook(lambda model, inputs: given.append(inputs[0].clone()))
        return TrainBatch(session, outputs)

    monkeypatch.setattr("engine.training.trainer.TrainBatch", keep)
    colors = cli("DATA.IMAGE_CHANNELS=3 DATA.IMAGENET_MEAN=[0.4,0.5,0.6] DATA.IMAGENET_STD=[0.2,0.3,0.4]")
    grid = picture(train([*digits_argv, *AUGMENTED, *colors, "TRAIN.MAX_STEPS=1"])).astype(int)
    scale = torch.tensor([[0.4, 0.5, 0.6], [0.2, 0.3, 0.4]]).view(2, 3, 1, 1)
    values = (255 * (given[0] * scale[1] + scale[0])).clamp(0, 255).permute(0, 2, 3, 1).numpy()
    for number, image in enumerate(values[:16]):  # of 8 x 8 pixels, enlarged; two lines of text below each
        row, column = divmod(number, 4)
        shown = grid[16 + 196 * row :, 164 * column :][:160, :160]
        assert abs(shown - image.repeat(20, 0).repeat(20, 1)).max() <= 1


@mark.parametrize("epochs", [slow(1), 2])
def test_a_loss_at_chance_is_said_once(epochs, digits_argv, capsys):
    options = cli(f"TRAIN.BASE_LR=3 TRAIN.WARMUP_EPOCHS=0 TRAIN.NUM_EPOCHS={epochs} VALIDATE_FREQ=2")
    train([*digits_argv, *options, f"DATA.BATCH_SIZE={4 * epochs}"])
    assert capsys.readouterr().out.count("a guess of the class has") == 1


def test_a_picture_has_names_without_accents_in_place_of_numbers():
    """Pillow's font has only ASCII; who sorts Hüte and Öl read "class 0"."""
    names = ["Hüte", "Öl & Straße", "Łódź, smørrebrød", "帽子"]
    texts = [target_text(torch.tensor(label), names) for label in range(4)]
    assert texts == ["Hute", "Ol & Strasse", "Lodz, smorrebrod", "class 3"]
