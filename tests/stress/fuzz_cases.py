"""What the fuzzer tries: small valid files of each kind, seeded damage to them, and the reader that has to stand it.

A case is a function of (kind, seed, number). Any answer but success or a `UserError` is a finding.
"""

import functools
import hashlib
import io
import pickle
import random
import re
import shlex
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from timm.models import VisionTransformer

from configs.command_line import parse_command_line, to_yaml
from configs.schema import Data
from datasets.decoding.decode import open_image
from datasets.sources.cifar import read_batch
from datasets.sources.lists import read_list, read_table
from datasets.sources.packed import CHECKSUMS, COLUMNS, packed
from datasets.transforms.crops import center_crop
from engine.checkpoint.checkpoint import FORMAT, load_checkpoint
from models.weights.load import load_pretrained, read_weights
from scripts.pack_dataset import Packable, write_packed
from utils.atomic_file import atomic_save
from utils.seeding import derive_seed

ROOT = Path(__file__).parents[2]
_NUMBERS = (0, 1, -1, 127, 255, 65535, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1)
_WORDS = (
    "[", "]", "{", "}", ": ", "- ", "'", '"', "\\", "&a ", "*a", "!!python/name:os.system ", "\n", "\t", "#", "null",
    "-1", "1e999", ".nan", "0x" + "f" * 300, "9" * 5000, "\0", "é", "../", "/etc/passwd", "BASE: [a.yaml]", " ", ",",
    "true", "TRAIN", "DATA:", "%YAML 9", "---", "|", ">", "? ", "<<: ",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """`examples` are valid inputs; `read` takes one, and a folder to write in."""

    examples: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], None]
    repair: Callable[[bytes], bytes] = bytes  # checksums made right again, so that damage gets past them
    is_text: bool = False


def make_case(name: str, seed: int, number: int) -> bytes:
    kind, rng = KINDS[name], random.Random(derive_seed(name, seed, number))
    examples = _examples(name)
    data = rng.choice(examples)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _damaged(data, rng, examples, kind.is_text)
    return kind.repair(data) if rng.random() < 0.5 else data


@functools.cache
def _examples(name: str) -> list[bytes]:
    return KINDS[name].examples()


def _damaged(data: bytes, rng: random.Random, examples: list[bytes], is_text: bool) -> bytes:
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    # Headers are where sizes and types stand.
    place = rng.randrange(min(len(data), 256) if rng.random() < 0.5 else len(data)) if data else 0
    way = rng.choice(("flip", "byte", "number", "cut", "drop", "repeat", "splice", *(["word"] * 5 if is_text else [])))
    if way == "flip":
        return _overwritten(data, place, bytes([data[place] ^ 1 << rng.randrange(8)]) if data else b"")
    if way == "byte":
        return _overwritten(data, place, bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]))
    if way == "number":
        size, order = rng.choice((2, 4, 8)), rng.choice(("little", "big"))
        return _overwritten(data, place, (rng.choice(_NUMBERS) % 256**size).to_bytes(size, order))
    if way == "cut":
        return data[:end]
    if way == "drop":
        return data[:start] + data[min(end, start + 64) :]
    if way == "repeat":
        return data[:end] + data[start:end] * rng.choice((1, 2, 20)) + data[end:]
    if way == "splice":
        other = rng.choice(examples)
        return data[:start] + other[rng.randrange(len(other)) :]
    return data[:place] + rng.choice(_WORDS).encode() + data[place:]


def _overwritten(data: bytes, place: int, new: bytes) -> bytes:
    return (data[:place] + new + data[place + len(new) :])[: len(data)]


def _image_examples() -> list[bytes]:
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(256, size=(19, 24, 3), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(60000, size=(9, 9)).astype("u2"))
    grey, exif = colour.convert("L"), Image.Exif()
    exif[0x0112] = 6  # turned
    animation = {"save_all": True, "append_images": [colour.rotate(90)]}
    images = [
        (colour, "JPEG", {}), (grey, "JPEG", {}), (colour.convert("CMYK"), "JPEG", {}),
        (colour, "JPEG", {"progressive": True}), (colour, "JPEG", {"exif": exif}),
        (colour, "PNG", {}), (grey, "PNG", {}), (colour.convert("P"), "PNG", {"transparency": 3}),
        (colour.convert("RGBA"), "PNG", {}), (deep, "PNG", {}),
        (colour, "WEBP", {}), (colour, "WEBP", {"lossless": True}), (colour, "BMP", {}), (grey, "BMP", {}),
        (colour, "GIF", animation), (colour, "TIFF", {"compression": "tiff_lzw"}), (colour, "TIFF", {}),
        (grey.convert("F"), "TIFF", {}), (grey.convert("I"), "TIFF", {}), (colour, "PPM", {}), (grey, "PPM", {}),
    ]  # fmt: skip
    written = []
    for image, form, options in images:
        image.save(buffer := io.BytesIO(), form, **options)
        written.append(buffer.getvalue())
    return written


