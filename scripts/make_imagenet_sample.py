"""Creates a small data set of real photographs in ImageNet's layout, without a download.

    python scripts/make_imagenet_sample.py -output data/imagenet_sample

The images are random crops of the sample photographs in scikit-learn. A class is one quarter of one
photograph in one order of its color channels, so that a model can learn it from a few images. The lists are
PaddleViT's train_list.txt and val_list.txt, one path and label per line.
"""

import argparse
import itertools
import random
import sys
from pathlib import Path

from PIL import Image

QUARTERS = list(itertools.product((0, 0.5), (0, 0.5)))  # left, top, as shares of the photograph's sides
CHANNEL_ORDERS = list(itertools.permutations(range(3)))


def main() -> None:
    options = parse_arguments()
    scenes = class_scenes(options.classes)
    rng = random.Random(0)
    for split, count in (("train", options.train), ("val", options.val)):
        lines = []
        for number in range(count):
            label = number % options.classes
            parent = f"train/n{label:08d}/n{label:08d}" if split == "train" else "val/val"
            path = f"{parent}_{number:08d}.JPEG"
            (options.output / path).parent.mkdir(parents=True, exist_ok=True)
            image, share = scenes[label], rng.uniform(0.7, 1)  # of the sides of the image that a crop has
            left, top = (rng.uniform(0, side * (1 - share)) for side in image.size)
            box = (left, top, left + image.width * share, top + image.height * share)
            image.resize(options.size, Image.Resampling.BICUBIC, box=box).save(options.output / path, quality=90)
            lines.append(f"{path} {label}\n")
        (options.output / f"{split}_list.txt").write_text("".join(lines))


def parse_arguments() -> argparse.Namespace:
    def width_and_height(text: str) -> tuple[int, ...]:
        width, height = map(int, text.split("x"))
        return width, height

    parser = argparse.ArgumentParser(description="Creates a small data set in ImageNet's layout.", allow_abbrev=False)
    parser.add_argument("-output", type=Path, required=True, help="folder to create")
    parser.add_argument("-classes", type=int, default=10, help="number of classes (default: 10)")
    parser.add_argument("-train", type=int, default=200, help="number of training images (default: 200)")
    parser.add_argument("-val", type=int, default=51, help="number of validation images (default: 51)")
    parser.add_argument("-size", type=width_and_height, default="500x375", help="image size (default: 500x375)")
    options = parser.parse_args()
    if options.output.exists():
        parser.error(f"{options.output} exists: remove it or give another folder")
    if not 1 <= options.classes <= min(options.train, options.val):
        parser.error(f"{options.classes} classes need at least as many images in train and in val")
    return options


def class_scenes(count: int) -> list[Image.Image]:
    """One photograph part per class; the images of the class are crops of it."""
    try:
        from sklearn.datasets import load_sample_images
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; pip install scikit-learn")
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    combinations, scenes = list(itertools.product(CHANNEL_ORDERS, QUARTERS, photos)), []
    if count > len(combinations):
        sys.exit(f"error: {count} classes: the photographs provide {len(combinations)}")
    for order, quarter, photo in combinations[:count]:
        left, top = int(photo.width * quarter[0]), int(photo.height * quarter[1])
        bands = photo.crop((left, top, left + photo.width // 2, top + photo.height // 2)).split()
        scenes.append(Image.merge("RGB", [bands[index] for index in order]))
    return scenes


if __name__ == "__main__":
    main()
