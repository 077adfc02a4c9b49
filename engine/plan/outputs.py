"""Which output of a model is which class: evidence for weights of other programs, whose files often name no classes."""

import re
from collections.abc import Sequence

from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import get_arch_pretrained_cfgs, is_model

from configs.schema.model import Model
from configs.weights import WeightsRecord
from datasets.sources.imagenet_sets import wordnet_ids
from datasets.sources.names import CLASS_FILE, find_ambiguity, list_names
from utils.errors import UserError


def match_outputs(
    names: Sequence[str], model: Model, record: WeightsRecord | None, classes: str | None
) -> tuple[list[int], list[str], str]:
    """The output of each class of data, for weights that do not name all; names of the outputs; their source, for logs.

    names: of the classes, in the order of DATA.CLASSES (`classes`), else of their bytes.

    Raises:
        UserError: neither the names nor the weights show the order; names the key that does.
    """
    number, in_order, weights = model.num_classes or len(names), list(range(len(names))), str(model.pretrained)
    fix = f"set DATA.CLASSES to {CLASS_FILE}"
    if classes and len(names) >= number:
        return in_order, list(names), f"in the order of DATA.CLASSES {classes}"
    if record and record.output_names and not classes:
        raise UserError(f"{weights}: its config.json names a part of {number} outputs; complete label_names, or {fix}")
    if not classes and (ids := wordnet_ids(number)):
        texts = descriptions(subset) if (subset := imagenet_subset(model, record)) else [""] * number
        outputs = _by_name(names, ids, texts)
        wrong = [name for name, output in zip(names, outputs, strict=True) if output < 0 or outputs.count(output) > 1]
        if not wrong and all(map(_wordnet_id, names)):
            return outputs, ids, "ImageNet's, by WordNet id"
        if not wrong:
            return outputs, texts, f"timm's of {subset}, by their English names"
        if subset and (len(names) < number or 2 * len(wrong) < len(names)):
            problem = f"{list_names(wrong)}: not timm's name of exactly one class of {subset}, and {weights} names none"
            raise UserError(f"{problem}; rename the classes to WordNet ids, or {fix}")
    if len(names) < number:
        raise UserError(f"{weights}: has {number} outputs without names, and the data {len(names)} classes; {fix}")
    if ambiguity := find_ambiguity(names):
        raise UserError(f"{weights}: has no class names, and {ambiguity}")
    return in_order, list(names), "from the data, in their order"


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


def descriptions(subset: str) -> list[str]:
    """timm's description of each class of a part of ImageNet, such as 'tench, Tinca tinca'."""
    return list(ImageNetInfo(subset).label_descriptions())


def _wordnet_id(name: str) -> str:
    """'n01440764' of 'n01440764_tench', else ''."""
    found = re.match(r"n\d{8}(?!\d)", name.lower())
    return found[0] if found else ""


def _by_name(names: Sequence[str], ids: Sequence[str], texts: Sequence[str]) -> list[int]:
    """The class of each name by its WordNet id, its description, or a name in it; -1 if none or several have it."""

    def plain(name: str) -> str:
        return _wordnet_id(name) or " ".join(re.findall(r"[^\W_]+", name.casefold()))

    classes: dict[str, set[int]] = {}
    for label, (wordnet_id, text) in enumerate(zip(ids, texts, strict=True)):
        for name in (wordnet_id, plain(text), *map(plain, text.split(","))):
            classes.setdefault(name, set()).add(label)
    found = [classes.get(plain(name), ()) for name in names]
    return [min(labels) if len(labels) == 1 else -1 for labels in found]
