"""A photograph for the tests of decoding and crops."""

import io

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from datasets.decoding.decode import open_image

PHOTO = Image.fromarray(load_sample_images().images[0]).crop((150, 100, 411, 299))  # 261 x 199: no multiple of 8


def as_tensor(image: Image.Image) -> torch.Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def decode_image(data: bytes, channels: int, name: str = "x") -> torch.Tensor:
    return open_image(data, channels, lambda: name).pixels


def encode(image: Image.Image, kind: str, **options) -> bytes:
    image.save(stream := io.BytesIO(), kind, **options)
    return stream.getvalue()
