"""Weight files of all formats are read correctly and fitted to the model."""

import json
import runpy
import shlex
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from conftest import assert_same_state, cells_of, each_value, line_of, refused, seeded
from pytest import mark
from timm import create_model
from timm.models.regnet import RegNet, RegNetCfg
from torch import nn
from torch.testing import assert_close
from weight_files import (
    FIXTURE,
    Reduced,
    assert_same_logits,
    google_arrays,
    loaded,
    logits,
    map_head,
    paddle_state,
    pickled,
    random_vit,
    read,
    renamed,
    small_vit,
    without,
)

from configs.schema.families.family import TimmModel
from configs.weights import find_weights
from models.weights.choose import FEATURES, FINE_TUNE
from models.weights.fit import NewHead, load_pretrained
from models.weights.names import paddle_to_timm

SQUARE = "encoder.layers.0.attn.out.weight"


@mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_tensors_of_a_file_have_no_copy_in_memory(saved, dtype):
    """Of any float dtype: the model's own memory casts them."""
    state = {name: tensor.to(dtype) for name, tensor in random_vit().state_dict().items()}
    path = saved(state)
    taken = []
    loaded(path, take=taken.append)
    assert not any(tensor.untyped_storage().resizable() for tensor in taken[0].values())
    assert_same_state(loaded(path).state_dict(), {name: tensor.float() for name, tensor in state.items()})


@mark.parametrize("has_average", [False, True])
def test_a_training_checkpoint_of_paddlevit_gives_its_average(tmp_path, has_average):
    state = paddle_state()
    average = {"model_ema": {name: array + np.float32(1) for name, array in state.items()}} if has_average else {}
    file = pickled(tmp_path / "Epoch-2-Loss-1.6.pdparams", {"model": state, **average, "epoch": 2})
    assert np.array_equal(read(file)["cls_token"], state["cls_token"] + has_average)
    entry = "model_ema" if has_average else "model"
    assert load_pretrained(small_vit(), str(file.with_suffix(""))).source == f"{file} ({entry}), 32 tensors"


OF_REGNET = r"""
^stem.conv | stem.0
^stem.bn | stem.1
^head.fc | head.2
conv(\d).bn | bn\1
(conv\d).conv | \1
downsample.conv | downsample.conv1x1
se.fc(\d) | se.conv\1_1x1
running_mean | _mean
running_var | _variance
"""


def test_paddlevits_regnet_is_timms_with_the_biases_in_the_running_means():
    """A small model with PaddleViT's names. Its convolutions with a bias are computed, as PaddleViT does."""
    sizes = RegNetCfg(depth=6, w0=16, wa=16.0, wm=1.8, group_size=8, se_ratio=0.25)
    source, model = (RegNet(sizes, num_classes=5).eval() for _ in range(2))
    generator = seeded(0)
    for tensor in source.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(0.5 + 0.2 * torch.rand(tensor.shape, generator=generator))
    for name, block in source.named_modules():
        if name.endswith(".conv3"):
            block.conv.bias = nn.Parameter(torch.randn(block.conv.out_channels, generator=generator))
    in_stages = {r"^s(\d).b(\d)": lambda match: f"stages.{int(match[1]) - 1}.blocks.{int(match[2]) - 1}"}
    state = without(renamed(source, dict(cells_of(OF_REGNET)) | in_stages), "num_batches_tracked")
    state["head.2.weight"] = state["head.2.weight"].t()
    assert {"stages.0.blocks.0.conv3.bias", "stages.0.blocks.0.bn3._mean", "stem.1._variance"} <= state.keys()
    options = TimmModel(NAME="regnety_160.deit_in1k")
    model.load_state_dict(paddle_to_timm(Path("regnet"), options, model, state)[0])
    assert_close(logits(model), logits(source), rtol=1e-5, atol=1e-5)


@mark.parametrize("protocol", [2, 4, 5])
def test_pdparams_in_every_protocol_and_memory_order(tmp_path, protocol):
    state = {
        name: Reduced(tuple, ("linear_0.w_0", np.asfortranarray(array)))  # as PaddlePaddle's own tensors
        for name, array in paddle_state().items()
    }
    expected = read(FIXTURE / "vit.pdparams")
    found = read(pickled(tmp_path / "vit.pdparams", OrderedDict(state), protocol))
    assert_same_state(found, expected)


