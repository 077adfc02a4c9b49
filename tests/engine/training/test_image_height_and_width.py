"""DATA.IMAGE_SIZE [height, width]: its forms, and a run, its page, its maps and its export."""

import pytest
import timm
import torch
from conftest import train

from configs.command_line import parse_command_line
from engine.commands.run import run
from engine.run.record import read_run
from scripts import export
from tests.datasets.photo import PHOTO


@pytest.mark.parametrize("argv", [
    ["-image_size=96,32"], ["-opts", "DATA.IMAGE_SIZE=[96, 32]"], ["-opts", "DATA.IMAGE_SIZE=(96, 32)"],
])  # fmt: skip
def test_the_forms_of_a_size(argv):
    assert parse_command_line(argv).config.data.input_size == (96, 32)
    square = parse_command_line([word.replace("96", "32") for word in argv]).config.data
    assert square.image_size == 32 and square.input_size == (32, 32)


def test_a_run_of_tall_images(tmp_path, cpu):
    """With all operations that draw boxes; its checkpoint and its export give the logits of its model."""
    for index in range(12):
        file = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        PHOTO.rotate(index).save(file)
    size = ["-image_size=48,16", "-dataset=folder", f"-data_path={tmp_path / 'data'}", f"-output={tmp_path}"]
    model = ["MODEL.PATCH_SIZE=8", "MODEL.EMBED_DIM=16", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "TRAIN.NUM_EPOCHS=2"]
    boxes = ["TRAIN.CUTMIX_MINMAX=[0.2,0.8]", "TRAIN.MIXUP_ALPHA=0.8", "TRAIN.RANDOM_ERASE_PROB=1.0"]
    more = ["DATA.AFFINE_DEGREES=9.0", "TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1", "DATA.VAL_FRACTION=0.3"]
    folder = train([*size, "-batch_size=4", "-num_workers=0", "-opts", *model, *boxes, *more], cpu, pictures=True)
    record = read_run(folder)
    assert record["facts"]["Preprocessing"]["image_size"] == record["preprocessing"]["image_size"] == [48, 16]
    assert "48 x 16 pixels" in (folder / "report.html").read_text()

    run(
        parse_command_line(
            ["-predict", str(tmp_path / "data/a"), f"-resume={folder}", "-explain", f"-output={tmp_path}/p"]
        ),
        cpu,
    )
    assert len(list((tmp_path / "p" / "explanations").iterdir())) == 6
    export.main([str(folder), "-format", "hf", f"-output={tmp_path / 'hf'}"])
    theirs = timm.create_model(f"local-dir:{tmp_path / 'hf'}", pretrained=True).eval()
    assert theirs.pretrained_cfg["input_size"] == (3, 48, 16) and theirs.patch_embed.grid_size == (6, 2)
    assert theirs(torch.zeros(1, 3, 48, 16)).shape == (1, 2)
