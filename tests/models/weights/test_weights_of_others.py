"""Files that other programs write: objects beside the weights, entries, prefixes, heads, sizes."""

import argparse
import collections
import datetime
import enum
import os
import pickle
import re
import tracemalloc
import types
from ast import literal_eval
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from conftest import cli, each_row, each_value, line_of, refused
from numpy.random import default_rng
from pytest import mark
from timm import create_model
from timm.models import adapt_input_conv
from torch import nn
from torch.testing import assert_close
from weight_files import (
    Reduced,
    assert_same_logits,
    loaded,
    logits,
    pickled,
    prefixed,
    random_vit,
    randomized,
    refusal,
    renamed,
    small_vit,
    vit,
    without,
)

from configs.schema.families.family import TimmModel
from configs.schema.model import Model
from engine.checkpoint.weights_record import weights_record
from models.weights.choose import EVALUATE, FINE_TUNE, TEACHER
from models.weights.fit import NewHead, load_pretrained
from models.weights.read import size_of_positions


class Color(enum.Enum):
    RED = 1


class Config(dict):  # as yacs' CfgNode, Lightning's AttributeDict and mmengine's ConfigDict
    def __init__(self, *arguments, **values):
        super().__init__(*arguments, **values)
        self.__dict__["frozen"] = True


class History(list):
    class Inner:
        pass


class Slots:
    __slots__ = ("a",)

    def __init__(self):
        self.a = np.float32(1)


class State(OrderedDict):
    """A state dict of another class."""


def objects() -> dict:
    values = [argparse.Namespace(lr=1e-3, path=Path("a")), np.float64(1.5), np.arange(3), np.dtype("f4"), Path("/x")]
    values += [datetime.datetime.now(), datetime.timedelta(1), Color.RED, {Color.RED: 1}, Config(a=Config(b=1))]
    values += [Slots(), History([1]), History.Inner(), collections.defaultdict(list, a=[1]), collections.deque([1], 3)]
    values += [collections.Counter("aab"), types.SimpleNamespace(a=1), partial(F.gelu, a=1)]
    values += [torch.optim.SGD([torch.zeros(1)], 0.1), frozenset({1}), range(3), slice(1, 2), ...]
    values += [np.random.RandomState(0), default_rng(0), os.path.join, len, torch.device("cpu"), 1j, b"x"]
    return {f"{number}": value for number, value in enumerate(values)}


ENDINGS = """
ending | protocol
'' | 2
.pth.tar | 3
.pdf | 4
'' | 5
"""


@mark.filterwarnings("ignore")
@each_value(ENDINGS)
@mark.parametrize("zipped", [True, False])
def test_objects_beside_the_weights_the_ending_and_the_protocol_do_not_matter(tmp_path, zipped, ending, protocol):
    path = tmp_path / f"x{ending}"
    content = objects() | {"state_dict": State(STATE), "args": collections.defaultdict(int, a=1)}
    content |= {"loss": nn.CrossEntropyLoss()} if zipped else {}  # else with its source, which is refused
    content["options"] = "{MODEL: {}, DATA: {}}"  # as in a checkpoint of this program that was saved again
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_same_logits(loaded(path), RAW)


def test_no_function_of_a_file_runs(tmp_path, monkeypatch):
    """Also where the weights beside it are read."""
    monkeypatch.chdir(tmp_path)
    calls = [Reduced(os.system, "touch PROOF"), Reduced(eval, "open('PROOF', 'w')"), Reduced(Path.touch, Path("PROOF"))]
    torch.save({"model": STATE, "args": argparse.Namespace(a=calls)}, "x.tar")
    assert loaded("x.tar")
    for ending in cli("pdparams pth npz safetensors"):
        refusal(pickled(Path(f"x.{ending}"), calls))
    refusal(pickled(Path("x.pdparams"), calls, protocol=0))
    np.savez("x.npz", cls=np.array(calls, dtype=object))
    refusal("x.npz")
    assert not Path("PROOF").exists()
    pickle.loads(pickle.dumps(calls[0]))
    assert Path("PROOF").exists()


@mark.filterwarnings("ignore")
def test_pickled_models_are_refused(tmp_path):
    model = nn.Linear(2, 2)
    for zipped in (True, False):
        for content in (model, {"model": model, "epoch": 1}, {"ema": model, "epoch": argparse.Namespace()}):
            torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
            assert "contains a pickled object (" in refusal(tmp_path / "x.pt")


RAW = random_vit(0)
FAR = random_vit(1)


def states(prefix: str = "", far: bool = False) -> dict:
    return prefixed(prefix, (FAR if far else RAW).state_dict())


STATE = states()
AVERAGE = states(far=True)  # or other weights