def test_pdparams_bfloat16_is_stored_as_uint16(tmp_path):
    state = {name: torch.from_numpy(array).bfloat16() for name, array in paddle_state().items()}
    bits = {name: tensor.view(torch.int16).numpy().view(np.uint16) for name, tensor in state.items()}
    found = read(pickled(tmp_path / "vit.pdparams", bits))
    assert found["blocks.0.attn.proj.weight"].dtype == torch.bfloat16
    assert torch.equal(found["blocks.0.attn.proj.weight"], state[SQUARE].t())


@mark.parametrize("stacked", [False, True])
@mark.parametrize("prefix, big_vision", [("", False), ("opt/target/", False), ("params/", True)])
def test_google_npz_as_timm_reads_it(tmp_path, prefix, big_vision, stacked):
    source = random_vit()
    np.savez(tmp_path / "vit.npz", **google_arrays(source, prefix, big_vision, stacked), **{"other/step": np.int64(3)})
    ours = loaded(tmp_path / "vit.npz")
    assert_close(logits(ours), logits(source))
    if prefix if big_vision else not stacked:  # the formats that all supported versions of timm read
        timms = small_vit()
        timms.load_pretrained(str(tmp_path / "vit.npz"))
        assert_same_state(ours.state_dict(), timms.state_dict())


def test_google_npz_in_bfloat16(tmp_path):
    source = random_vit().bfloat16().float()
    arrays = google_arrays(source)
    bits = {k: torch.tensor(a).bfloat16().view(torch.int16).numpy().view("V2") for k, a in arrays.items()}
    np.savez(tmp_path / "vit.npz", **bits)
    assert_same_logits(loaded(tmp_path / "vit.npz"), source)


@mark.parametrize("prefix", ["params/", "params/img/"])
def test_a_map_head_of_big_vision_as_timm_reads_it(tmp_path, prefix):
    """With a text tower beside it: SigLIP's file."""
    changes = {"class_token": False, "global_pool": "map", "num_classes": 0}
    timms = small_vit(**changes)
    arrays = google_arrays(random_vit(class_token=False, global_pool="avg", fc_norm=False), prefix, big_vision=True)
    np.savez(tmp_path / "x.npz", **arrays, **map_head(48, 3, prefix), **{"params/txt/Embed_0/embedding": np.ones(3)})
    timms.load_pretrained(str(tmp_path / "x.npz"))
    ours = loaded(tmp_path / "x.npz", small_vit(**changes), purpose=FEATURES)
    assert_same_state(ours.state_dict(), timms.state_dict())


def test_positions_of_an_npz_are_resized_as_timm_resizes_them(tmp_path):
    timms = small_vit(img_size=48)
    np.savez(tmp_path / "x.npz", **google_arrays(random_vit()))
    timms.load_pretrained(str(tmp_path / "x.npz"))
    ours = loaded(tmp_path / "x.npz", small_vit(img_size=48))
    assert_close(ours.pos_embed, timms.pos_embed)


