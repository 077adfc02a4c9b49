"""The batches of a training, from any position of a run, and of an evaluation."""

from collections.abc import Iterator

from configs.batch_plan import BatchPlan
from configs.schema import Config, Data
from datasets.batch import PREFETCH_FACTOR, Batch
from datasets.decoding.bad_images import BadImageList
from datasets.loading.loader import BatchReader, Loader, num_workers
from datasets.loading.sampler import EvalSampler, ShardWindows, TrainSampler
from datasets.sources.samples import Samples
from datasets.transforms.host import build_eval_host_transform, build_host_transform
from utils.distributed import ProcessContext


class BatchSource:
    """The training batches of one rank, on its device.

    The order of samples is a pure function of (seed, epoch), on any number of ranks. Every rank has the same number of
    batches, and each batch is full.

    num_samples, in_memory: of the data set. Samples that do not fill a batch on every rank, or a step, are dropped.
    prefetched_batches: loaded ahead of the one in use. workers_note: the number of loading workers, for the log.
    """

    def __init__(self, reader: BatchReader, sampler: TrainSampler, context: ProcessContext) -> None:
        self._reader, self._sampler, self._context = reader, sampler, context
        self.num_samples, self.in_memory = sampler.num_samples, reader.samples.in_memory
        workers, reason = num_workers(reader, context)
        self.prefetched_batches = PREFETCH_FACTOR * workers
        self.workers_note = f"{workers} loading workers per rank ({reason})"

    def iterate(
        self, epoch: int, batch: int, num_epochs: int, bad_images: BadImageList | None = None
    ) -> Iterator[Batch]:
        """The batches from `batch` of `epoch` to the end of epoch `num_epochs` - 1; all count from 0.

        Unusable images are added to `bad_images`.

        Raises:
            UserError: a sample cannot be read, or a loading worker fails.
        """
        sampler = self._sampler.from_position(epoch, batch, num_epochs)
        return iter(Loader(self._reader, sampler, self._context, bad_images))


def build_train_batches(config: Config, samples: Samples, context: ProcessContext, batch: BatchPlan) -> BatchSource:
    """The training batches of this rank, as many as the steps of `batch` need."""
    data, train = config.data, config.train
    reader = BatchReader(samples, data, build_host_transform(data, train, config.seed), config.timeout_seconds)
    sampler = TrainSampler(
        len(samples),
        batch.micro_batch,
        train.num_epochs,
        config.seed,
        context.rank,
        context.world_size,
        repeats=data.repeated_augmentation,
        batches_per_step=batch.accumulation if batch.whole_steps else 1,
        balanced_targets=samples.targets if data.balanced_sampling else None,
        windows=shard_windows(samples, data),
    )
    return BatchSource(reader, sampler, context)


def shard_windows(samples: Samples, data: Data) -> ShardWindows | None:
    """The windows in which the training samples are shuffled; None without shards, or with DATA.BALANCED_SAMPLING."""
    return None if data.balanced_sampling else samples.windows


def build_eval_loader(
    data: Data,
    samples: Samples,
    context: ProcessContext,
    timeout_seconds: float,
    bad_images: BadImageList | None = None,
    first: int = 0,
) -> Loader:
    """The validation batches of this rank: each sample from `first` on once over all ranks."""
    batch_size = min(data.eval_batch_size, len(samples))
    sampler = EvalSampler(len(samples), batch_size, context.rank, context.world_size, first)
    reader = BatchReader(samples, data, build_eval_host_transform(data), timeout_seconds)
    return Loader(reader, sampler, context, bad_images)
