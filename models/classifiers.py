"""The last layers of a model, whose output is the logits."""

from torch import nn


def classifiers(model: nn.Module) -> tuple[nn.Module, ...]:
    """timm's classifier; both of a distilled model; with VOLO's auxiliary one, which `get_classifier` leaves out."""
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is None:
        return ()
    classifier = get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    auxiliary = getattr(model, "aux_head", None)
    return heads if auxiliary is None else (*heads, auxiliary)
