"""Computes the features of samples, by all ranks."""

from collections.abc import Callable

from configs.schema import Config
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import build_eval_loader
from datasets.sources.samples import Samples
from engine.evaluation.evaluate import Evaluator
from engine.features.store import FeatureFile
from models.features import FeatureModel
from utils.distributed import broadcast_object

_BATCHES_PER_WRITE = 8  # before a write, the host waits for the device


def extract(
    config: Config,
    samples: Samples,
    evaluator: Evaluator,
    model: FeatureModel,
    file: FeatureFile | None,
    bad_images: BadImageList | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> int:
    """Adds the features that `file`, which the main process alone has, lacks; a collective call.

    The images are transformed, batched and computed as in an evaluation; with EVAL.TTA flip, features are the mean over
    an image and its mirror image. Calls `after_batch` after each batch. Returns the number of computed samples.
    """
    first = broadcast_object(file.num_done if file else 0, evaluator.context)
    if first == len(samples):
        return 0
    batches = build_eval_loader(config.data, samples, evaluator.context, config.timeout_seconds, bad_images, first)
    keep = lambda outputs, targets: {"features": outputs}  # noqa: E731
    for computed in evaluator.compute(model, batches, keep, _BATCHES_PER_WRITE, after_batch):
        if file and computed:
            file.append(computed[0]["features"], computed[1])
    return len(samples) - first
