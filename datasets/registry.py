"""What it is trained on: `DATA.DATASET` -> source."""

from configs.schema import Config
from datasets.decoding.bad_images import BadImageList
from datasets.loading.loader import BatchReader, Loader
from datasets.loading.sampler import EvalSampler, TrainSampler
from datasets.sources import packed
from datasets.sources import samples as sources
from datasets.sources.checks import findings_of
from datasets.sources.samples import Samples
from datasets.transforms.host import TrainTransform
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError, combine_findings, did_you_mean

DATASETS = {
    "imagenet2012": sources.imagenet2012,
    "folder": sources.folder,
    "csv": sources.csv,
    "caltech101": sources.caltech101,
    "caltech256": sources.caltech256,
    "cifar10": sources.cifar10,
    "cifar100": sources.cifar100,
    "packed": packed.read_packed,
    "digits": sources.digits,
    "fake": sources.fake,
}


def read_samples(config: Config, context: ProcessContext, *splits: str) -> list[Samples]:
    """The samples of 'train', of 'val', or of both, with all checked that can be without opening an image.

    Every rank must call it. The main process alone looks for the files, and all raise what it found.

    Raises:
        UserError: an unknown data set; or whatever is wrong with the data, all at once: lists and folders that are
            missing or malformed, files that are missing or may not be read, labels that the model has no class for,
            fewer training samples than one batch on every rank.
    """
    name = config.data.dataset
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        raise UserError(f"DATA.DATASET: unknown data set {name}{did_you_mean(name, DATASETS)} (known: {known})")
    samples, error = _read(config, context, splits) if context.is_main else ([], None)
    error = broadcast_object(error, context)
    if not (context.is_main or error):
        samples, error = _read(config, context, splits)  # what the main process has kept by now, if it is on this host
    if error:
        raise error
    return samples


def _read(config: Config, context: ProcessContext, splits: tuple[str, ...]) -> tuple[list[Samples], UserError | None]:
    samples, findings = [], []
    for split in splits:
        try:
            samples.append(DATASETS[config.data.dataset](config.data, split))
        except UserError as error:
            findings.append(str(error))
        else:
            findings += findings_of(samples[-1], split, config, context)
    if not findings:
        return samples, None
    findings = list(dict.fromkeys(findings))  # two splits of one list have the same
    return samples, combine_findings(f"{config.data.data_path}: {len(findings)} things to put right", findings)


def train_sampler(config: Config, samples: Samples, context: ProcessContext) -> TrainSampler:
    return TrainSampler(
        len(samples),
        config.data.batch_size,
        config.train.num_epochs,
        config.seed,
        context.rank,
        context.world_size,
    )


def train_loader(
    config: Config,
    samples: Samples,
    sampler: TrainSampler,
    context: ProcessContext,
    bad_images: BadImageList | None = None,
) -> Loader:
    reader = BatchReader(samples, config.data, TrainTransform(config.data, config.train, config.seed))
    return Loader(reader, sampler, context, config.timeout_seconds, bad_images)


def eval_loader(
    config: Config, samples: Samples, context: ProcessContext, bad_images: BadImageList | None = None
) -> Loader:
    largest_useful = -(-len(samples) // context.world_size)
    batch_size = min(config.data.eval_batch_size, largest_useful)
    sampler = EvalSampler(len(samples), batch_size, context.rank, context.world_size)
    return Loader(BatchReader(samples, config.data, None), sampler, context, config.timeout_seconds, bad_images)
