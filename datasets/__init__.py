"""What it is trained on: `DATA.DATASET` -> source."""

from configs.schema import Config
from datasets import sources
from datasets.loader import BatchReader, Loader
from datasets.sampler import EvalSampler, TrainSampler
from datasets.sources import Samples
from datasets.transforms import TrainTransform
from utils.distributed import ProcessContext
from utils.errors import UserError, nearest

DATASETS = {
    "imagenet2012": sources.imagenet2012,
    "folder": sources.folder,
    "csv": sources.csv,
    "caltech101": sources.caltech101,
    "caltech256": sources.caltech256,
    "cifar10": sources.cifar10,
    "cifar100": sources.cifar100,
    "digits": sources.digits,
    "fake": sources.fake,
}


def read_samples(config: Config, split: str) -> Samples:
    """The samples of 'train' or 'val', labels checked against the model's classes.

    Raises:
        UserError: an unknown data set, missing or malformed files, a label the model has no class for.
    """
    name = config.data.dataset
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        raise UserError(f"DATA.DATASET: unknown data set {name}{nearest(name, DATASETS)} (known: {known})")
    samples = DATASETS[name](config.data, split)
    highest = int(samples.targets.max())
    if highest >= config.model.num_classes:
        raise UserError(
            f"{name}: {split} has labels up to {highest}, but MODEL.NUM_CLASSES is {config.model.num_classes}; "
            f"set it to {highest + 1} or more"
        )
    return samples


def train_sampler(config: Config, samples: Samples, context: ProcessContext) -> TrainSampler:
    """The order of training.

    Raises:
        UserError: there are fewer samples than one batch on every rank.
    """
    sampler = TrainSampler(
        len(samples),
        config.data.batch_size,
        config.train.num_epochs,
        config.seed,
        context.rank,
        context.world_size,
    )
    if sampler.batches_per_epoch == 0:
        raise UserError(
            f"{config.data.dataset}: {len(samples)} training samples do not fill one batch of "
            f"{config.data.batch_size} on {context.world_size} device(s); lower -batch_size"
        )
    return sampler


def train_loader(config: Config, samples: Samples, sampler: TrainSampler, context: ProcessContext) -> Loader:
    return Loader(BatchReader(samples, config.data, TrainTransform(config.data, config.seed)), sampler, context)


def eval_loader(config: Config, samples: Samples, context: ProcessContext) -> Loader:
    largest_useful = -(-len(samples) // context.world_size)
    batch_size = min(config.data.eval_batch_size, largest_useful)
    sampler = EvalSampler(len(samples), batch_size, context.rank, context.world_size)
    return Loader(BatchReader(samples, config.data, None), sampler, context)
