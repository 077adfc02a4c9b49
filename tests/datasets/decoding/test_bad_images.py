"""`ON_BAD_IMAGE: skip`: unreadable images are listed, and count neither in the loss nor in accuracy."""

import re
from pathlib import Path
from unittest.mock import Mock

import torch
from conftest import (
    GREY,
    TINY_VIT,
    assert_same_run,
    assert_same_state,
    cli,
    config_for,
    each_row,
    eval_loader_for,
    noise_folder,
    only_run,
    read_result,
    refused,
    samples_for,
    session_for,
    train,
    train_batches_for,
)
from PIL import Image
from pytest import approx, fixture, raises

from configs.command_line import parse_command_line
from datasets.batch import PADDING
from datasets.decoding.images import BadImage
from engine.commands.run import run
from engine.run.record import read_run
from engine.training.step import forward_backward
from utils.tables import read_csv_rows

BAD = {"class0/4.png": b"", "class1/11.png": b"<html>404</html>", "class0/30.png": b"\x89PNG\r\n\x1a\n and no more"}


@fixture
def image_folder(tmp_path) -> Path:
    """40 small training images, three of them unreadable, and seven validation images, one of them unreadable."""
    root = noise_folder(tmp_path / "image_folder", 40, 7, (20, 24))
    for split, bad in (("train", BAD), ("val", {"class1/3.png": b"?"})):
        for name, content in bad.items():
            (root / split / name).write_bytes(content)
    return root


def argv_for(image_folder: Path, output: Path, *options: str) -> list[str]:
    flags = cli(
        f"-dataset=folder -data_path={image_folder} -batch_size=4 -accum_iter=2 -num_workers=0 -output={output}"
    )
    chance = cli("DATA.NUM_WORKERS=0 TRAIN.MIXUP_ALPHA=0.8 MODEL.DROPOUT=0.1 DATA.AFFINE_DEGREES=9 TRAIN.SMOOTHING=0.1")
    return [*flags, "-opts", *TINY_VIT, *GREY, *chance, "DATA.ON_BAD_IMAGE=skip", *options]


def assert_lists_each_once(folder: Path):
    listed = read_csv_rows(folder / "bad_images_0.csv")
    assert sorted(Path(row["path"]).name for row in listed) == ["11.png", "3.png", "30.png", "4.png"]
    assert all(re.search("is (empty|a web page|not an image of)|cannot be decoded", row["reason"]) for row in listed)


def test_its_position_is_padding_and_the_other_images_are_unchanged(image_folder, tmp_path, cpu):
    config = config_for(*argv_for(image_folder, tmp_path))
    skipping, repaired = [], []
    for batches in (skipping, repaired):
        batches += train_batches_for(config, *samples_for(config, cpu, "train"), cpu)
        for name in BAD:
            Image.new("L", (20, 24), 99).save(image_folder / "train" / name)
    assert sum(len(batch.bad) for batch in skipping) == 2 * len(BAD)
    for one, other in zip(skipping, repaired, strict=True):
        assert not other.bad
        empty = one.targets == PADDING
        assert int(empty.sum()) == len(one.bad)
        other.targets[empty] = PADDING
        other.images[empty] = 0
        other.drawn["affine"][0][empty] = 0
        assert_same_state([*one[:2], one.drawn], [*other[:2], other.drawn])


def test_it_does_not_change_loss_and_gradient_and_is_not_mixed(image_folder, tmp_path, cpu):
    session = session_for(argv_for(image_folder, tmp_path, "MODEL.DROPOUT=0"), cpu)
    state = session.state
    model = session.state.precision.weights.compute
    state.transform.mixup = None  # must not be called
    batch = next(batch for batch in session.batches.iterate(0, 0, 1) if batch.bad)
    there = batch.targets != PADDING

    def results(batch):
        model.zero_grad()
        loss = forward_backward(state, batch, 0, 0, 1)[0].detach()
        return {"loss": loss} | {name: value.grad.clone() for name, value in model.named_parameters()}

    drawn = {"affine": (batch.drawn["affine"][0][there],)}
    without = batch._replace(images=batch.images[there], targets=batch.targets[there], drawn=drawn)
    noise = torch.where(there[:, None, None, None], batch.images, torch.randint_like(batch.images, 255))
    whole = results(batch)
    for other in (without, batch._replace(images=noise)):
        torch.testing.assert_close(results(other), whole, atol=1e-6, rtol=1e-5)