def averaged(prefix: str = "module.") -> dict:
    return {"n_averaged": torch.tensor(3)} | states(prefix, far=True)


LINEAR = RAW.head.state_dict()
BODY = without(STATE, "head.weight", "head.bias")
BACKBONE = prefixed("backbone.", BODY)
SWAPPED = {"state_dict": states("model.", far=True)}
NUMPY = {name: tensor.numpy() for name, tensor in STATE.items()}
NO_DATA = {"grid": torch.arange(5).expand(3, 5), "mask": torch.eye(3).to_sparse()}
WRAPPERS = {"^": "_fsdp_wrapped_module._orig_mod.", r"blocks\.": "blocks._checkpoint_wrapped_module."}
DINO_HEAD = {f"head.{layer}": torch.ones(2, 2) for layer in ("mlp.0.weight", "mlp.2.weight", "last_layer.weight_v")}
# What is read by default in a training and in an evaluation -> files and their content. raw: RAW, average: FAR
LAYOUTS = {
    ("average", "raw"): {
        "timm": {"state_dict": STATE, "state_dict_ema": AVERAGE},
        "DeiT": {"model": STATE, "model_ema": AVERAGE, "x": {"state": {0: STATE}}},
        "torchvision": {"model": states("module."), "model_ema": averaged("module.module.")},
        "SWA": {"swa_model": averaged(), "net": STATE},
        "Lightning": {"state_dict": states("model.") | averaged("ema_model.module.")},
        "tensors without data": {"state_dict": STATE | NO_DATA, "state_dict_ema": AVERAGE},
    },
    ("average", "average"): {
        "own": {"format": 6, "model": STATE, "state_dict_ema": AVERAGE},
        "Lightning 2.6": SWAPPED | {"current_model_state": states("model.")},
        "mmengine": SWAPPED | {"message_hub": {}, "ema_state_dict": states("module.model.")},
    },
    ("raw", "raw"): {
        "nested": {"epoch": 1, "loss": "CE", "model": {"state_dict": STATE}, "optimizer_state_dict": {}},
        "DeepSpeed": {"module": STATE, "ds_config": {}, "optimizer": None},
        "BEiT": {"model": states("encoder."), "x": {"y": {"z": torch.ones(1)}}},
        "head beside": {"state_dict": BACKBONE | prefixed("fc.", LINEAR)},
        "mmpretrain": {"state_dict": BACKBONE | prefixed("head.layers.head.", LINEAR)},
        "flat with moments": STATE | states("exp_avg.", far=True) | states("optim.m.", far=True),
        "numpy beside others": {"params": NUMPY, "x": np.array(["a"], object), "y": np.zeros(3, "M8[s]")},
        "another head of the training": {"state_dict": states("model.") | prefixed("aux_head.", LINEAR)},
        "wrappers of PyTorch": renamed(RAW, WRAPPERS),
        "one head": {"train_model": BACKBONE | prefixed("class_head.", LINEAR)},
        "the same twice": dict.fromkeys(("model", "state_dict"), STATE),
    },
}


@mark.filterwarnings("ignore:Validating sparse tensor")
@mark.parametrize("expected, name", [(expected, name) for expected, files in LAYOUTS.items() for name in files])
def test_the_entry_the_prefix_and_the_average(saved, expected, name):
    path = saved(LAYOUTS[expected][name])
    both = "average" in expected
    known = {"raw": logits(RAW), "average": logits(FAR)}
    for purpose, default in zip((TEACHER, EVALUATE), expected, strict=True):
        for wanted in ("raw", "average", None) if both else (None, "raw"):
            model = small_vit()
            fitted = load_pretrained(model, path, TimmModel(WEIGHTS_ENTRY=wanted), purpose)
            assert torch.equal(logits(model), known[wanted or default])
            assert bool(fitted.others) == both
    if not both:
        assert "has no weights average" in wrong_entry(path, "average")
    assert "has no weights nothing" in wrong_entry(path, "nothing")


def load_entry(path: Path, entry: str) -> str:
    return load_pretrained(small_vit(), str(path), options=TimmModel(WEIGHTS_ENTRY=entry)).notes()[0].text


def wrong_entry(path: Path, entry: str) -> str:
    return line_of(load_entry, path, entry)


