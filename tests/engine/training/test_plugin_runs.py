"""Runs with the parts of a plugin: the same for any number of workers and after a resume; what the run keeps."""

import re
import shutil
from hashlib import sha256
from pathlib import Path

import torch
import torch.nn.functional as F
from conftest import ROOT, SMALL_BATCHES, assert_same_state, cli, digits_flags, log_of, refused, run_here, states, train
from pytest import approx, mark
from safetensors.torch import load_file
from torch.testing import assert_close

from configs.command_line import parse_command_line
from configs.parts import LOSSES, Part, open_plugin
from configs.schema import Loss
from configs.weights import options_to_export
from configs.yaml_io import parse_value
from datasets.batch import PADDING
from engine.commands.run import run
from engine.training.loss import build_loss
from scripts import export

OPTIONS = [
    *("LOSS.NAME=power", "TRAIN.OPTIMIZER.NAME=plainsgd", "DATA.HOST_AUGMENTATIONS={add: {power: 2.0}}"),
    *("DATA.DEVICE_AUGMENTATIONS={drift: {}}", "SAVE_FREQ_STEPS=7"),
]


@mark.parametrize("smoothing", [0.0, 0.1])
@mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 4.0])], ids=["plain", "weighted"])
def test_the_loss_of_a_plugin_gets_dense_targets_and_counts_no_padding(plugin, smoothing, weights):
    open_plugin(plugin)
    loss = build_loss(Loss(NAME="power", KWARGS={"power": 2.0}), smoothing, weights)
    logits = torch.randn(5, 3)
    labels = torch.tensor([0, 2, PADDING, 1, 2])
    factors = torch.ones(3) if weights is None else weights

    def expected(logits, targets):
        smoothed = targets * (1 - smoothing) + smoothing / 3
        terms = (smoothed * logits.softmax(-1) ** 2).sum(-1)
        return approx(-(terms * (targets @ factors)).sum().item(), rel=1e-5)

    counted = labels != PADDING
    assert loss(logits, labels) == expected(logits[counted], F.one_hot(labels[counted], 3).float())
    mixed = torch.tensor([[0.25, 0.75, 0.0]])
    assert loss(logits[:1], mixed) == expected(logits[:1], mixed)


