"""torchvision's JPEG decoder, loaded without the package.

Importing torchvision takes as long as importing torch, and every run would wait for its workers twice as long.
"""

import importlib.machinery
import importlib.util
from pathlib import Path

import torch

_AS_STORED = 0  # torchvision's ImageReadMode.UNCHANGED: gray stays gray


def decode_jpeg(data: torch.Tensor) -> torch.Tensor:
    """The bytes of a JPEG, torch.uint8 (bytes,), as torch.uint8 (C, H, W); ignores the EXIF orientation.

    Raises:
        RuntimeError: the decoder refuses the file, or this torchvision has no decoder.
    """
    if not _HAS_DECODER:
        raise RuntimeError("torchvision has no JPEG decoder")
    return torch.ops.image.decode_jpeg(data, _AS_STORED)


def _load() -> bool:
    """Loads the library: `image_stable.so`, or `image.so` of earlier versions; False if there is none that works."""
    package = importlib.util.find_spec("torchvision")
    assert package and package.origin  # torchvision is a requirement
    loader = importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES
    finder = importlib.machinery.FileFinder(str(Path(package.origin).parent), loader)
    library = finder.find_spec("image_stable") or finder.find_spec("image")
    if library is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        return False
    return hasattr(torch.ops.image, "decode_jpeg")


_HAS_DECODER = _load()