@mark.parametrize("chunked", [False, True])
def test_the_teacher_of_dino_and_other_pairs(saved, chunked):
    teacher = BACKBONE | DINO_HEAD
    if chunked:  # the blocks of DINOv2's training
        teacher = {name.replace("blocks.", "blocks.0."): tensor for name, tensor in teacher.items()}
    student = states("module.backbone.", far=True)
    for content in ({"student": student, "teacher": teacher}, {"teacher": teacher}):
        path = saved(content)
        model = small_vit()
        fitted = load_pretrained(model, path)
        assert "(teacher.backbone)" in fitted.source
        assert torch.equal(model.norm.bias, RAW.norm.bias)
        assert re.search("cannot be evaluated .*; train with these weights", refusal(path, purpose=EVALUATE))
    flat = states("student.backbone.", far=True) | states("teacher.backbone.")
    assert_same_logits(loaded(saved({"state_dict": flat})), RAW)
    flat = states("student.", far=True) | states("teacher.")  # of a distillation: its result is the student
    path = saved({"state_dict": flat})
    assert "fit equally well" in refusal(path)
    for entry, source in (("teacher", RAW), ("student", FAR)):
        assert_same_logits(loaded(path, options=TimmModel(WEIGHTS_ENTRY=entry)), source)


def test_entries_that_fit_equally_well_end_in_a_line_whose_names_work(saved):
    path = saved(STATE | {"best": AVERAGE})
    assert "the entries the file itself, best fit" in refusal(path)
    assert "also there: best" in load_entry(path, "the file itself")
    path = saved({"last": STATE, "copy": {name: one.clone() for name, one in STATE.items()}})
    assert "(last)" in load_pretrained(small_vit(), path).source  # as of a best that is the last
    path = saved({"last": STATE, "best": AVERAGE})
    assert re.search("entries last, best fit equally .* -opts MODEL.WEIGHTS_ENTRY=", refusal(path))
    for name, source in (("last", RAW), ("best", FAR)):
        assert_same_logits(loaded(path, options=TimmModel(WEIGHTS_ENTRY=name)), source)


def test_of_two_heads_of_lightlytrain_none_is_taken(saved):
    """The one in the backbone is untrained; the other one has features of LightlyTrain's own pooling."""
    beside = prefixed("model.class_head.", LINEAR)
    path = saved({"train_model": states("model.backbone._model.", far=True) | beside})
    assert "head: no usable one in the file" in refusal(path, purpose=EVALUATE)
    assert load_pretrained(small_vit(), path).new_heads == {"head": NewHead.NOT_IN_FILE}


BESIDE = [
    ("class_head", {}),
    ("class_head", {"criterion.weight": torch.ones(3)}),
    ("a.head", {"projector.weight": torch.ones(2, 2)}),
]


@mark.parametrize("place, others", BESIDE)
def test_a_head_beside_the_backbone_is_named_on_the_screen(saved, place, others):
    model = vit(num_classes=3)
    state = renamed(model, {r"^(?!head)": "backbone._model.", "^head": place}) | others
    classes = {"model_init_args": {"classes": {0: "c", 1: "a", 2: "b"}}}
    path = saved({"train_model": state, **classes})
    notes = load_pretrained(model, path, purpose=EVALUATE).notes()
    assert [note.kind for note in notes if place in note.text] == ["screen"]
    assert weights_record(TimmModel(NAME="test_vit", PRETRAINED=path)).class_names == ["c", "a", "b"]


def test_a_linear_layer_behind_a_dropout_is_the_head(saved):
    source = vit(num_classes=3)
    source.head = nn.Sequential(nn.Dropout(), nn.Linear(48, 3))
    path = saved(prefixed("module.", randomized(source).state_dict()))
    model = loaded(path, vit(num_classes=3).eval(), purpose=EVALUATE)
    assert_same_logits(model, source)
    source.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 3))
    with refused("cannot be evaluated"):
        load_pretrained(model, saved(source.state_dict()), purpose=EVALUATE)


def test_average_pooling_of_weights_with_a_class_token(saved):
    model = small_vit(global_pool="avg")
    new = model.fc_norm.weight.clone()
    others = {"mask_token": torch.zeros(1), "decoder_embed.weight": torch.zeros(1)}
    path = saved({"model": BODY | others})
    fitted = load_pretrained(model, path)
    assert torch.equal(model.fc_norm.weight, new)
    assert torch.equal(model.cls_token, RAW.cls_token)
    assert fitted.new_heads["fc_norm"] is NewHead.OTHER_NORM
    with refused(r"cannot be evaluated \(fc_norm"):
        load_pretrained(model, path, purpose=EVALUATE)


def test_a_head_of_other_classes_is_answered_by_the_option_that_evaluates_it(saved):
    state = vit(num_classes=3).state_dict()
    own = {"options": "{MODEL: {TYPE: vit}, DATA: {}}", "model": state, "format": 1}
    cases = {
        "-opts MODEL.NUM_CLASSES=3": (state, EVALUATE),
        "leave out -cfg": (own, EVALUATE),
        "give weights with this head": (state, TEACHER),
    }
    for fix, (content, purpose) in cases.items():
        path = saved(content)
        with refused(f"3 classes in the file, 7 in the model.*{fix}"):
            load_pretrained(vit(num_classes=7), path, purpose=purpose)
        load_pretrained(vit(num_classes=3), path, purpose=purpose)


