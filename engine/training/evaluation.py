"""Evaluation: every sample counts once, on any number of ranks."""

from collections.abc import Callable

import torch
from torch import nn

from datasets.loading.loader import Loader
from engine.parallel.compile import run_eagerly
from engine.parallel.strategy import Strategy
from engine.precision.policy import Precision
from engine.training.loss import eval_loss
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import progress_bar
from utils.memory_shortage import IN_EVALUATION
from utils.metrics import BatchSums, Metrics, MetricSums, to_metrics


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Loader,
    transform: nn.Module,
    precision: Precision,
    strategy: Strategy,
    context: ProcessContext,
    after_batch: Callable[[], None] = lambda: None,
) -> Metrics:
    """Loss, top-1 and top-5 over the samples of all ranks; a collective call. Calls `after_batch` after each batch.

    Raises:
        UserError: no sample is readable.
    """
    model.eval()
    strategy.sync_buffers(model)
    sums = MetricSums(context.device)
    try:
        for batch in progress_bar("Validation", context, len(batches), unit="batch", over=batches):
            with precision.autocast(), run_eagerly():
                logits = model(transform(batch.images))
            loss = eval_loss(logits, batch.targets)
            sums.add_batch(BatchSums.of(loss, logits, batch.targets, batch.samples))
            after_batch()
    except Exception as error:
        error.add_note(IN_EVALUATION)
        raise
    metrics = to_metrics(sums.reduced(context))
    if not metrics.samples:
        raise UserError(
            "no image of the validation split can be read; bad_images_*.csv in the run's folder has the reasons"
        )
    return metrics
