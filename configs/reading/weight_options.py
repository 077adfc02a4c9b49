"""The options in the metadata of an exported .safetensors file: its model, and its data as an evaluation needs them."""

import json
import os
from typing import Any

from configs.reading.model_options import architecture
from configs.reading.option_layers import OptionLayers
from utils.file_formats.hf_folder import weight_file
from utils.file_formats.safetensors_metadata import read_metadata

OPTIONS_ENTRY = "options"  # of the metadata: JSON of the sections MODEL and DATA
# The place of the data, its split, and its preprocessing.
DATA_KEYS = (
    "DATASET", "DATA_PATH", "IMAGE_ROOT", "MULTI_LABEL", "VAL_FRACTION", "FOLDS", "FOLD", "SPLIT_SEED", "IMAGE_SIZE",
    "IMAGE_CHANNELS", "GREY_RANGE", "RESIZE", "CROP_PCT", "INTERPOLATION", "IMAGENET_MEAN", "IMAGENET_STD",
)  # fmt: skip


def options_to_export(options: dict[str, Any]) -> dict[str, Any]:
    """The part of the options of a run that travels with its weights; of plugins, the names and the hashes."""
    model = architecture(options["MODEL"]) | {"NUM_CLASSES": options["MODEL"].get("NUM_CLASSES")}
    data = {key: value for key, value in options["DATA"].items() if key in DATA_KEYS}
    plugins = [os.path.basename(entry) for entry in options.get("PLUGINS") or ()]
    return {"MODEL": model, "DATA": data} | ({"PLUGINS": plugins} if plugins else {})


def add_weight_options(layers: OptionLayers, weights: str) -> None:
    """Adds the options in the metadata of `weights`; nothing for a file of another program, or a damaged one."""
    weights = weight_file(weights)
    if not os.path.isfile(weights):
        return
    try:
        options = options_to_export(json.loads(read_metadata(weights)[OPTIONS_ENTRY]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return
    layers.add(options, f"{weights}: metadata")