@mark.parametrize("name", ["resnet10t", "crossvit_tiny_240"])
def test_channels_of_the_first_convolution(saved, name):
    rgb, gray = (create_model(name, num_classes=3, in_chans=channels) for channels in (3, 1))
    for source, model in ((rgb, gray), (gray, rgb)):
        path = saved(source.state_dict())
        remarks = load_pretrained(model, path, purpose=EVALUATE).remarks
        firsts = [key for key in source.state_dict() if any(f"{key}: from" in note.text for note in remarks)]
        assert len(firsts) == (2 if name.startswith("cross") else 1)
        for key in firsts:
            weight = source.state_dict()[key]
            read = model.state_dict()[key]
            assert_close(read, adapt_input_conv(read.shape[1], weight, weight.shape[1]))


# What a file states; DATA.IMAGE_SIZE, the size of the weights
ARGUMENTS = """
arguments | size | shape
{"img_size": None, "input_size": [3, 48, 64]} | (48, 64) | (48, 64)
{"input_size": 48} | 48 | (48, 48)
{"img_size": 48, "input_size": None} | 48 | (48, 48)
{} | 32 | None
{"img_size": None, "input_size": (48, 64, 3)} | (48, 64) | (48, 64)
{"img_size": None, "input_size": (1, 3, 48, 64)} | (48, 64) | (48, 64)
{"image_size": [48]} | 48 | (48, 48)
{"img_size": None, "input_size": (48, 64)} | (48, 64) | (48, 64)
"""


@each_row(ARGUMENTS)
def test_the_image_size_and_the_model_that_a_file_states(saved, arguments, size, shape):
    model = create_model("test_vit", img_size=32, num_classes=3)
    stated = argparse.Namespace(model="test_vit", **literal_eval(arguments))
    path = saved({"state_dict": model.state_dict(), "args": stated})
    record = weights_record(TimmModel(NAME="test_vit", PRETRAINED=path))
    expected = {"IMAGE_SIZE": literal_eval(size)}
    assert record.data.items() >= (expected | {"IMAGENET_MEAN": (0.5, 0.5, 0.5)}).items()
    assert record.image_size == literal_eval(shape)
    for other in (small_vit(), create_model("test_resnet")):
        assert "-model=test_vit" in refusal(path, other)
    assert weights_record(Model(PRETRAINED=path)).data == expected


SIZES = """
name | published | expected
vit_tiny_patch16_384 | 224 | 384
vit_so400m_patch14_siglip_384 | 384 | 384
hiera_tiny_224 | 224 |
vit_medium_patch16_reg4_gap_256 | 224 | 256
vit_small_patch14_reg4_dinov2 | 224 | 518
vit_tiny_r_s16_p8_224 | 224 |
vit_base_r50_s16_224 | 224 |
deit3_small_patch16_224 | [9] | 224
"""


@each_value(SIZES)
def test_positions_tell_the_image_size_of_models_of_plain_patches(name, published, expected):
    with torch.device("meta"):
        state = create_model(name).state_dict()
    assert size_of_positions([state], published) == expected


def test_an_array_of_names_takes_little_memory(saved):
    many = np.zeros((2000,) + (1,) * 30, np.uint8)
    for content in ({"classes": many}, {"classes": [many] * 200}, {"classes": np.zeros(10**6, np.uint8)}):
        path = saved({"state_dict": small_vit().state_dict(), **content})
        tracemalloc.start()
        record = weights_record(Model(PRETRAINED=path))
        assert record is None or record.class_names is None
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        tracemalloc.stop()


def test_batch_norms_without_a_count_of_batches_are_read_as_timm_reads_them(saved):
    """As torchvision's files of 2017, and conversions from Caffe, JAX and ONNX."""
    source, target, timms = (randomized(create_model("test_resnet", num_classes=3)) for _ in range(3))
    path = saved(without(source.state_dict(), "num_batches_tracked"))
    loaded(path, target)
    timm.models.load_checkpoint(timms, path)
    assert_same_logits(target, timms)
    assert_same_logits(target, source)


def test_a_layer_before_the_head_that_the_model_lacks_is_a_warning_where_the_head_counts(saved):
    path = saved(RAW.state_dict() | {"pre_logits.fc.weight": torch.eye(48)})
    for purpose in (EVALUATE, TEACHER, FINE_TUNE):
        fitted = load_pretrained(small_vit(), path, purpose=purpose)
        assert fitted.unused == ["pre_logits.fc.weight"]
        assert any(note.kind == "warning" for note in fitted.notes()) == purpose.needs_head
