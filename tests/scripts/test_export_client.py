"""docs/export.md: the program of a client gives the probabilities of -predict."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.command_line import parse_command_line
from engine.commands.run import run
from scripts import export

pytest.importorskip("onnxruntime")

DOC = Path(__file__).parents[2] / "docs" / "export.md"
TOLERANCE = 0.001  # of a probability; the document states it
CLIENT = re.search(r"```python\n(.*?)```", DOC.read_text().partition("## Preprocessing in a client")[2], re.S)[1]


def write_images(folder: Path) -> None:
    """Smooth images of several sizes and modes, with their contrast over all values."""
    rng = np.random.default_rng(0)
    for number, (mode, size, suffix) in enumerate(
        [
            ("RGB", (100, 75), "png"), ("RGB", (16, 16), "png"), ("RGB", (9, 40), "bmp"), ("L", (300, 201), "png"),
            ("RGBA", (64, 50), "png"), ("P", (47, 47), "gif"), ("1", (33, 60), "png"), ("LA", (40, 41), "png"),
            ("CMYK", (80, 60), "jpg"), ("RGB", (640, 480), "jpg"), ("RGB", (90, 50), "rotated.jpg"),
        ]
    ):  # fmt: skip
        noise = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        image, exif = noise.resize(size, Image.Resampling.BICUBIC).convert(mode), Image.Exif()
        if suffix == "rotated.jpg":
            exif[0x0112] = 6
        image.save(folder / f"{number}.{suffix}", exif=exif)


def client_probabilities(program: str, images: list[Path]) -> np.ndarray:
    """Runs the program in the current folder for each image, as its photo.jpg: (N, classes)."""
    results = []
    for image in images:
        Path("photo.jpg").unlink(missing_ok=True)
        os.symlink(image, "photo.jpg")
        exec(program, names := {})
        results.append(names["probabilities"])
    return np.array([[result[str(digit)] for digit in range(10)] for result in results])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("IMAGE_CHANNELS=3", "CROP_PCT=0.8"), ("IMAGE_CHANNELS=1", "CROP_PCT=1.3", "INTERPOLATION=bilinear")]
)
def test_the_client_of_the_document_gives_the_probabilities_of_predict(
    options, trained_digits, tmp_path, monkeypatch, cpu
):
    channels = int(options[0][-1])
    mean, std = [0.3, 0.4, 0.5][:channels], [0.2, 0.3, 0.25][:channels]
    options = (*options, "IMAGE_SIZE=16", f"IMAGENET_MEAN={mean}", f"IMAGENET_STD={std}")
    trained = trained_digits(*(f"DATA.{option}" for option in options), "TRAIN.BASE_LR=1e-2")
    monkeypatch.chdir(tmp_path)
    for kind in ("onnx", "safetensors"):
        export.main([str(trained), "-format", kind, f"-output=best.{kind}", "-no_check", "-no_paths"])
    (folder := tmp_path / "photos").mkdir()
    write_images(folder)
    argv = ["-predict", "photos", "-pretrained=best.safetensors", "-top_k=10", "-json", "-output=."]
    run(parse_command_line(argv), cpu)
    rows = json.loads(Path("predictions.json").read_text())
    assert not any(row["error"] for row in rows)
    images = [Path(row["path"]).resolve() for row in rows]
    of_predict = [{one["class"]: one["probability"] for one in row["predictions"]} for row in rows]
    expected = np.array([[row[str(digit)] for digit in range(10)] for row in of_predict])
    difference = np.abs(client_probabilities(CLIENT, images) - expected).max()
    assert difference < TOLERANCE
