"""Faults in weights: damaged, unsuitable and hostile files."""

import io
import pickle
import zipfile

import numpy as np
import torch
from faults.runner import Fault, Provoke
from faults.scene import RunsCode, Scene, flipped, torch_bytes, truncated, with_last

_WEIGHTS = "model.safetensors"


def weights_faults() -> list[Fault]:
    def named(name: str, content: bytes | None = None) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            path = scene.folder / name if content is None else scene.write(name, content)
            return scene.digits(flags=(f"-pretrained={path}",))

        return provoke

    def edited(**changes: torch.Tensor | None) -> Provoke:
        return lambda scene: scene.digits(flags=(f"-pretrained={scene.edited_weights(**changes)}",))

    def other_head(scene: Scene) -> list[str]:
        weights = scene.edited_weights(head__weight=torch.ones(7, 16), head__bias=torch.ones(7))
        return scene.digits(flags=("-eval", f"-pretrained={weights}"))

    def on_hub(scene: Scene) -> list[str]:
        return scene.digits(flags=("-model=hf-hub:org/vit",))

    def saved_by_timm(config: bytes, **files: bytes) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            for file, content in {"config.json": config, **files}.items():
                folder = scene.write(f"hf/{file}", content).parent
            return scene.digits(flags=(f"-pretrained={folder}",))

        return provoke

    config = b'{"architecture": "test_vit"}'
    convnext = {"stem.0.weight": np.zeros((8, 3, 4, 4), np.float32)}
    table: dict[str, tuple[Provoke, str]] = {
        "missing": (named("none"), r"none: no such file, also with .pdparams"),
        "with an unknown file extension": (named("vit.onnx", b""), r"vit.onnx: unknown file extension"),
        "an HTML page": (named("vit.pdparams", b"<html></html>"), r"vit.pdparams: is damaged or not a .pdparams file"),
        "empty": (named("vit.safetensors", b""), r"vit.safetensors: is damaged or not a .safetensors file"),
        "cut short": (with_last("pretrained", truncated), r"last.pth: is damaged"),
        "with a bit flipped": (with_last("pretrained", flipped), r"last.pth: is damaged .*checksum"),
        "not finite": (edited(norm__bias=torch.full((16,), torch.nan)), r"NaN or infinite values: norm.bias"),
        "of another shape": (edited(norm__bias=torch.ones(17)), r"wrong shapes: norm.bias 17, not 16"),
        "incomplete": (edited(norm__bias=None), r"missing tensors: norm.bias"),
        "with tensors larger than the file": (edited(norm__bias=torch.ones(1).expand(10**12)), r"norm.bias is larger"),
        "of another family": (named("other.pdparams", pickle.dumps(convnext)), r"other.pdparams: .*stem.0.weight"),
        "with another head, in evaluation": (other_head, r"head: 7 classes in the file, 10 in the model"),
        "pdparams with code": (named("vit.pdparams", pickle.dumps(RunsCode())), r"refers to posix.system"),
        "pth with code": (named("vit.pth", torch_bytes({"a": RunsCode()})), r"refers to posix.system"),
        "a folder whose config.json is cut short": (saved_by_timm(config[:9]), r"hf/config.json: is damaged"),
        "a folder without weights": (saved_by_timm(config), r"hf: has config.json, but no model.safetensors or"),
        "a folder with damaged weights": (saved_by_timm(config, **{_WEIGHTS: b"{"}), f"hf/{_WEIGHTS}: is damaged"),
        "a ZIP bomb": (named("vit.npz", zip_bomb()), r"would unpack from \d+ to 200000000 bytes"),
    }
    faults = [Fault(f"weights: {name}", provoke, line) for name, (provoke, line) in table.items()]
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "none"}
    line = r"^http://127.0.0.1:9/org/vit/resolve/main/config.json: cannot be downloaded .*-model=local-dir:FOLDER"
    return [*faults, Fault("weights: an unreachable Hub", on_hub, line, environment=hub, can_fork=False)]


def zip_bomb() -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", bytes(200_000_000))
    return buffer.getvalue()
