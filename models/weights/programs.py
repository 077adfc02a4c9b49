"""What other programs do without stating it in their files: their code fixes the preprocessing and the network."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from configs.yaml_io import Values

_IMAGENET = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
_OF_DEIT = _IMAGENET | {"interpolation": "bicubic", "crop_pct": 224 / 256}
_WHOLE = {"crop_pct": 1.0, "crop_mode": "squash"}
_NEEDED = {"arch", "epoch", "state_dict"}
_OF_EXAMPLE = _NEEDED | {"best_acc1", "best_prec1", "optimizer", "scheduler", "scaler"}
_OF_MOCO = {"model": "vit_small_patch16_224", "model_kwargs": {"num_heads": 12}}  # MoCo v3; DeiT's has 6 heads


OPEN_CLIP = "open_clip"  # begins the names of OpenCLIP's weights, and of the file beside them


def open_clip_arguments(config: Mapping[str, Any]) -> Values:
    """As `fixed_arguments`, of OpenCLIP's open_clip_config.json; empty for a file of another form."""
    with suppress(AttributeError, KeyError, TypeError):
        model = config["model_cfg"]
        vision = model["vision_cfg"]
        stated = {"interpolation": "bicubic", "resize_mode": "shortest"} | config["preprocess_cfg"]
        arguments = stated | {"img_size": vision["image_size"], "crop_pct": 1.0, "crop_mode": stated["resize_mode"]}
        is_vit = isinstance(vision.get("layers"), int)  # its own one, neither timm's nor a ResNet
        if is_vit and model.get("quick_gelu"):
            arguments["model_kwargs"] = {"act_layer": "quick_gelu"}
        return arguments
    return {}


def fixed_arguments(entries: Mapping[str, Any], options: Mapping[str, Any]) -> Values:
    """By the names of timm's arguments; empty for a program that is not known.

    entries: of the file. options: its `args`, with the sections of its `config`, which Swin's program writes.
    A program is recognized by the options that it alone writes; the first case that fits counts, as later programs
    write some of the same. Sources: the programs' own code.
    """
    match options:
        # BEiT and EVA, told to normalize as timm's model does
        case {"imagenet_default_mean_and_std": False}:
            return {}
        # torchvision's references
        case {"val_resize_size": int(side), "val_crop_size": int(shown)} if side > 0:
            return _IMAGENET | {"img_size": shown, "crop_pct": shown / side}
        # BEiT: large images are not cropped
        case {"rel_pos_bias": _, "crop_pct": None, "input_size": int(side)} if side >= 384:
            return _OF_DEIT | {"crop_pct": 1.0}
        # ConvNeXt: large images are resized to squares
        case {"nb_classes": _, "crop_pct": None, "input_size": int(side)} if side >= 384:
            return _OF_DEIT | _WHOLE
        # MAE's fine-tuning, which chooses the pooling
        case {"nb_classes": _, "global_pool": bool(is_average), "input_size": int(side)}:
            crop = {"crop_pct": 1.0} if side > 224 else {}
            return _OF_DEIT | {"gp": "avg" if is_average else None} | crop
        # DeiT and others of its family; DINO and iBOT; MAE's pre-training
        case {"nb_classes": _} | {"teacher_temp": _} | {"norm_pix_loss": _}:
            return _OF_DEIT
        # Swin
        case {"DATA": {"IMG_SIZE": size, "INTERPOLATION": method}, "TEST": {"CROP": is_cropped}}:
            return _OF_DEIT | {"img_size": size, "interpolation": method} | ({} if is_cropped else _WHOLE)
    # PyTorch's example for ImageNet and MoCo, by the entries of the file; others have their own preprocessing
    if not _NEEDED <= entries.keys() <= _OF_EXAMPLE:
        return {}
    is_of_moco = entries["arch"] == "vit_small" and _has_sines(entries["state_dict"])
    return _OF_DEIT | {"interpolation": "bilinear"} | (_OF_MOCO if is_of_moco else {})


def _has_sines(state: Any) -> bool:
    """Whether the position of the class token is 0, as among the sines of MoCo v3; learned positions are not."""
    with suppress(Exception):  # any content
        positions = next(one for name, one in state.items() if name.endswith("pos_embed"))
        return not any(positions.storage.data[: positions.shape[-1]])
    return False
