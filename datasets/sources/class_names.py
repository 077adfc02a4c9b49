"""Class names: the number of classes of a data set, and labels by the class names of a checkpoint.

Names are Unicode text in the form NFC: macOS decomposes the names of files (NFD), and Linux keeps them as they are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from configs.data_sets import properties_of
from configs.reading.yaml_io import shorten
from datasets.sources.samples import Samples

_MAX_NAMES = 20  # in an error message


def map_labels(names: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """The position in `known` of each of `names`, int64 (classes,); -1 for a name that is not in it."""
    if list(names) == list(known):
        return np.arange(len(known))
    position = {name: label for label, name in enumerate(known)}
    return np.array([position.get(name, -1) for name in names], dtype=np.int64)


def number_by(known: Sequence[str], samples: Samples, data_path: str, needs_all: bool) -> list[str]:
    """Gives the samples the labels of the classes `known`, by name. Samples without class names keep their labels.

    Returns error messages: a class with images is not in `known`; with `needs_all`, also: the samples lack a class of
    `known`. If there are any, it changes nothing.
    """
    if not samples.has_class_names:
        samples.notes.append("the data has no class names; its labels are used as they are")
        return []
    labels = map_labels(samples.class_names, known)
    used = range(len(labels)) if needs_all else np.flatnonzero(samples.class_counts(len(labels)))
    unknown = [samples.class_names[label] for label in used if labels[label] < 0]
    missing = sorted(set(known).difference(samples.class_names)) if needs_all else []
    findings = []
    hint = "".join(f"; {variants} differ only in case" for variants in case_variants([*unknown, *known]))
    if unknown and needs_all:
        findings.append(
            f"{data_path}: new class {list_names(unknown)}; a resumed run has the classes of its checkpoint "
            f"({list_names(known)}){hint}. To train with it, start from the weights: python main_single_gpu.py "
            f"-cfg=RUN/config.yaml -pretrained=RUN/best.pth -data_path={data_path} -opts MODEL.NUM_CLASSES=null"
        )
    elif unknown:
        findings.append(
            f"{data_path}: {list_names(unknown)}: not a class of the checkpoint; rename or remove it (the checkpoint "
            f"has {list_names(known)}){hint}; -predict {data_path} labels unsorted images"
        )
    if missing:
        findings.append(
            f"{data_path}: {list_names(missing)}: a class of the checkpoint that the data does not have; add it"
        )
    if not findings and not np.array_equal(labels, np.arange(len(known))):
        samples.number_classes(labels, list(known))
    return findings


def check_names(samples: Samples, data_path: str) -> list[str]:
    """Finds classes with one name, of which one is not in NFC; adds warnings about names that differ only in case."""
    names = case_variants(samples.class_names)
    samples.notes += [f"Warning: classes {variants} differ only in case" for variants in names]
    twice = [name for name, count in Counter(samples.class_names).items() if count > 1]
    return [f"{data_path}: two classes are named {shorten(name)}, in two Unicode forms; merge them" for name in twice]


def case_variants(names: Iterable[str]) -> list[str]:
    """The names that differ only in case, such as "'Cat', 'cat'": a line for each group."""
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        groups.setdefault(name.casefold(), {})[name] = None
    return [list_names(sorted(group)) for group in groups.values() if len(group) > 1]


def names_of_labels(samples: Samples, num_classes: int) -> list[str]:
    """Returns a name for each label of a model: its class name, or the label itself if the data has no name for it."""
    named = samples.class_names if samples.has_class_names else []
    return [*named[:num_classes], *map(str, range(len(named), num_classes))]


def list_names(names: Sequence[str]) -> str:
    """'cat', 'dog' and at most 18 others, and the number of the remaining ones."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(shorten(name) for name in names[:_MAX_NAMES]) + more


def number_of_classes(dataset: str, splits: Sequence[Samples]) -> int:
    """The value of MODEL.NUM_CLASSES: null for these splits of a data set: the number of its classes.

    Labels of ImageNet's lists are numbers, and a list of a part of ImageNet does not contain all of them: as in
    PaddleViT, the number is 1000.
    """
    return properties_of(dataset).num_classes or max((len(samples.class_names) for samples in splits), default=0)
