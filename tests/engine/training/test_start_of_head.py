"""MODEL.HEAD probe: a new head starts from the solution of the probe, whose evaluation is epoch 0."""

import shutil

import pytest
import torch
from conftest import digits_flags, read_result, rows, run_folders, train
from torch import nn

from configs.command_line import parse_command_line
from configs.schema.model import Model
from engine.commands.run import run
from engine.features import probe as probe_module
from engine.features.classifiers import fit_probe
from models.tuning import set_training

pytestmark = pytest.mark.usefixtures("few_penalties")


@pytest.fixture(scope="module")
def backbone(trained_digits, tmp_path_factory):
    """Weights without a head."""
    state = torch.load(trained_digits() / "best.pth")["model"]
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save({name: tensor for name, tensor in state.items() if not name.startswith("head.")}, path)
    return path


def tuned(output, backbone, *options):
    return [*digits_flags(output), "MODEL.HEAD=probe", *options, f"-pretrained={backbone}", "-batch_size_eval=50"]


@pytest.fixture(scope="module")
def probed(backbone, tmp_path_factory, cpu):
    flags = [*digits_flags(tmp_path_factory.mktemp("probe")), "MODEL.TUNE=probe", f"-pretrained={backbone}"]
    return train([*flags, "-batch_size_eval=50"], cpu)


def test_the_best_checkpoint_is_never_below_the_probe(backbone, probed, tmp_path, cpu):
    """A learning rate that destroys the weights: the best checkpoint is the probe, to the bit, also after a resume."""
    flags = tuned(tmp_path, backbone, "TRAIN.BASE_LR=3", "TRAIN.MAX_STEPS=3")
    folder = train(flags, cpu)
    assert run(parse_command_line([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"]), cpu) == 0
    best, probe = (torch.load(one / "best.pth") for one in (folder, probed))
    assert best["epoch"] == 0 and all(torch.equal(best["model"][name], probe["model"][name]) for name in probe["model"])
    result = read_result(folder)
    assert (result["epoch"], result["top1"]) == (0, read_result(probed)["top1"])
    assert min(float(row["val_top1"]) for row in rows(folder)) < result["top1"] - 20
    assert (folder / "log.txt").read_text().count("-lr=0.3 ") == 1, "after the first epoch"
    run(parse_command_line(["-eval", f"-resume={folder}", f"-output={tmp_path}"]), cpu)
    (evaluated,) = run_folders(tmp_path, "eval")
    assert read_result(evaluated)["top1"] == result["top1"]


def test_without_time_for_a_step_the_run_is_the_probe(backbone, probed, tmp_path, cpu, monkeypatch):
    fits = []
    monkeypatch.setattr(probe_module, "fit_probe", lambda *data: fits.append(fit_probe(*data)) or fits[-1])
    folder = train(tuned(tmp_path, backbone, "TRAIN.MODEL_EMA=true", "TRAIN.MINUTES=0.001"), cpu)
    best, probe = (torch.load(one / "best.pth") for one in (folder, probed))
    assert all(torch.equal(best["model"][name], probe["model"][name]) for name in probe["model"])
    assert len([*(tmp_path / "features").iterdir()]) == 2, "the features are computed once: of both splits"
    assert len(fits) == 1, "the head is fitted once"
    result, expected = read_result(folder), read_result(probed)
    assert all(result[key] == expected[key] for key in ("finished", "top1", "knn_top1", "probe_l2", "epoch"))
    assert run(parse_command_line([f"-resume={folder}"]), cpu) == 0


def status_of(context, argv):
    return run(parse_command_line(argv), context)


@pytest.mark.slow
def test_a_sharded_run_without_time_trains_a_step(backbone, tmp_path, ranks):
    """A probe needs whole models."""
    options = "PARALLEL.STRATEGY=fsdp", "TRAIN.MINUTES=0.001"
    assert ranks(2)(status_of, [*tuned(tmp_path, backbone, *options), "-device=cpu"]) == [0, 0]
    (folder,) = run_folders(tmp_path)
    assert [row["epoch"] for row in rows(folder)] == ["0", "1"] and read_result(folder)["probe_score"] is not None


def test_epoch_0_is_the_probe_and_a_resumed_run_is_exact(backbone, probed, tmp_path, cpu):
    whole = train(tuned(tmp_path / "whole", backbone), cpu)
    probe, result, table = read_result(probed), read_result(whole), rows(whole)
    assert result["probe_score"] == probe["top1"] and probe["probe_score"] is None
    assert (result["knn_top1"], result["probe_l2"]) == (probe["knn_top1"], probe["probe_l2"])
    assert [row["epoch"] for row in table] == ["0", "1", "2"] and table[0]["train_loss"] == ""
    assert float(table[0]["val_top1"]) == probe["top1"] and result["top1"] >= probe["top1"]
    assert not (whole / "epoch-000.pth").exists()
    part = train(tuned(tmp_path / "part", backbone, "TRAIN.MAX_STEPS=25"), cpu)
    shutil.rmtree(tmp_path / "part" / "features")  # a resume needs none
    assert run(parse_command_line([f"-resume={part}", "-opts", "TRAIN.MAX_STEPS=null"]), cpu) == 0
    first, second = (torch.load(folder / "last.pth")["model"] for folder in (whole, part))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(part) == table


@pytest.mark.parametrize("options", [("MODEL.TUNE=lora",), ("MODEL.TUNE=last:1", "TRAIN.MODEL_EMA=true")])
def test_all_kinds_of_tuning_and_an_average_start_from_it(backbone, probed, tmp_path, cpu, options):
    flags = tuned(tmp_path, backbone, *options, "TRAIN.MAX_STEPS=1", "TRAIN.BASE_LR=0", "TRAIN.WARMUP_START_LR=0")
    last, probe = torch.load(train(flags, cpu) / "last.pth"), torch.load(probed / "best.pth")["model"]
    for state in filter(None, (last["model"], last["state_dict_ema"])):
        assert torch.equal(state["head.weight"], probe["head.weight"])


def test_a_head_of_the_same_classes_stays(trained_digits, tmp_path, cpu):
    flags = tuned(tmp_path, trained_digits() / "best.pth", "TRAIN.MAX_STEPS=1", "TRAIN.BASE_LR=0")
    folder = train([*flags, "-opts", "TRAIN.WARMUP_START_LR=0"], cpu)
    heads = (torch.load(one)["model"]["head.weight"] for one in (folder / "last.pth", trained_digits() / "best.pth"))
    assert torch.equal(*heads) and read_result(folder)["probe_score"] is None


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({}, True),
        ({"head": "probe"}, False),
        ({"head": "probe", "batch_norm": "train"}, True),
        ({"batch_norm": "frozen"}, False),
    ],
)
def test_batch_norms_keep_their_statistics(options, moves):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    for pretrained in ("weights.pth", None):  # from scratch, they have none to keep
        set_training(model, Model().model_copy(update={"pretrained": pretrained, **options}))
        assert model[1].training == (moves or pretrained is None) and model[2].training
