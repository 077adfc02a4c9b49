"""`train_batch.png` shows the images and targets of the step, and changes nothing in it."""

from types import SimpleNamespace

import numpy as np
import torch
from conftest import assert_same_state, session_for, states, train
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from datasets.transforms.device import TrainTransform
from engine.progress import EpochProgress, MetricSums, Observer
from engine.training.first_steps import TrainBatch
from utils.seeding import derive_seed, seed_device

AUGMENTED = [
    "TRAIN.MIXUP_ALPHA=0.8", "TRAIN.CUTMIX_ALPHA=1.0", "DATA.AFFINE_DEGREES=20",
    "TRAIN.RANDOM_ERASE_PROB=0.5",
]  # fmt: skip
RGB = ["DATA.IMAGE_CHANNELS=3", "DATA.IMAGENET_MEAN=[0.4,0.5,0.6]", "DATA.IMAGENET_STD=[0.2,0.3,0.4]"]


def picture(folder) -> np.ndarray:
    return np.array(Image.open(folder / "details/train_batch.png"))


def expected(argv, step: int, cpu) -> np.ndarray:
    """The first 16 images and targets of a step of the first epoch, computed, enlarged and labeled again."""
    session = session_for(argv, cpu)
    config, batch = session.plan.config, next(session.batches.iterate(0, step, 1))
    data = config.data
    seed_device(derive_seed(config.seed, "step", step, 0, 0), cpu.device)
    images, targets = TrainTransform(data, config.train, config.model.num_logits)(batch)
    cells = []
    for image, target in zip(images[:16].permute(0, 2, 3, 1).double().numpy(), targets[:16].tolist(), strict=True):
        values = 255 * (image * np.array(data.imagenet_std) + np.array(data.imagenet_mean))
        pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8).repeat(20, 0).repeat(20, 1)
        text = Image.new("RGB", (160, 36), "white")
        shares = sorted(((share, -label) for label, share in enumerate(target) if share), reverse=True)
        names = [f"{-label} {share:.2f}" if len(shares) > 1 else f"{-label}" for share, label in shares]
        ImageDraw.Draw(text).text((0, 0), "\n".join(names), "black", ImageFont.load_default(12))
        cells.append(np.concatenate([np.broadcast_to(pixels, (160, 160, 3)), np.array(text)]))
    return np.array(cells).astype(int)


def cells_of(grid: np.ndarray) -> np.ndarray:
    """The 16 images with their labels; the rest is the title and white gaps."""
    assert grid.shape == (16 + 4 * 196, 652, 3) and (grid[16:, 160:164] == 255).all()
    return np.array([grid[16 + 196 * r :, 164 * c :][:196, :160] for r in range(4) for c in range(4)]).astype(int)


def test_training_is_bit_equal_without_it_and_a_resumed_run_keeps_it(digits_argv, cpu, tmp_path, monkeypatch):
    argv = [*digits_argv, *AUGMENTED]
    folder = train([*argv, "TRAIN.MAX_STEPS=3"], cpu)
    before = picture(folder)
    train([f"-resume={folder}", *argv, "TRAIN.MAX_STEPS=4"], cpu)
    assert np.array_equal(picture(folder), before)
    (folder / "details/train_batch.png").unlink()
    train([f"-resume={folder}", *argv, "TRAIN.MAX_STEPS=6"], cpu)
    assert abs(cells_of(picture(folder)) - expected(argv, 4, cpu)).max() <= 1
    monkeypatch.setattr("engine.training.trainer.TrainBatch", lambda session, outputs: Observer())
    other = train([f"-output={tmp_path / 'without'}", *argv, "TRAIN.MAX_STEPS=6"], cpu)
    assert not (other / "details/train_batch.png").exists()
    assert_same_state(states(folder), states(other))


def test_nan_and_padding(tmp_path, cpu):
    """Of three positions one has no sample, and one an image with NaN and infinite values."""
    data = SimpleNamespace(imagenet_mean=(0.5,), imagenet_std=(0.5,))
    state = SimpleNamespace(context=cpu, transform=nn.Identity())
    plan = SimpleNamespace(config=SimpleNamespace(data=data), class_names=None)
    outputs = SimpleNamespace(folder=tmp_path, logger=None)
    (tmp_path / "details").mkdir()
    shown = TrainBatch(SimpleNamespace(plan=plan, state=state), outputs)
    images = torch.ones(3, 1, 2, 2)
    images[2, 0] = torch.tensor([[torch.nan, torch.inf], [-torch.inf, 0]])
    state.transform((images, torch.tensor([[1, 1], [-1, -1], [0, 0]], dtype=torch.int8)))
    images.zero_()
    shown.after_step(EpochProgress(0, 1, 0, MetricSums(cpu.device)))
    grid = picture(tmp_path)
    assert grid.shape[0] == 16 + 164 + 2 * 16 and (grid[16:176, :160] == 255).all()
    assert (grid[16:176:80, 164:324:80, 0] == [[0, 255], [0, 128]]).all() and (grid[16:, 328:] == 255).all()
