"""Which output of a model is which class: evidence for weights of other programs, whose files often name no classes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import get_arch_pretrained_cfgs, is_model

from configs.schema.model import Model
from configs.weights import WeightsRecord
from datasets.sources.class_order import find_ambiguity
from datasets.sources.files.imagenet_sets import wordnet_ids
from datasets.sources.samples import list_names, map_labels
from utils.errors import UserError

_NAMES_FILE = "DATA.CLASSES to a file with the class of each output, one per line"


@dataclass(frozen=True)
class ClassOutputs:
    """outputs: the output of each class of the data. names: of all outputs. source: of this order, for the log."""

    outputs: list[int]
    names: list[str]
    source: str


def imagenet_subset(model: Model, record: WeightsRecord | None) -> str | None:
    """timm's name of the part of ImageNet whose classes the outputs are; None for other models.

    The evidence is the model's name: timm publishes weights of it for this part, with as many outputs as this model
    has. The runs of this program are of their own data.
    """
    architecture = model.name.partition(".")[0]
    if not model.pretrained or not is_model(architecture) or (record and "DATASET" in record.data):
        return None
    published = get_arch_pretrained_cfgs(architecture).values()
    counts = [cfg.num_classes for cfg in published if re.search(r"in(1|12|21|22)k", cfg.tag or "")]
    return infer_imagenet_subset({"num_classes": model.num_classes}) if model.num_classes in counts else None


def match_outputs(
    names: Sequence[str], model: Model, record: WeightsRecord | None, classes: str | None, weights: str
) -> ClassOutputs:
    """The outputs of weights that do not name them, for the class names of data that are numbered in their order.

    classes: DATA.CLASSES, which has ordered `names`. weights: the file, for messages.

    Raises:
        UserError: neither the names nor the weights show the order; names DATA.CLASSES, which decides.
    """
    number = len(names) if model.num_classes is None else model.num_classes
    if classes and len(names) < number:
        problem = f"{len(names)} classes, and {number} outputs of {weights}"
        raise UserError(f"DATA.CLASSES {classes}: {problem}; set {_NAMES_FILE}")
    if classes:
        return ClassOutputs(list(range(len(names))), list(names), f"in the order of DATA.CLASSES {classes}")
    if record and record.output_names:
        problem = f"config.json does not name each of {number} outputs"
        raise UserError(f"{weights}: its {problem}; complete its label_names, or set {_NAMES_FILE}")
    if set(names) <= set(ids := wordnet_ids(number)):
        return ClassOutputs(map_labels(names, ids).tolist(), ids, "ImageNet's, by WordNet id")
    if subset := imagenet_subset(model, record):
        known = _english_names(subset)
        outputs = [known.get(_plain(name), -1) for name in names]
        unknown = [name for name, output in zip(names, outputs, strict=True) if output < 0]
        if not unknown and len(set(outputs)) == len(outputs):
            return ClassOutputs(outputs, descriptions(subset), f"timm's of {subset}, by their English names")
        if len(names) < number or 2 * len(unknown) < len(names):
            wrong = list_names(unknown or [name for name in names if outputs.count(known[_plain(name)]) > 1])
            problem = f"has no class names, and {wrong}: not timm's name of exactly one class of {subset}"
            raise UserError(f"{weights}: {problem}; rename the classes to WordNet ids, or set {_NAMES_FILE}")
    if len(names) < number:
        problem = f"has {number} outputs without names, and the data {len(names)} classes"
        raise UserError(f"{weights}: {problem}; set {_NAMES_FILE}")
    if ambiguity := find_ambiguity(names):
        raise UserError(f"{weights}: has no class names, and {ambiguity}")
    return ClassOutputs(list(range(len(names))), list(names), "from the data, in their order")


def descriptions(subset: str) -> list[str]:
    """timm's description of each class of a part of ImageNet, such as 'tench, Tinca tinca'."""
    return list(ImageNetInfo(subset).label_descriptions())


def _english_names(subset: str) -> dict[str, int]:
    """The class of each description, and of each name in one; without names of several classes, such as crane."""
    classes: dict[str, set[int]] = {}
    for label, text in enumerate(descriptions(subset)):
        for name in (text, *text.split(",")):
            classes.setdefault(_plain(name), set()).add(label)
    return {name: min(labels) for name, labels in classes.items() if len(labels) == 1}


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))