def _read_image(data: bytes, folder: Path) -> None:
    image = open_image(data, 3 if len(data) % 2 else 1, "image")
    height, width = image.size
    image.crop((height // 3, width // 3, height - height // 2, width - width // 2))
    center_crop(image.pixels, 16, 0.875)


def _with_png_checksums(data: bytes) -> bytes:
    if not data.startswith(b"\x89PNG"):
        return data
    result, place = data[:8], 8
    while place + 12 <= len(data):
        size = min(int.from_bytes(data[place : place + 4], "big"), len(data) - place - 12)
        chunk = data[place + 4 : place + 8 + size]
        result += data[place : place + 4] + chunk + struct.pack(">I", zlib.crc32(chunk))
        place += 12 + size
    return result


def _list_examples() -> list[bytes]:
    lines = "".join(f"a.png {label}\nb c.png\t{label}\n" for label in range(5))
    rows = "image_path,target\na.png,0\n" + "".join(f'"b,{label}.png",{label}\n' for label in range(5))
    return [lines.encode(), rows.encode(), rows.replace(",0", ",cat").replace(",1", ",dog").encode()]


def _read_list(data: bytes, folder: Path) -> None:
    (folder / "a.png").touch()
    (folder / "list").write_bytes(data)
    if data.startswith(b"image"):
        read_table(folder / "list", folder / "list")
    else:
        read_list(folder / "list")


def _config_examples() -> list[bytes]:
    """Flags in the first line, then the recipe."""
    recipes = [path.read_text() for path in sorted((ROOT / "configs").glob("vit_*.yaml"))]
    recipes = [re.sub(r"(?m)^BASE:.*", "BASE: [base.yaml]", text) for text in recipes]
    every_key = to_yaml(parse_command_line([]).config)
    flags = (
        "-amp -batch_size=4 -opts TRAIN.BASE_LR=1e-3 DATA.IMAGENET_MEAN=[0.5,0.5,0.5]",
        "-image_size 32 -num_workers=0 -output=a -opts MODEL.PATCH_SIZE=8 'TRAIN.OPTIMIZER.BETAS=(0.9, 0.98)'",
        "-dataset=digits --eval -pretrained=x -debug -dry_run -amp_dtype bfloat16",
    )
    texts = [f"{flags[number % 3]}\n{text}" for number, text in enumerate([every_key, every_key, *recipes])]
    return [text.encode() for text in texts]


def _read_config(data: bytes, folder: Path) -> None:
    flags, _, recipe = data.partition(b"\n")
    (folder / "a.yaml").write_bytes(recipe)
    (folder / "base.yaml").write_text("DATA: {IMAGE_SIZE: 64}\nTRAIN: {NUM_EPOCHS: 3, WARMUP_EPOCHS: 1}")
    text = flags.decode(errors="replace").replace("\0", " ")  # no command line holds a zero byte
    try:
        argv = [word for word in shlex.split(text) if word.lstrip("-") not in ("h", "help")]
    except ValueError:
        argv = text.split()
    try:
        config = parse_command_line([f"-cfg={folder / 'a.yaml'}", *argv]).config
    except SystemExit:  # -h
        return
    (folder / "saved.yaml").write_text(to_yaml(config))
    assert parse_command_line([f"-cfg={folder / 'saved.yaml'}"]).config == config


def _small_model() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=8, num_classes=3, embed_dim=12, depth=1, num_heads=3)


def _checkpoint_examples() -> list[bytes]:
    model = _small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()
    optimizer.step()
    state = {
        "format": FORMAT, "model": model.state_dict(), "ema": None, "optimizer": optimizer.state_dict(), "epoch": 3,
        "optimizer_name": "AdamW", "precision": {}, "done_steps": 0, "sums": torch.zeros(4),
        "geometry": {"samples": 40, "batch_size": 4, "accum_iter": 1, "seed": 0},
        "best": None, "train_seconds": 1.0, "images": 9, "choices": {"attention": "fused"}, "options": "SEED: 0",
    }  # fmt: skip
    return [_written(lambda path: atomic_save(path, state))]


def _read_checkpoint(data: bytes, folder: Path) -> None:
    (folder / "last.pth").write_bytes(data)
    load_checkpoint(folder / "last.pth")
    own_seal = data == _sealed_again(data)
    assert data in _examples("checkpoints") or own_seal, "damage was not detected"


def _sealed_again(data: bytes) -> bytes:
    """As `utils.atomic_file` would have sealed it: what a forger does."""
    seal_bytes = 2 + len("sha256=") + 64
    content, seal = data[:-seal_bytes], data[-seal_bytes:]
    return content + seal[:9] + hashlib.sha256(content + b"\0\0").hexdigest().encode()


def _pdparams_examples() -> list[bytes]:
    folder = ROOT / "tests" / "fixtures" / "paddlevit_small"
    state = {f"encoder.layers.0.mlp.fc{i}.weight": np.ones((4, 4), "f4") for i in (1, 2)}
    plain = [pickle.dumps(state, protocol=protocol) for protocol in (0, 2, 4)]
    return [*plain, *(path.read_bytes() for path in sorted(folder.glob("*.pdparams")))]


def _weights_examples() -> list[bytes]:
    """.pth in both of torch's formats, .safetensors, .npz"""
    state = _small_model().state_dict()
    arrays = {"embedding/kernel": np.ones((8, 8, 3, 12), "f4"), "cls": np.ones((1, 1, 12), "f4")}
    arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.ones((1, 12), "f4")
    return [
        _written(lambda path: torch.save(state, path)),
        _written(lambda path: torch.save({"model": state}, path, _use_new_zipfile_serialization=False)),
        safetensors.torch.save(state),
        _written(lambda path: np.savez(path, **arrays)),
        _written(lambda path: np.savez_compressed(path, **arrays)),
    ]


def _written(write: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.npz"
        write(path)
        return path.read_bytes()


def _read_pdparams(data: bytes, folder: Path) -> None:
    (folder / "vit.pdparams").write_bytes(data)
    read_weights(str(folder / "vit.pdparams"))


def _read_weights(data: bytes, folder: Path) -> None:
    ending = "npz" if b".npy" in data else "pth" if data[:1] in (b"P", b"\x80") else "safetensors"
    (folder / f"vit.{ending}").write_bytes(data)
    load_pretrained(_small_model(), str(folder / f"vit.{ending}"))


def _cifar_examples() -> list[bytes]:
    content = {
        b"data": np.zeros((2, 3072), "u1"),
        b"labels": [1, 2],
        "labels": [1, 2],
        "data": np.ones((2, 3072), "u1"),
    }
    return [pickle.dumps(content, protocol=protocol) for protocol in (0, 2, 4)]


def _read_cifar(data: bytes, folder: Path) -> None:
    (folder / "batch").write_bytes(data)
    read_batch(folder / "batch", "labels", 10)


_PACKED_FILES = ("val.blob", *(f"val.index/{name}" for name in (CHECKSUMS, *(f"{column}.npy" for column in COLUMNS))))
_LENGTH_BYTES = 4


def _packed_examples() -> list[bytes]:
    """The files of a packed split, each after its length."""
    images = _image_examples()
    encoded = [Packable(data, label % 3, f"ä/{label}.png") for label, data in enumerate(images[:1] + images[5:6])]
    pixels = [Packable(bytes(range(3 * side)), side % 3, f"{side}.png", (1, side, 3)) for side in (2, 5, 7)]
    written = []
    for packables in encoded, pixels:
        with tempfile.TemporaryDirectory() as folder:
            write_packed(Path(folder), "val", ["a", "b", "c"], packables)
            written.append(_joined([(Path(folder) / name).read_bytes() for name in _PACKED_FILES]))
    return written


def _joined(files: list[bytes]) -> bytes:
    return b"".join(len(content).to_bytes(_LENGTH_BYTES) + content for content in files)


def _separated(data: bytes) -> list[bytes]:
    files = []
    for _ in _PACKED_FILES:
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
        files.append(data[_LENGTH_BYTES:end])
        data = data[end:]
    return files


def _read_packed(data: bytes, folder: Path) -> None:
    (folder / "val.index").mkdir(exist_ok=True)
    for name, content in zip(_PACKED_FILES, _separated(data), strict=True):
        (folder / name).unlink(missing_ok=True)  # it may be mapped
        (folder / name).write_bytes(content)
    samples = packed(Data.model_validate({"DATA_PATH": str(folder)}), "val")
    for index in range(len(samples)):
        assert samples.open(index, 1 + 2 * (index % 2)).pixels.dtype == torch.uint8
        assert samples.class_names[samples.targets[index]]


def _with_packed_checksums(data: bytes) -> bytes:
    blob, _, *columns = _separated(data)
    lines = [
        f"{hashlib.sha256(content).hexdigest()}  {name}.npy\n" for name, content in zip(COLUMNS, columns, strict=True)
    ]
    return _joined([blob, "".join(lines).encode(), *columns])


KINDS = {
    "images": Kind(_image_examples, _read_image, _with_png_checksums),
    "lists": Kind(_list_examples, _read_list, is_text=True),
    "configs": Kind(_config_examples, _read_config, is_text=True),
    "checkpoints": Kind(_checkpoint_examples, _read_checkpoint, _sealed_again),
    "pdparams": Kind(_pdparams_examples, _read_pdparams),
    "weights": Kind(_weights_examples, _read_weights),
    "cifar": Kind(_cifar_examples, _read_cifar),
    "packed": Kind(_packed_examples, _read_packed, _with_packed_checksums),
}
