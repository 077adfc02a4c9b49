"""The model of an evaluation, as its weights describe it: the architecture, and the names of its classes."""

from pydantic import ValidationError
from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import get_pretrained_cfg

from configs.reading.model_flag import architecture
from configs.schema import Config, Model
from configs.schema.families.registry import MODEL_SECTIONS
from datasets.sources.samples import Samples
from engine.checkpoint.trained_on import TrainedOn
from utils.errors import UserError

_OF_EVERY_MODEL = Model.model_fields.keys() - {"type", "name"}


def with_model_of(trained_on: TrainedOn, config: Config) -> tuple[Config, list[str]]:
    """The options with the checkpoint's architecture, unless the user's describe one, and lines for the log.

    Raises:
        UserError: the checkpoint describes no model.
    """
    written = config.model.model_fields_set
    if not written <= _OF_EVERY_MODEL:
        return config, []
    values = architecture(trained_on.model) | {name.upper(): getattr(config.model, name) for name in written}
    try:
        model = MODEL_SECTIONS[values["TYPE"]].model_validate(values)
    except (KeyError, TypeError, ValidationError):
        raise UserError(
            f"{config.model.pretrained}: its options describe no model of this version; give the model with -cfg"
        ) from None
    return config.model_copy(update={"model": model}), [f"Model: {model.name}, as the checkpoint describes it"]


def name_classes(samples: Samples, trained_on: TrainedOn | None, model: Model) -> str:
    """Gives the samples the class names of the model; returns a line for the log.

    The names are those of the checkpoint, else those of the data. Weights that timm publishes for ImageNet-1k have the
    descriptions that timm ships. Other weights with 1000 classes may be of any data: their names are the labels.
    """
    if trained_on and trained_on.class_names:
        names, source = trained_on.class_names, "those of the checkpoint"
    elif samples.has_class_names:
        names, source = samples.class_names, "those of the data, in their order"
    elif subset := _imagenet_subset(model):
        info = ImageNetInfo(subset)
        names, source = [info.index_to_description(label) for label in range(info.num_classes())], f"timm's of {subset}"
    else:
        return "Class names: the labels, since the weights have no names"
    samples.class_names, samples.has_class_names = names, True
    return f"Class names: {source}"


def _imagenet_subset(model: Model) -> str | None:
    """timm's name of the part of ImageNet on which a published model of timm's was trained; None for other models."""
    if model.type != "timm" or model.pretrained != "timm":
        return None
    published = get_pretrained_cfg(model.name)
    if published is None or published.num_classes != model.num_classes:
        return None
    return infer_imagenet_subset(published)
