"""The formats of an export, and the checks before the model is read. This file needs no torch."""

from pathlib import Path
from typing import NamedTuple

from utils.errors import UserError
from utils.file_formats.hf_folder import CONFIG, PREPROCESSOR, WEIGHTS

OPSET = 18
STEM_FILES = ("models/vit_stem.py", "scripts/exporting/modeling_vit_stem.py")  # of an export with a MODEL.STEM
HF_FILES = {CONFIG, PREPROCESSOR, WEIGHTS[0], "README.md", *(Path(file).name for file in STEM_FILES)}
WEB_FILES = {"index.html", "model.json", "model.onnx"}
FOLDERS = {"hf": HF_FILES, "web": WEB_FILES}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class Format(NamedTuple):
    """suffix: of the default output, which is named as the weights. title: for the user."""

    suffix: str
    title: str


FORMATS = {
    "safetensors": Format(".safetensors", "for -pretrained"),
    "hf": Format("-hf", "a folder for timm and transformers"),
    "onnx": Format(".onnx", f"opset {OPSET}, any batch size"),
    "web": Format("-web", "a page that runs the model in a browser: onnxruntime-web"),
    "torch_export": Format(".pt2", "torch.export, any batch size"),
}


def check_target(target: Path, kind: str, weights: Path) -> None:
    """Raises a UserError if `target` is anything but an earlier export of this kind.

    weights: the file to export, or the folder of its run.
    """
    if target.is_file() and target.resolve() == weights.resolve():
        raise UserError(f"-output {target}: is the file to export; give another path with -output")
    if kind in FOLDERS:
        others = {path.name for path in target.iterdir()} - FOLDERS[kind] if target.is_dir() else set()
        if others or (target.exists() and not target.is_dir()):
            raise UserError(f"-output {target}: is not an exported folder; give another path with -output")
    elif target.is_dir():
        raise UserError(f"-output {target}: is a folder; give the name of a file in it")
    elif target.suffix != FORMATS[kind].suffix:
        raise UserError(f"-output {target}: must end with {FORMATS[kind].suffix}; add it")
