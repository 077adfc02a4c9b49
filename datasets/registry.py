"""The table DATA.DATASET -> data source, and reading a data set with all checks."""

from collections.abc import Callable

from configs.schema import Data
from datasets.sources.checks import find_invalid_labels, find_too_few_samples
from datasets.sources.cifar import cifar10, cifar100
from datasets.sources.class_folders import caltech101, caltech256, folder
from datasets.sources.in_memory import digits, fake
from datasets.sources.lists import csv_tables, imagenet2012
from datasets.sources.packed import packed
from datasets.sources.samples import Samples
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError, combine_findings, did_you_mean

# Each source takes the DATA options and a split, 'train' or 'val'. It raises a UserError if nothing can be read.
DATASETS: dict[str, Callable[[Data, str], Samples]] = {
    "imagenet2012": imagenet2012,
    "folder": folder,
    "csv": csv_tables,
    "caltech101": caltech101,
    "caltech256": caltech256,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "packed": packed,
    "digits": digits,
    "fake": fake,
}


def read_samples(data: Data, num_classes: int, context: ProcessContext, *splits: str) -> list[Samples]:
    """The samples of each split ('train', 'val'), with every check that does not open an image.

    Every rank must call it. Only the main process looks for files, and every rank raises the main process's error; the
    other ranks only read the lists or list the folders.

    Raises:
        UserError: an unknown data set; or, in one report, all problems of all splits: missing or malformed lists and
            folders, missing or unreadable files, labels that are not below `num_classes`, fewer training samples than
            one batch on every rank.
    """
    if data.dataset not in DATASETS:
        known = ", ".join(DATASETS)
        raise UserError(
            f"DATA.DATASET: unknown data set {data.dataset[:80]}{did_you_mean(data.dataset, DATASETS)} (known: {known})"
        )
    samples, error = _read(data, num_classes, context, splits) if context.is_main else ([], None)
    error = broadcast_object(error, context)
    if not (context.is_main or error):
        samples, error = _read(data, num_classes, context, splits)
    if error:
        raise error
    return samples


def _read(
    data: Data, num_classes: int, context: ProcessContext, splits: tuple[str, ...]
) -> tuple[list[Samples], UserError | None]:
    samples, findings = [], []
    for split in splits:
        try:
            samples.append(DATASETS[data.dataset](data, split))
        except UserError as error:
            findings.append(str(error))
        else:
            findings += _find_problems(samples[-1], split, data, num_classes, context)
    if not findings:
        return samples, None
    findings = list(dict.fromkeys(findings))  # two splits of one list have the same findings
    return samples, combine_findings(f"{data.data_path}: {len(findings)} problems", findings)


def _find_problems(samples: Samples, split: str, data: Data, num_classes: int, context: ProcessContext) -> list[str]:
    findings = samples.findings + find_invalid_labels(samples, split, num_classes)
    if split == "train" and not samples.findings:
        findings += find_too_few_samples(len(samples), data.dataset, data.batch_size, context.world_size)
    if context.is_main:  # many ranks at once would overload a shared disk
        findings += samples.check_files()
    return findings
