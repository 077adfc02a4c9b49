"""Runs the models of this folder on its reference images, and measures their time: ends with 0, or with 1 if a
difference is above its limit. Needs numpy, pillow and onnxruntime.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FOLDER = Path(__file__).parent
MODEL = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
RUNS = 200


def open_image(path: Path) -> np.ndarray:
    """uint8 (H, W, C), upright; gray of 16 bits is scaled by `grey_range`."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I"):
        low, high = MODEL["grey_range"]
        levels = np.rint((np.asarray(image, np.float32) - low) * 255 / (high - low))
        image = Image.fromarray(levels.clip(0, 255).astype(np.uint8))
    pixels = np.asarray(image.convert("L" if len(MODEL["level"]) == 1 else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def main() -> int:
    files = ("model.onnx", "model-batch.onnx")
    one, batches = (onnxruntime.InferenceSession(FOLDER / file, providers=["CPUExecutionProvider"]) for file in files)
    expected = np.load(FOLDER / "reference/reference.npz", allow_pickle=False)
    images = [{"image": open_image(FOLDER / "reference" / name)} for name in expected["names"]]
    found = [one.run(["images", "decided"], image) for image in images]
    pixels, decided = map(np.concatenate, zip(*found, strict=True))
    (logits,) = batches.run(["logits"], {"images": expected["images"]})
    levels = np.abs(pixels - expected["images"]) / MODEL["level"]
    figures = {
        "largest difference of a logit of model-batch.onnx": (np.abs(logits - expected["logits"]).max(), 1e-3),
        "share of the pixels of model.onnx that differ": ((levels > 0.5).mean(), 0.05),
        "largest difference of a pixel, of 255": (levels.max(), 2.5),
        "images with another decision": ((decided != expected["decided"]).any(1).sum(), 0),
    }
    for name, (value, limit) in figures.items():
        print(f"{name}: {value:.4g} (limit {limit})")
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        one.run(["decided"], images[0])
        seconds.append(time.perf_counter() - started)
    middle, slow = np.percentile(seconds, (50, 99)) * 1000
    print(f"milliseconds of a batch of 1 on this CPU: median {middle:.2f}, 99th percentile {slow:.2f} of {RUNS}")
    return int(not all(value <= limit for value, limit in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