def test_a_loss_without_one_value_per_sample_is_refused(plugin):
    open_plugin(plugin)
    with refused(r"LOSS.NAME scalar: .*\(2,\)"):
        build_loss(Loss(NAME="scalar"), 0.0)(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_the_loss_of_a_new_author_without_options_is_one_line_with_its_arguments(plugin, monkeypatch):
    monkeypatch.setitem(LOSSES, "plain", Part(lambda logits, targets: logits.sum(-1)))
    with refused(r"LOSS.NAME plain: .*'options'; it is called with \(logits, targets, options\)"):
        build_loss(Loss(NAME="plain"), 0.0)(torch.zeros(2, 3), torch.tensor([0, 1]))


UNUSED = """
from timm.models import VisionTransformer, register_model
import torch
class Unused(VisionTransformer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.unused = torch.nn.Linear(3, 3)
@register_model
def unused_vit(pretrained=False, **kwargs):
    own = dict(patch_size=4, embed_dim=16, depth=1, num_heads=2, img_size=8, in_chans=1, num_classes=10)
    return Unused(**own)
__all__ = ["unused_vit"]
"""


def unused_run(context, folder: Path) -> Path:
    flags = [f"-plugin={folder / 'unused.py'}", *digits_flags(folder / f"out-{context.world_size}")]
    options = cli("MODEL.TYPE=timm MODEL.NAME=unused_vit TRAIN.MAX_STEPS=4 DATA.GLOBAL_BATCH_SIZE=64")
    others = "MODEL.EMBED_DIM", "MODEL.DEPTH", "MODEL.NUM_HEADS", "MODEL.PATCH_SIZE", "-batch_size"
    flags = [flag for flag in flags if not flag.startswith(others)]
    batch = f"DATA.BATCH_SIZE={64 // context.world_size}"
    run(parse_command_line([*flags, *options, batch, "TRAIN.OPTIMIZER.NAME=sgd"]), context)
    return next((folder / f"out-{context.world_size}").iterdir())


@mark.slow
def test_parameters_without_a_gradient_are_named_on_one_and_on_two_ranks(tmp_path, cpu, ranks):
    """By default they end DDP in an error of torch, without names."""
    (tmp_path / "unused.py").write_text(UNUSED)
    folders = [unused_run(cpu, tmp_path), ranks(2)(unused_run, tmp_path)[0]]
    for folder in folders:
        assert re.findall(r"without a gradient.*'unused.weight', 'unused.bias'$", log_of(folder), re.M)
    one, two = (states(folder)["model"] for folder in folders)
    assert_close(dict(one), dict(two), atol=1e-6, rtol=1e-5)
    assert one["unused.weight"].abs().sum() > 0


def test_a_plugin_that_ends_the_program_is_one_line(tmp_path, digits_argv):
    (tmp_path / "now.py").write_text("import sys\nsys.exit(3)\n")
    with refused(r"-plugin .*now\.py:2: SystemExit: 3"):
        parse_command_line([f"-plugin={tmp_path / 'now.py'}", *digits_argv])
    exits = "import sys\nfrom configs.parts import loss\nloss('exits')(lambda *_, **options: sys.exit(0))\n"
    (tmp_path / "later.py").write_text(exits)
    with refused(r"SystemExit\(0\) of a plugin"):  # else the status 0, without a result
        run_here(f"-plugin={tmp_path / 'later.py'}", *digits_argv, "LOSS.NAME=exits")


@mark.slow
def test_a_resumed_run_with_own_parts_is_the_same_with_workers(plugin, digits_argv):
    argv = [f"-plugin={plugin}", *digits_argv, SMALL_BATCHES, *OPTIONS]
    whole = train([*argv, "NAME=whole"])
    cut = train([*argv, "NAME=cut", "TRAIN.MAX_STEPS=30", "DATA.NUM_WORKERS=1"])
    with refused(r"needs own_parts\.py.*-plugin="):
        parse_command_line([f"-resume={cut}"])
    train(cli(f"-plugin={plugin} -resume={cut} -opts TRAIN.MAX_STEPS=null"))
    assert_same_state(states(whole), states(cut))


def test_a_run_keeps_text_and_hash_of_its_plugins(plugin, digits_argv, tmp_path):
    folder = train([f"-plugin={plugin}", *digits_argv, *OPTIONS, "TRAIN.MAX_STEPS=1"])
    text = Path(plugin).read_text()
    name = f"own_parts.py#sha256={sha256(text.encode()).hexdigest()}"
    assert (folder / "plugins" / name).read_text() == text
    assert torch.load(folder / "last.pth")["plugins"][str(Path(plugin).with_name(name))] == text
    alone = shutil.copy(folder / "last.pth", tmp_path / "alone.pth")
    argv = ["-eval", f"-pretrained={alone}", *digits_argv]
    with refused(r"alone\.pth: PLUGINS: needs own_parts\.py"):
        run_here(*argv)
    assert run_here(f"-plugin={plugin}", *argv) == 0
    assert options_to_export(parse_value((folder / "config.yaml").read_text()))["PLUGINS"] == [name]


def test_the_plugin_of_the_page_is_trained_used_and_exported(tmp_path):
    code = re.findall(r"`my_parts.py`:.*?```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)[0]
    (tmp_path / "my_parts.py").write_text(code)
    plugin = f"-plugin={tmp_path / 'my_parts.py'}"
    parts = ["LOSS.NAME=focal", "LOSS.KWARGS={gamma: 1.5}", "DATA.HOST_AUGMENTATIONS={shift: {pixels: 1}}"]
    argv = ["-cfg=configs/vit_digits.yaml", plugin, "-model=vit_registers", "-epochs=1", f"-output={tmp_path}"]
    folder = train([*argv, "-opts", *parts, "DATA.FRACTION=0.1"])
    logits = torch.randn(5, 3)
    labels = torch.tensor([0, 2, 0, 1, 2])
    loss = build_loss(Loss(NAME="focal", KWARGS={"gamma": 0.0}), 0.0)
    assert loss(logits, labels).item() == approx(F.cross_entropy(logits, labels, reduction="sum").item())
    run_here("-predict", "docs/digits", f"-resume={folder}", plugin)
    export.main([str(folder), "-format", "safetensors", plugin])
    assert load_file(folder / "best.safetensors")["reg_token"].shape == (1, 4, 64)
