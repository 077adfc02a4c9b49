"""MODEL.HEAD probe: a new head starts from the solution of the probe, whose evaluation is epoch 0. Adapters are in the
best weights, which have plain names in all later runs."""

import json
import math
import shutil

import torch
from conftest import (
    assert_same_state,
    cli,
    digits_flags,
    each_value,
    evaluate,
    export_as,
    of_module,
    read_result,
    rows,
    run_folders,
    run_here,
    slow,
    states,
    train,
)
from pytest import approx, mark, raises
from safetensors.torch import load_file
from torch import nn

from configs.schema.model import Model
from engine.checkpoint.files import load_checkpoint
from engine.features import probe as probe_module
from engine.features.classifiers import fit_probe
from models.tuning import merge_adapters, set_training
from models.weights.read import read_weights
from utils.files import read_json

pytestmark = mark.usefixtures("few_penalties")


@of_module
def backbone(trained_digits, tmp_path_factory):
    """Weights without a head."""
    state = torch.load(trained_digits() / "best.pth")["model"]
    del state["head.weight"], state["head.bias"]
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save(state, path)
    return path


def tuned(output, backbone, *options):
    return [*digits_flags(output), "MODEL.HEAD=probe", *options, f"-pretrained={backbone}", "-batch_size_eval=50"]


@of_module
def probed(backbone, tmp_path_factory):
    flags = [*digits_flags(tmp_path_factory.mktemp("probe")), "MODEL.TUNE=probe", f"-pretrained={backbone}"]
    return train([*flags, "-batch_size_eval=50"])


def test_epoch_0_is_the_probe_and_the_best_is_never_below_it_and_a_resumed_run_is_exact(backbone, probed, tmp_path):
    """A learning rate that destroys the weights: the best checkpoint is the probe, to the bit."""
    options = "TRAIN.BASE_LR=3", "TRAIN.NUM_EPOCHS=1"
    whole = train(tuned(tmp_path / "whole", backbone, *options))
    part = train(tuned(tmp_path / "part", backbone, *options, "TRAIN.MAX_STEPS=3"))
    shutil.rmtree(tmp_path / "part" / "features")  # a resume needs none
    assert run_here(f"-resume={part}", "-opts", "TRAIN.MAX_STEPS=null") == 0
    assert_same_state(states(part)["model"], states(whole)["model"])
    table = rows(part)
    assert table == rows(whole)
    assert [row["epoch"] for row in table] == ["0", "1"]
    best, probe = (torch.load(one / "best.pth") for one in (part, probed))
    assert_same_state(best["model"], probe["model"])
    result = read_result(part)
    expected = read_result(probed)
    assert best["epoch"] == result["epoch"] == 0
    assert all(result[key] == expected[key] for key in ("top1", "knn_top1", "probe_l2"))
    assert result["probe_score"] == float(table[0]["val_top1"]) == result["top1"]
    assert float(table[1]["val_top1"]) < result["top1"] - 20
    assert read_result(evaluate(tmp_path, f"-resume={part}"))["top1"] == result["top1"]


def test_without_time_for_a_step_the_run_is_the_probe(backbone, probed, tmp_path, monkeypatch):
    fits = []
    monkeypatch.setattr(probe_module, "fit_probe", lambda *data: fits.append(fit_probe(*data)) or fits[-1])
    folder = train(tuned(tmp_path, backbone, "TRAIN.MODEL_EMA=true", "TRAIN.MINUTES=0.001"))
    assert_same_state(states(folder, "best.pth")["model"], states(probed, "best.pth")["model"])
    assert len([*tmp_path.glob("features/*/*/features.npy")]) == 2, "the features are computed once: of both splits"
    assert len(fits) == 1, "the head is fitted once"
    result = read_result(folder)
    expected = read_result(probed)
    assert all(result[key] == expected[key] for key in ("finished", "top1", "knn_top1", "probe_l2", "epoch"))
    assert run_here(f"-resume={folder}") == 0


@mark.slow
def test_a_sharded_run_without_time_trains_a_step(backbone, tmp_path, ranks):
    """A probe needs whole models."""
    options = "PARALLEL.STRATEGY=fsdp", "TRAIN.MINUTES=0.001"
    ranks(2).run([*tuned(tmp_path, backbone, *options), "-device=cpu"])
    (folder,) = run_folders(tmp_path)
    assert [row["epoch"] for row in rows(folder)] == ["0", "1"]
    assert read_result(folder)["probe_score"] is not None


