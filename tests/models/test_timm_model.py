"""timm's models by name: further arguments of the class, published weights, and weights of another image size."""

import pytest
import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from configs.reading.command_line import parse_command_line
from models.build import build_model
from utils.errors import Unavailable, UserError

TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2}
KINDS = {  # name, arguments, size of the weights, sizes of the model
    "class token": ("vit_small_patch16_224", TINY, 64, (32, 96)),
    "registers outside the grid": ("vit_small_patch14_reg4_dinov2", TINY, 56, (28, 70)),
    "RoPE": ("vit_small_patch16_dinov3", TINY, 64, (48, 96)),
    "RoPE and a position embedding": ("eva02_tiny_patch14_224", TINY, 56, (28, 84)),
    "PE": ("vit_pe_core_tiny_patch16_384", TINY, 64, (48, 80)),
    "tables": ("beit_base_patch16_224", TINY | {"init_values": 0.1}, 64, (48, 112)),
    "windows": (
        "swin_tiny_patch4_window7_224", {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4},
        64, (32, 96),
    ),
    "convolutions": ("test_resnet", {}, 64, (32, 96)),
}  # fmt: skip


def model_of(name: str, *argv: str, **kwargs) -> torch.nn.Module:
    text = ", ".join(f"{key}: {list(value) if isinstance(value, tuple) else value}" for key, value in kwargs.items())
    model = f"MODEL={{TYPE: timm, NAME: {name}, NUM_CLASSES: 3, KWARGS: {{{text}}}}}"
    config = parse_command_line([*argv, "-opts", model]).config
    return build_model(config.model, config.data, torch.device("cpu"))[0].eval()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_another_image_size_are_read_as_timm_reads_them(tmp_path, kind):
    name, arguments, before, sizes = KINDS[kind]
    source = timm.create_model(name, num_classes=3, **arguments, **({"img_size": before} if arguments else {}))
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth"), "num_classes": 3, "input_size": (3, before, before)}
    for size in sizes:
        model = model_of(name, f"-image_size={size}", f"-pretrained={tmp_path / 'weights.pth'}", **arguments)
        given = arguments | {"img_size": size} if arguments else {}
        timms = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=3, **given).eval()
        images = torch.randn(2, 3, size, size)
        assert all(torch.equal(value, timms.state_dict()[key]) for key, value in model.state_dict().items())
        assert torch.allclose(model(images), timms(images), atol=1e-5) and model(images).std() > 1e-4


def test_an_image_size_without_whole_patches_is_refused():
    with pytest.raises(UserError, match=r"DATA.IMAGE_SIZE 50"):
        model_of("vit_small_patch16_dinov3", "-image_size=50", **TINY)


def test_further_arguments_reach_the_class():
    model = model_of("test_vit", "-image_size=64", reg_tokens=4, qk_norm=True, patch_drop_rate=0.5, init_values=0.1)
    expected = timm.create_model(
        "test_vit", img_size=64, num_classes=3, reg_tokens=4, qk_norm=True, patch_drop_rate=0.5, init_values=0.1
    )
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in expected.state_dict().items()}
    assert model.patch_drop.prob == 0.5
    assert model_of("test_vit", "-image_size=64", dynamic_img_size=True)(torch.ones(1, 3, 96, 32)).shape == (1, 3)


@pytest.mark.parametrize(("name", "key", "words"), [
    ("test_vit", "reg_token", "did you mean reg_tokens"),
    ("deit_tiny_distilled_patch16_224", "init_value", "did you mean init_values"),  # of a class that it inherits from
    ("test_resnet", "stem_widht", "did you mean stem_width"),
    ("regnety_002", "stem_widht", "stem_widht"),  # its class has **kwargs
    ("test_vit", "out_indices", "no further argument"),  # timm's function takes it, and its class does not
    ("test_vit", "checkpoint_path", "no further argument"),
    ("test_vit", "img_size", "DATA.IMAGE_SIZE"),
    ("regnety_002", "num_classes", "MODEL.NUM_CLASSES"),
    ("test_vit", "drop_rate", "MODEL.DROPOUT"),
])  # fmt: skip
def test_a_wrong_argument_is_one_line(name, key, words):
    with pytest.raises(UserError, match=rf"(?s)^(?=.*{key})(?=.*{words})[^\n]*$"):
        model_of(name, **{key: 3})


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no network\nand more"), TimeoutError()])
def test_published_weights(tmp_path, monkeypatch, error):
    """The file that the Hub sends has timm's weights; without it the line names the file and a flag."""
    source = timm.create_model("test_vit")
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr("models.timm_model.download", lambda *arguments: tmp_path / "pytorch_model.bin")
    model = model_of("test_vit", "-pretrained=timm")
    assert torch.equal(model.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight)
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.file_exists", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(
        Unavailable, match=r"timm/test_vit\.r160_in1k/resolve/main/model\.safetensors.*-pretrained=FILE"
    ):
        model_of("test_vit", "-pretrained=timm")
