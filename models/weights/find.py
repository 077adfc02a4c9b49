"""Where a weight file is. This file needs no torch, so that the scripts report a wrong path at once."""

import os
from pathlib import Path

from configs.schema.loss import WEIGHTS_EXTENSIONS
from utils.errors import Unavailable, UserError
from utils.file_formats.checkpoint_folder import SHARDS, is_checkpoint_folder
from utils.file_formats.hf_folder import weight_file

PADDLE = ".pdparams"


def find_weights(path: str) -> Path:
    """The weight file or the checkpoint folder at `path`, or at `path` with an extension added.

    .pdparams first, because PaddleViT's users omit it. Of a folder with config.json, and of `hf-hub:ORG/NAME`, the
    weights that timm saved.

    Raises:
        UserError: no such file; names the extensions that were tried. Or as `weight_file`.
    """
    path = weight_file(path)
    for candidate in (path, *(f"{path}{extension}" for extension in WEIGHTS_EXTENSIONS)):
        if os.path.isfile(candidate) or is_checkpoint_folder(candidate):
            return Path(candidate)
    if os.path.isdir(path):
        best = Path(path, "best.pth")
        file = next(filter(os.path.exists, (best.with_suffix(SHARDS), best, *Path(path).glob(f"*{PADDLE}"))), best)
        fix = f"give a file in it, such as {file}" + (f", or -resume={path}" if file.suffix != PADDLE else "")
        raise UserError(f"{path}: is a folder; {fix}")
    raise Unavailable(f"{path}: no such file, also with {', '.join(WEIGHTS_EXTENSIONS)} added; check the path")
