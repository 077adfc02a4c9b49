"""After the last batch of an evaluation or a prediction: passes of the model, and waits for the disk."""

from collections import Counter

from conftest import cli, evaluate, run_here
from pytest import fixture
from timm.models import VisionTransformer
from torch.nn.modules.module import register_module_forward_pre_hook

from engine.evaluation.evaluate import Evaluator
from engine.evaluation.results import NUM_MISTAKES
from engine.run.record import EVALUATION, PICTURES


@fixture
def after_last_batch(monkeypatch):
    """Counts, from the last batch on."""
    counts = Counter()
    compute = Evaluator.compute

    def counted(*arguments):
        yield from compute(*arguments)
        counts["batches"] = counts.pop("passes")
        counts["syncs"] = 0

    def count_pass(module, inputs):
        counts["passes"] += isinstance(module, VisionTransformer)

    monkeypatch.setattr(Evaluator, "compute", counted)
    monkeypatch.setattr("os.fsync", lambda descriptor: counts.update(syncs=1))
    hook = register_module_forward_pre_hook(count_pass)
    yield counts
    hook.remove()


def test_an_evaluation_makes_a_pass_per_map_of_its_page_and_syncs_no_picture(
    after_last_batch, trained_digits, tmp_path
):
    """Besides its tables (with the scores), `tables.json` and `summary.json`, the record is synced: four times, and
    twice with the digest of `images.csv.gz`, which is synced, too.
    """
    folder = evaluate(tmp_path, f"-resume={trained_digits()}", "-num_workers=0", pictures=True)
    pictures = folder / EVALUATION / PICTURES
    tables = [path for path in pictures.parent.iterdir() if path.is_file()]
    page = (folder / "report.html").read_text()
    assert after_last_batch["batches"] > 0
    assert after_last_batch["passes"] == NUM_MISTAKES == page.count("Attention map of the same image")
    assert len([*pictures.glob("*-attention.jpg")]) == NUM_MISTAKES == len([*pictures.iterdir()]) / 2
    assert 0 < after_last_batch["syncs"] <= len(tables) + 7


def test_a_prediction_makes_no_pass_and_syncs_its_table(after_last_batch, trained_digits, tmp_path):
    words = cli(f"-predict -resume={trained_digits()} -output={tmp_path / 'out'} -num_workers=0")
    assert run_here(*words, pictures=True) == 0
    assert after_last_batch["batches"] > 0
    assert (after_last_batch["passes"], after_last_batch["syncs"]) == (0, 1)
