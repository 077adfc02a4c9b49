"""Runs with MODEL.TUNE: their best weights have plain names, and adapters in them, in all later runs."""

import json

import pytest
import torch
from conftest import only_run, read_result, states, train
from safetensors.torch import load_file

from configs.command_line import parse_command_line
from engine.checkpoint.files import load_checkpoint
from engine.commands.run import run
from models.tuning import merge_adapters
from models.weights.read import read_weights
from scripts import export


@pytest.fixture(scope="module")
def adapted(trained_digits):
    """The folder of a run with adapters, on weights of another run."""
    pretrained = trained_digits() / "best.pth"
    options = ["MODEL.TUNE=lora", "MODEL.LORA={RANK: 4, ALPHA: 10.0}", "TRAIN.BASE_LR=1e-2"]
    return trained_digits(f"MODEL.PRETRAINED={pretrained}", *options)


def test_evaluation_and_export_merge_the_adapters(adapted, tmp_path, cpu):
    assert export.main([str(adapted), "-format", "safetensors", f"-output={tmp_path / 'merged.safetensors'}"]) == 0
    found = []
    for file in (adapted / "best.pth", tmp_path / "merged.safetensors"):
        run(parse_command_line(["-eval", f"-pretrained={file}", f"-output={tmp_path / file.stem}"]), cpu)
        found.append(read_result(only_run(tmp_path / file.stem, "eval")))
    for result in found:
        best = load_checkpoint(adapted / "best.pth")["best"]
        assert result["top1"] == best["top1"] and result["loss"] == pytest.approx(best["loss"], rel=1e-6)


def test_a_later_run_starts_from_the_merged_weights(adapted, digits_argv, trained_digits, cpu):
    state = load_checkpoint(adapted / "best.pth")["model"]
    merged = merge_adapters(state, alpha=10)
    assert merged.keys() == states(trained_digits())["model"].keys() and len(state) == len(merged) + 2 * 8
    frozen = [name for name in merged if not name.startswith("head.")]
    later = train(
        [*digits_argv, f"MODEL.PRETRAINED={adapted / 'best.pth'}", "MODEL.TUNE=head", "TRAIN.MAX_STEPS=1"], cpu
    )
    assert all(torch.equal(states(later)["model"][name], merged[name]) for name in frozen)
    name = "blocks.0.attn.qkv.weight"
    assert not torch.equal(merged[name], state[name])
    damaged = {"model": state, "options": "MODEL: {}"}
    torch.save(damaged, later / "damaged.pth")
    with pytest.raises(Exception, match=r"damaged\.pth: is damaged"):
        read_weights(str(later / "damaged.pth"))


def test_the_folder_for_peft_has_the_best_adapters_and_head(adapted):
    tensors, state = load_file(adapted / "adapter" / "adapter_model.safetensors"), load_checkpoint(adapted / "best.pth")
    names = {f"base_model.model.{name}{'.weight' if '.lora_' in name else ''}": name for name in state["model"]}
    assert {names[name] for name in tensors} == {n for n in state["model"] if ".lora_" in n or n.startswith("head.")}
    assert all(torch.equal(tensor, state["model"][names[name]]) for name, tensor in tensors.items())
    config = json.loads((adapted / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], len(config["target_modules"])) == (4, 10, 8)
