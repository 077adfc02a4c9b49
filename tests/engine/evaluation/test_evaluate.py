"""One evaluation: the same results on any number of ranks, unreadable images, test-time augmentation."""

from dataclasses import fields, replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import torch
import torch.nn.functional as F
from conftest import CPU, GREY, TINY_RESNET, cli, config_for, eval_loader_for, read_result, samples_for
from conftest import evaluate as run_evaluation
from pytest import MonkeyPatch, approx, fixture, mark
from timm import create_model
from torch import nn

from configs.schema import Amp, Config
from datasets.transforms.device import Normalize
from engine.evaluation import evaluate, fast
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.results import SampleResults
from engine.parallel import Strategy
from engine.precision.policy import Precision
from models.fast import NORMS
from utils.distributed import ProcessContext


@fixture
def digits() -> Config:
    options = [*GREY, *cli("DATA.IMAGE_SIZE=8 DATA.CROP_PCT=1.0 MODEL.PATCH_SIZE=4 MODEL.NUM_CLASSES=10")]
    return config_for("-dataset=digits", "-batch_size_eval=50", "-opts", *options)


@fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.GELU(), nn.Linear(300, 10))


def evaluator_for(config: Config, context: ProcessContext, flips: bool = False) -> Evaluator:
    precision = Precision(Amp(), context.device)
    return Evaluator(Normalize(config.data), precision, Strategy(), context, flips, keeps_logits=True)


def test_features_in_fp32_meet_a_head_in_half(cpu):
    """As in O3, where a probe of stored features is the start of a new head."""
    evaluator = evaluator_for(config_for(), cpu)
    features = torch.randn(6, 4)
    head = nn.Linear(4, 3).to(torch.bfloat16)
    samples = SimpleNamespace(targets=np.arange(6) % 3)
    results = evaluator.results_of_features(head, samples, features.numpy(), {})
    assert np.array_equal(results.logits, head(features.bfloat16()).half().detach().numpy())


def results_on(context: ProcessContext, config: Config, model: nn.Module) -> SampleResults | None:
    """The copies of all batches take more memory than the results: two are gathered at a time."""
    (samples,) = samples_for(config, CPU, "val")
    loader = eval_loader_for(config, samples, context)
    with MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "_BATCHES_PER_GATHER", 2)
        patch.setattr(evaluate, "gather_to_main", gather := Mock(wraps=evaluate.gather_to_main))
        (results,) = evaluator_for(config, context).classify(model, loader, 3, len(loader))
    assert max(len(call.args[0]) for call in gather.call_args_list) <= 2
    return results


@mark.slow
@mark.parametrize("batch_size", [50, 200])  # 8 batches, and 2: fewer than three ranks
def test_results_are_equal_to_the_last_bit_on_any_number_of_ranks(digits, model, ranks, batch_size):
    config = digits.with_data(batch_size_eval=batch_size)
    one = results_on(CPU, config, model)
    assert one.labels.shape == (360, 3)
    for number in (2, 3):
        main, *others = ranks(number)(results_on, config, model)
        assert others == [None] * (number - 1)
        for field in fields(SampleResults):
            assert np.array_equal(getattr(one, field.name), getattr(main, field.name)), field.name


@mark.parametrize("flips", [False, True])
def test_losses_and_probabilities_are_those_of_torch(digits, model, cpu, flips):
    """With EVAL.TTA=flip, of the mean of the logits of an image and its mirror image."""
    (samples,) = samples_for(digits, cpu, "val")
    evaluator = evaluator_for(digits, cpu, flips)
    loader = eval_loader_for(digits, samples, cpu)
    metrics, results = evaluator.evaluate(model, loader)
    images = evaluator.transform(torch.cat([batch.images for batch in loader])[: len(samples)])
    with torch.no_grad():
        logits = (model(images) + model(images.flip(-1))) / 2 if flips else model(images)
    losses = nn.functional.cross_entropy(logits, torch.tensor(samples.targets), reduction="none")
    best = logits.softmax(-1).topk(5)
    assert torch.allclose(torch.from_numpy(results.losses), losses, atol=1e-5)
    assert torch.equal(torch.from_numpy(results.labels).long(), best.indices)
    assert torch.allclose(torch.from_numpy(results.probabilities), best.values, atol=1e-6)
    assert metrics.loss == approx(losses.mean().item(), abs=1e-5)
    assert results.logits.dtype == np.float16
    np.testing.assert_allclose(results.logits, logits.numpy(), rtol=2**-10, atol=1e-5)


def test_logits_beyond_float16_and_of_masked_classes_are_finite(digits, cpu):
    (samples,) = samples_for(digits, cpu, "val")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[1].bias[:2] = torch.tensor([1e6, -1e6])
    mask = torch.arange(10) != 2
    evaluator = replace(evaluator_for(digits, cpu), class_mask=mask)
    _, results = evaluator.evaluate(model, eval_loader_for(digits, samples, cpu))
    assert np.isfinite(results.logits).all()
    assert np.unique(results.logits[:, :3], axis=0).tolist() == [[65504, -65504, -65504]]


def test_many_images_pass_no_batch_norm_in_fp32_and_have_the_figures_of_few(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = create_model("test_resnet", num_classes=10, in_chans=1).train()
    model(torch.rand(64, 1, 32, 32))  # running statistics
    weights = tmp_path / "weights.pth"
    torch.save(model.state_dict(), weights)
    argv = [*cli(f"-dataset=digits -pretrained={weights} -num_workers=0 -opts"), *TINY_RESNET, *GREY]
    normed = []
    batch_norm = F.batch_norm

    def counted(images, *arguments, **keywords):
        normed.append(len(images))
        return batch_norm(images, *arguments, **keywords)

    def result(folder, *more):
        normed.clear()
        figures = read_result(run_evaluation(tmp_path / folder, *argv, *more))
        return figures, sum(size > 2 for size in normed)  # not the proof

    monkeypatch.setattr(F, "batch_norm", counted)
    folded, passes = result("folded")
    assert passes == 0
    assert result("half", "AMP.ENABLED=true")[1] > 0
    monkeypatch.setitem(fast._FROM, NORMS, 361)
    plain, passes = result("plain")
    assert passes > 0
    assert folded["top1"] == plain["top1"]
    assert folded["loss"] == approx(plain["loss"], rel=1e-6)