def test_a_run_counts_and_lists_bad_images_and_resumes_bit_for_bit(image_folder, tmp_path, cpu, capsys):
    folder = train(argv_for(image_folder, tmp_path / "out"), cpu)
    assert [row["skipped_images"] for row in read_csv_rows(folder / "metrics.csv")] == ["3", "3"]
    assert_lists_each_once(folder)
    printed = capsys.readouterr().out
    said = [
        f"Data: unreadable {images}"
        for images in ("training images are skipped: 3", "validation images are skipped: 1")
    ]
    assert [printed.count(text) for text in said] == [1, 1]
    assert sum(read_run(folder)["warnings"].get(f"{text}, see bad_images_*.csv", 0) for text in said) == 2

    argv = argv_for(image_folder, tmp_path / "stopped")
    stopped = train([*argv, "TRAIN.MAX_STEPS=3"], cpu)
    capsys.readouterr()
    resumed = train([f"-resume={stopped}", *argv], cpu)
    assert capsys.readouterr().out.count(said[1]) == 1
    assert_same_run(folder, resumed)
    assert_lists_each_once(resumed)

    (image_folder / "val" / "class1" / "3.png").unlink()  # the result of a data set without the bad image is the same
    argv = argv_for(image_folder, tmp_path / "out", f"MODEL.PRETRAINED={folder / 'best.pth'}", "EVAL=true")
    run(parse_command_line(argv), cpu)
    result = read_result(only_run(tmp_path / "out", "eval"))
    assert result["top1"] == read_result(folder)["top1"]
    assert result["loss"] == approx(read_result(folder)["loss"], abs=1e-6)


@each_row("""
split | words
train | no training image of epoch 1
val   | no image of the evaluation
""")
def test_only_bad_images_are_an_error(image_folder, tmp_path, cpu, split, words):
    for path in (image_folder / split).rglob("*.png"):
        path.write_bytes(b"")
    with refused(f"{words}.* can be read; bad_images_"):
        train(argv_for(image_folder, tmp_path / "out"), cpu)


def test_without_the_option_a_training_ends_at_the_first_one_and_names_it(image_folder, tmp_path, cpu):
    config = config_for(*argv_for(image_folder, tmp_path, "DATA.ON_BAD_IMAGE=error"))
    with raises(BadImage, match=rf"({'|'.join(BAD)}): .*ON_BAD_IMAGE=skip$"):
        list(train_batches_for(config, *samples_for(config, cpu, "train"), cpu))


def test_out_of_memory_is_not_a_bad_image(image_folder, tmp_path, cpu, monkeypatch):
    config = config_for(*argv_for(image_folder, tmp_path))
    (samples,) = samples_for(config, cpu, "val")
    monkeypatch.setattr("datasets.decoding.decode.open_with_pillow", Mock(side_effect=MemoryError))
    with refused(rf"out of host memory \({samples.name(0)}\); .*MAX_PIXELS"):
        next(iter(eval_loader_for(config, samples, cpu)))


def test_classes_without_a_readable_image_are_named(image_folder, tmp_path, cpu, capsys):
    """In a training and its evaluation: top-1 is of the other classes, and may be 100%."""
    lost = sorted(path.name for path in (image_folder / "val").iterdir())[-1]
    for path in (image_folder / "val" / lost).iterdir():
        path.write_bytes(b"")
    folder = train(argv_for(image_folder, tmp_path / "out"), cpu)
    warning = f"Figures leave out '{lost}': no validation image can be read"
    assert capsys.readouterr().out.count(warning) == 1
    run(parse_command_line(["-eval", f"-resume={folder}", f"-output={tmp_path}"]), cpu)
    assert warning in capsys.readouterr().out
