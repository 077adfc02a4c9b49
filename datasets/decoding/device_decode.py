"""JPEGs decoded on the device: on a GPU by nvJPEG, through torchvision.

Legend: K crops, S pixels on a side of each.
"""

import contextlib
import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode, decode_jpeg

from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import Picture, PlainJpeg, open_image, resize
from datasets.decoding.partial_jpeg import Box
from datasets.sources.samples import Samples
from datasets.transforms.host import TrainTransform
from utils.device import timed

HOST, DEVICE = "host", "device"
_TRIED_IMAGES, _ROUNDS = 32, 3


class EncodedCrops(NamedTuple):
    """Crops of a batch that the device is to decode: the JPEG files' bytes, one behind the other, and what of each."""

    data: torch.Tensor  # uint8 (bytes of all,)
    sizes: list[int]
    places: list[int]
    names: list[str]
    boxes: list[Box]
    flips: list[bool]

    def files(self) -> list[torch.Tensor]:
        return list(self.data.split(self.sizes))


class CropCollector:
    """Gathers what of a batch the device will decode."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.rows: list[tuple[int, str, Box, bool]] = []

    def add(self, place: int, picture: PlainJpeg, box: Box, flips: bool) -> None:
        self.files.append(picture.data)
        self.rows.append((place, picture.name, box, flips))

    def collected(self, allocate: Callable[[tuple[int, ...]], torch.Tensor]) -> EncodedCrops | None:
        """In memory that `allocate` gives for torch.uint8 of a shape."""
        if not self.files:
            return None
        sizes = [len(file) for file in self.files]
        data = allocate((sum(sizes),))
        for place, file in zip(data.split(sizes), self.files, strict=True):
            place.copy_(torch.frombuffer(bytearray(file), dtype=torch.uint8))
        return EncodedCrops(data, sizes, *map(list, zip(*self.rows, strict=True)))


def is_for_device(picture: Picture) -> bool:
    """Whether nvJPEG gives the colours that libjpeg does: it takes any three channels for YCbCr."""
    if not isinstance(picture, PlainJpeg) or picture.header.mode != "RGB" or not picture.has_end:
        return False
    components = [layer[0] for layer in picture.header.layer]
    return components == [1, 2, 3] and picture.header.info.get("adobe_transform", 1) == 1


def decode_crops(crops: EncodedCrops, size: int, device: torch.device) -> torch.Tensor:
    """-> torch.uint8 (K, 3, S, S) on the device: decoded, cropped, resampled (bicubic, antialiased) and flipped.

    Raises:
        RuntimeError: one of them, it is not said which, cannot be decoded.
    """
    if device.type == "cuda":
        # nvJPEG has a stream of its own, which does not wait for ours: what is queued there may still be read.
        torch.cuda.current_stream(device).synchronize()
    images = decode_jpeg(crops.files(), ImageReadMode.RGB, device)
    return torch.stack([
        _crop(image, box, flips, size) for image, box, flips in zip(images, crops.boxes, crops.flips, strict=True)
    ])  # fmt: skip


def _crop(image: torch.Tensor, box: Box, flips: bool, size: int) -> torch.Tensor:
    part = Picture(image).region(box)[None].to(torch.float32)  # on a GPU no other type is resampled
    part = interpolate(part, size=(size, size), mode="bicubic", antialias=True)[0]
    part = part.round_().clamp_(0, 255).to(torch.uint8)
    return part.flip(-1) if flips else part


class DecodeTrial:
    """Some crops of a data set, to measure how long each way to decode them takes: those that nvJPEG may have."""

    def __init__(self, samples: Samples, transform: TrainTransform) -> None:
        self.transform = transform
        collector = CropCollector()
        for index in range(0, len(samples), -(-len(samples) // _TRIED_IMAGES)):
            with contextlib.suppress(BadImage):
                picture = samples.open(index, transform.options.image_channels)
                if is_for_device(picture):
                    box, flips = transform.draw_crop(picture.size, transform.generator(0, index))
                    collector.add(0, picture, box, flips)
        self.crops = collector.collected(lambda shape: torch.empty(shape, dtype=torch.uint8))

    def file_bytes(self) -> int:
        """Of a typical image, to the next power of two: about the same size is alike. 0 where there is none."""
        return 2 ** round(math.log2(statistics.median(self.crops.sizes))) if self.crops else 0

    def device_can(self, device: torch.device) -> bool:
        """False where torchvision was built without nvJPEG."""
        try:
            if self.crops:
                self._decode_on_device(device)
            return True
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False

    def seconds(self, workers: int, device: torch.device) -> dict[str, float]:
        """Per image, at best: by so many workers on the host; on the device, infinite where it cannot."""
        if not self.crops or not self.device_can(device):
            return {HOST: 1.0, DEVICE: math.inf}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as a worker has
        host = min(timed(self._decode_on_host, torch.device("cpu")) for _ in range(_ROUNDS)) / workers
        torch.set_num_threads(threads)
        own = min(timed(lambda: self._decode_on_device(device), device) for _ in range(_ROUNDS))
        return {HOST: host / len(self.crops.sizes), DEVICE: own / len(self.crops.sizes)}

    def _decode_on_host(self) -> None:
        size = self.transform.options.image_size
        for file, name, box in zip(self.crops.files(), self.crops.names, self.crops.boxes, strict=True):
            resize(open_image(file.numpy().tobytes(), 3, name).region(box), size, size)

    def _decode_on_device(self, device: torch.device) -> None:
        decode_crops(self.crops, self.transform.options.image_size, device)
