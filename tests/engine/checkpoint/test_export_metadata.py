"""Class names, preprocessing and options in the metadata of a .safetensors file, also of one that means harm."""

import json
from pathlib import Path
from unicodedata import normalize

import pytest
import safetensors.torch
import torch

from configs.command_line import parse_command_line
from configs.schema import Data
from engine.checkpoint.weights_record import describe_data, read_record, to_metadata
from utils.errors import UserError

OPTIONS = {"MODEL": {"TYPE": "vit", "EMBED_DIM": 48, "NUM_HEADS": 3, "NUM_CLASSES": 2}, "DATA": {"DATASET": "digits"}}
DATA = Data(IMAGE_SIZE=32, IMAGENET_MEAN=(0.1, 0.2, 0.0))


def write(folder: Path, names: list[str] | None = None, **changes: str) -> Path:
    metadata = to_metadata(describe_data(DATA, names or ["cat", "dog"]), OPTIONS) | changes
    file = folder / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, file, metadata)
    return file


def options_of(file: Path) -> dict:
    config = parse_command_line(["-eval", f"-pretrained={file}"]).config
    return {"embed_dim": config.model.embed_dim, "dataset": config.data.dataset, "resume": config.model.resume}


@pytest.mark.parametrize(
    "names", [["cat", "dog"], ["<script>", "=1+1"], ["a\nb", "\x1b[2J"], ["ü", "x" * 300], ["u\u0308"]]
)
def test_names_and_preprocessing_are_read_back(names, tmp_path):
    file = write(tmp_path, names)
    record = read_record(str(file))
    assert record.class_names == [normalize("NFC", name) for name in names] and record.num_classes == 2
    assert (record.data["CROP_PCT"], record.data["IMAGENET_MEAN"]) == (DATA.crop_pct, list(DATA.imagenet_mean))
    assert record.model == OPTIONS["MODEL"] and record.data.items() >= OPTIONS["DATA"].items()
    assert options_of(file) == {"embed_dim": 48, "dataset": "digits", "resume": None}


def test_options_come_from_flags_then_the_run_then_the_file(tmp_path):
    argv = ["-eval", f"-pretrained={write(tmp_path)}", "-dataset=folder", "-opts", "MODEL.EMBED_DIM=96"]
    config = parse_command_line(argv).config
    assert (config.model.embed_dim, config.model.num_heads, config.data.dataset) == (96, 3, "folder")
    (tmp_path / "config.yaml").write_text("MODEL: {EMBED_DIM: 24, NUM_HEADS: 3}\n")
    assert options_of(tmp_path / "a.safetensors")["embed_dim"] == 24


OTHER_FORMS = [
    {"thresholds": "[2.0, 0.5]"}, {"thresholds": '"abc"'},
    {"class_names": '"abc"'}, {"class_names": "[1, 2]"}, {"class_names": "[]"}, {"class_names": "{"},
    {"preprocessing": "[]"}, {"preprocessing": '{"image_size": 1e99}'}, {"preprocessing": "NaN"},
    {"options": "[" * 100_000}, {"options": "9" * 10_000}, {"options": '{"MODEL": [], "DATA": {}}'}, {"options": "{}"},
]  # fmt: skip


@pytest.mark.parametrize("changes", OTHER_FORMS)
def test_metadata_of_another_form_are_ignored(changes, tmp_path):
    file = write(tmp_path, None, **changes)
    assert read_record(str(file)) is None or "options" in changes
    if "options" in changes:
        assert options_of(file)["embed_dim"] == 768


WRONG_OPTIONS = {
    "MODEL.DEPTH": {"MODEL": {"DEPTH": -1}, "DATA": {}},
    "MODEL.": {"MODEL": {"\x1b[2J": 1}, "DATA": {}},
    "DATA.IMAGE_SIZE": {"MODEL": {}, "DATA": {"IMAGE_SIZE": "x" * 500}},
    "MODEL.TYPE": {"MODEL": {"TYPE": ["vit"]}, "DATA": {}},
}


@pytest.mark.parametrize(("key", "options"), WRONG_OPTIONS.items())
def test_wrong_options_are_refused_with_one_line(key, options, tmp_path):
    with pytest.raises(UserError) as caught:
        options_of(write(tmp_path, None, options=json.dumps(options)))
    message = str(caught.value)
    assert "a.safetensors" in message and key in message and "\n" not in message and len(message) < 600


def test_options_that_name_other_files_are_not_read(tmp_path):
    harmful = {"MODEL": {"RESUME": "/other", "PRETRAINED": "/other.pth"}, "DATA": {"NUM_WORKERS": 99}, "SAVE": "/other"}
    file = write(tmp_path, None, options=json.dumps(harmful))
    config = parse_command_line(["-eval", f"-pretrained={file}"]).config
    assert (config.model.resume, config.model.pretrained) == (None, str(file))
    assert config.data.num_workers is None and config.save != "/other"


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\xff" * 8 + b"{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_damaged_files_have_no_metadata(content, tmp_path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    assert read_record(str(file)) is None
    assert options_of(file)["embed_dim"] == 768