@mark.parametrize("now", [(32, 32), (64, 16), (8, 128)])
def test_positions_of_as_many_tokens_in_another_shape_are_resized(saved, now):
    source = random_vit(img_size=(16, 64))
    model = loaded(saved(source.state_dict()), small_vit(img_size=now), image_size=(16, 64))
    grid = source.pos_embed[:, 1:].unflatten(1, (2, 8)).permute(0, 3, 1, 2)
    size = [side // 8 for side in now]
    expected = F.interpolate(grid, size, mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    assert_close(model.pos_embed[:, 1:], expected)
    assert not torch.equal(expected, source.pos_embed[:, 1:])


COMPILED_BLOCKS = r"^(blocks\.\d+)", r"\1._orig_mod"


@mark.parametrize("pattern, wrapped", [("^", ""), ("^", "_orig_mod.module."), COMPILED_BLOCKS])
@mark.parametrize("ending", ["safetensors", "pt"])
def test_safetensors_and_torch_files_with_the_names_of_wrappers(tmp_path, ending, pattern, wrapped):
    source = random_vit()
    save = safetensors.torch.save_file if ending == "safetensors" else torch.save
    save(renamed(source, {pattern: wrapped}), path := tmp_path / f"vit.{ending}")
    assert_same_logits(loaded(path), source)


def test_extension_is_optional_and_pdparams_has_priority(tmp_path):
    for name in ("vit.pth", "vit.pdparams", "vit.v2.npz"):
        (tmp_path / name).touch()
    assert find_weights(str(tmp_path / "vit")) == tmp_path / "vit.pdparams"
    assert find_weights(str(tmp_path / "vit.pth")) == tmp_path / "vit.pth"
    assert find_weights(str(tmp_path / "vit.v2")) == tmp_path / "vit.v2.npz"
    with refused(r"is a folder; give a file in it, such as .*/vit.pdparams$"):
        find_weights(str(tmp_path))
    (tmp_path / "best.pth").touch()
    with refused(r"is a folder; give a file in it, such as .*/best.pth$"):
        find_weights(str(tmp_path))


def test_shards_by_their_index_without_a_config(tmp_path):
    """As accelerate's save_model writes them."""
    state = random_vit().state_dict()
    files = {name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(state)}
    for file in {*files.values()}:
        safetensors.torch.save_file({name: state[name] for name in files if files[name] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    for path in (tmp_path, index):
        assert_same_logits(loaded(path), random_vit())
    (tmp_path / file).unlink()
    with refused(rf"index.json: names {file}, which is missing"):
        loaded(index)


@mark.parametrize("path", ["", "__0_0.distcp"])
@mark.filterwarnings("ignore:.*found in sys.modules", "ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_read_after_the_printed_conversion(tmp_path, path, monkeypatch):
    import torch.distributed.checkpoint as dcp  # with sympy: takes a second

    dcp.save(random_vit().state_dict(), checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    message = line_of(find_weights, str(tmp_path / "dcp" / path))
    typed = message.partition("this writes: python -m ")[2].replace("weights.pth", f"{tmp_path}/weights.pth")
    module, *arguments = shlex.split(typed)
    monkeypatch.setattr("sys.argv", [module, *arguments])
    runpy.run_module(module, run_name="__main__")
    assert_same_logits(loaded(tmp_path / "weights.pth"), random_vit())


@mark.parametrize("path", ["", "adapter_model.safetensors"])
def test_an_adapter_of_peft_names_the_weights_with_it(tmp_path, path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).touch()
    with refused("is an adapter without the weights .*merge_and_unload"):
        find_weights(str(folder / path))


HIDDEN = {"head_hidden_size": 16}


@mark.parametrize("name, head, options", [("test_vit", "head", {}), ("test_convnext", "head.fc", HIDDEN)])
def test_head_of_another_class_count_is_zero_in_its_last_layer(saved, name, head, options):
    source = create_model(name, num_classes=7, **options)
    model = create_model(name, num_classes=4, **options)
    new_head = {key: 0 * tensor for key, tensor in model.state_dict().items() if key.startswith(f"{head}.")}
    path = saved(source.state_dict())
    fitted = load_pretrained(model, path)
    assert (fitted.new_heads, fitted.counts) == ({head: NewHead.OTHER_NUMBER}, (7, 4))
    assert fitted.zero_heads
    own = model.state_dict()
    assert new_head.keys() == {f"{head}.weight", f"{head}.bias"}
    assert all(torch.equal(own[key], new_head.get(key, tensor)) for key, tensor in source.state_dict().items())
    same = create_model(name, num_classes=7, **options)
    assert not load_pretrained(same, path).new_heads
    assert_same_state(same.state_dict(), source.state_dict())


# A list of heads, two of a distillation, and two in one
HEADS = """
name | options
test_vit | {}
crossvit_tiny_240 | {depth: [[1, 1, 0]]}
levit_128s | {depth: [1, 1, 1], embed_dim: [16, 24, 32], key_dim: 8, num_heads: [2, 2, 2]}
repvit_m1 | {embed_dim: [16, 24], depth: [1, 1]}
"""


@each_value(HEADS)
def test_rows_of_a_head_are_kept_by_class(saved, name, options):
    """All of a head but the rows of its last layer is as in the file, such as the batch norm in LeViT's."""
    source, model = (create_model(name, num_classes=classes, **options) for classes in (3, 4))
    rows = [2, -1, 0, -1]
    path = saved(source.state_dict())
    assert not load_pretrained(model, path, purpose=replace(FINE_TUNE, head_rows=rows)).new_heads
    fitted = 0
    for key, tensor in source.state_dict().items():
        found = model.state_dict()[key]
        if tensor.shape == found.shape:
            assert torch.equal(found, tensor)
        else:
            fitted += 1
            assert torch.equal(found, torch.stack([tensor[2], 0 * tensor[0], tensor[0], 0 * tensor[0]]))
    assert fitted == (2 if name == "test_vit" else 4)


def test_tensors_that_are_not_used_are_named(saved):
    path = saved(small_vit().state_dict() | {"a": torch.ones(1), "b": torch.ones(2)})
    assert load_pretrained(small_vit(), path).notes()[-1].text == "not used: a, b"