@mark.parametrize("options", [slow(("MODEL.TUNE=lora",)), ("MODEL.TUNE=last:1", "TRAIN.MODEL_EMA=true")])
def test_all_kinds_of_tuning_and_an_average_start_from_it(backbone, probed, tmp_path, options):
    flags = tuned(tmp_path, backbone, *options, "TRAIN.MAX_STEPS=1", "TRAIN.BASE_LR=0", "TRAIN.WARMUP_START_LR=0")
    last = torch.load(train(flags) / "last.pth")
    probe = torch.load(probed / "best.pth")["model"]
    for state in filter(None, (last["model"], last["state_dict_ema"])):
        assert torch.equal(state["head.weight"], probe["head.weight"])


def test_a_head_of_the_same_classes_stays(trained_digits, tmp_path):
    flags = tuned(tmp_path, trained_digits() / "best.pth", "TRAIN.MAX_STEPS=1", "TRAIN.BASE_LR=0")
    folder = train([*flags, "-opts", "TRAIN.WARMUP_START_LR=0"])
    heads = (torch.load(one)["model"]["head.weight"] for one in (folder / "last.pth", trained_digits() / "best.pth"))
    assert torch.equal(*heads)
    assert read_result(folder)["probe_score"] is None


STATISTICS = """
options | moves
{} | true
{head: probe} | false
{head: probe, batch_norm: train} | true
{batch_norm: frozen} | false
"""


@each_value(STATISTICS)
def test_batch_norms_keep_their_statistics(options, moves):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    for pretrained in ("weights.pth", None):  # from scratch, they have none to keep
        set_training(model, Model().model_copy(update={"pretrained": pretrained, **options}))
        assert model[1].training == (moves or pretrained is None)
        assert model[2].training


@of_module
def adapted(trained_digits):
    """The folder of a run with adapters, on weights of another run."""
    pretrained = trained_digits() / "best.pth"
    options = ["MODEL.TUNE=lora", "MODEL.LORA={RANK: 4, ALPHA: 10.0}", "TRAIN.BASE_LR=1e-2"]
    return trained_digits(f"MODEL.PRETRAINED={pretrained}", *options)


def test_evaluation_and_export_merge_the_adapters(adapted, tmp_path):
    export_as("safetensors", adapted, tmp_path / "merged.safetensors")
    best = load_checkpoint(adapted / "best.pth")["best"]
    for file in (adapted / "best.pth", tmp_path / "merged.safetensors"):
        result = read_result(evaluate(tmp_path / file.stem, f"-pretrained={file}"))
        assert result["top1"] == best["top1"]
        assert result["loss"] == approx(best["loss"], rel=1e-6)


def test_a_later_run_starts_from_the_merged_weights(adapted, digits_argv, trained_digits):
    state = load_checkpoint(adapted / "best.pth")["model"]
    merged = merge_adapters(state, alpha=10)
    assert merged.keys() == states(trained_digits())["model"].keys()
    assert len(state) == len(merged) + 2 * 8
    frozen = [name for name in merged if not name.startswith("head.")]
    later = train([*digits_argv, f"MODEL.PRETRAINED={adapted / 'best.pth'}", "MODEL.TUNE=head", "TRAIN.MAX_STEPS=1"])
    assert all(torch.equal(states(later)["model"][name], merged[name]) for name in frozen)
    name = "blocks.0.attn.qkv.weight"
    assert not torch.equal(merged[name], state[name])
    damaged = {"model": state, "options": "MODEL: {}"}
    torch.save(damaged, later / "damaged.pth")
    with raises(Exception, match=r"damaged\.pth: is damaged"):
        _ = read_weights(str(later / "damaged.pth")).tensors


def test_the_folder_for_peft_has_the_best_adapters_and_head(adapted):
    expected = {}
    for name, tensor in load_checkpoint(adapted / "best.pth")["model"].items():
        if ".lora_" in name:
            expected[f"base_model.model.{name}.weight"] = tensor
        if name.startswith("head."):
            expected[f"base_model.model.{name}"] = tensor
    assert_same_state(load_file(adapted / "adapter" / "adapter_model.safetensors"), expected)
    config = read_json(adapted / "adapter" / "adapter_config.json")
    assert (config["r"], config["lora_alpha"], len(config["target_modules"])) == (4, 10, 8)


@mark.parametrize("optimizer, is_zero", [("AdamW", True), ("lamb", False)])
def test_a_new_head_is_zero_but_for_steps_in_proportion_to_the_weights(optimizer, is_zero, backbone, tmp_path):
    """LAMB keeps zeros almost zero: 10% of the digits are right after three epochs, not 39%."""
    steps = cli(f"TRAIN.MAX_STEPS=1 REPORT_FREQ=1 TRAIN.OPTIMIZER.NAME={optimizer}")
    folder = train([*digits_flags(tmp_path), *steps, f"-pretrained={backbone}"])
    first, *_ = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    assert (first["loss"] == approx(math.log(10), abs=2e-5)) == is_zero
