"""The models of timm by name, and the functions that all models built by timm share."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher
from typing import Any, get_args
from urllib.request import urlopen

import timm
import torch
from timm.data import resolve_data_config
from timm.models import build_model_with_cfg
from torch import nn

from configs.programs import name_of_model, with_shown_recipes
from configs.schema import Data
from configs.schema.families.family import OWN_KEYS, TimmModel
from configs.schema.model import Model
from configs.schema.section import without
from configs.yaml_io import Values
from utils.device import find_shortage, on_meta_device
from utils.errors import UserError, did_you_mean, first_line
from utils.file_formats.hf_folder import ANSWER_SECONDS, WEIGHTS, download, explained
from utils.torch_compat import BatchNorm

_RATES = {name: key for name, key in OWN_KEYS.items() if name.endswith("_rate")}
# DATA.RESIZE, by timm's crop mode, and by OpenCLIP's resize mode
RESIZE = {"center": "crop", "squash": "squash", "border": "pad", "shortest": "crop", "longest": "pad"}
LOADER_ARGUMENTS = {
    key for function in (timm.create_model, build_model_with_cfg) for key in inspect.signature(function).parameters
}


def check_name(name: str) -> None:
    """Raises UserError: timm has no model of this name."""

    def likeness(one: str) -> tuple[float, bool, int]:  # by its beginning; of equal ones the usual, or the shortest
        return SequenceMatcher(None, one[: len(name)], name.lower()).ratio(), "_patch16_224" in one, -len(one)

    known = timm.list_models(include_tags="." in name)
    if not timm.is_model(name) or ("." in name and name not in known):
        near = max(known, key=likeness)
        hint = f"; did you mean {near}?" if likeness(near)[0] > 0.7 else ""
        if of_timm := name_of_model(name):
            hint = f"; timm's name is {of_timm}"
        raise UserError(f"MODEL.NAME: timm has no model {name[:80]}{hint}")


def build_timm(options: TimmModel, data: Data) -> nn.Module:
    """The timm model `MODEL.NAME`; `MODEL.PRETRAINED: timm` downloads its published weights.

    Raises UserError: unknown name, an argument or an image size that this model does not accept, a failed download.
    """
    name = options.name
    kwargs = options.kwargs or {}
    check_name(name)
    arguments: Values = {"img_size": data.image_size} | shared_arguments(options, data) | kwargs
    with errors_of_building(f"MODEL.NAME: {name}", data):
        if kwargs:
            check_kwargs(name, kwargs)
        if options.pretrained == "timm":
            arguments |= {"pretrained": True, "pretrained_cfg_overlay": find_published(options)}
        model = _create(name, arguments)
    check_image_size(model, name, data)
    return model


def _create(name: str, arguments: Values) -> nn.Module:
    """timm's model. A size of images, and rates of 0, are left out where its constructor has no such argument."""
    optional = {key for key in arguments if key == "img_size" or (key in _RATES and arguments[key] == 0)}
    try:
        return timm.create_model(name, **arguments)
    except TypeError as error:
        unknown = [key for key in optional if f"'{key}'" in str(error)]
        if not unknown:
            raise
    return _create(name, without(arguments, unknown))


def find_published(options: Model) -> dict[str, str]:
    """The file with timm's weights of a model, as timm's `pretrained_cfg_overlay`; empty if timm itself downloads it.

    Raises UserError: timm has none, or they cannot be downloaded.
    """
    name = options.name
    published: Any = timm.get_pretrained_cfg(name)
    scratch = "-opts MODEL.PRETRAINED=null"
    if options.tune != "full":  # a random backbone would not be trained
        scratch = with_shown_recipes(f"-cfg=configs/folder_small.yaml {scratch} MODEL.TUNE=full")
    fix = f"give -pretrained=FILE of them, or train from scratch with {scratch}"
    if not published or not published.has_weights:
        raise UserError(f"MODEL.NAME: timm has no weights of {name}; give a file of weights")
    if published.hf_hub_id:
        return {"file": str(download(*published_on_hub(name), fix))}
    if published.url:
        with explained(published.url, fix):
            urlopen(published.url, timeout=ANSWER_SECONDS).close()
    return {}


def published_on_hub(name: str) -> tuple[str, tuple[str, ...]]:
    """The repository with timm's weights of a model, and the names that their file may have; no names without one."""
    published = timm.get_pretrained_cfg(name)
    if not published or not published.hf_hub_id:
        return "", ()
    return published.hf_hub_id, (published.hf_hub_filename,) if published.hf_hub_filename else WEIGHTS


def check_kwargs(name: str, kwargs: Values) -> None:
    """Raises UserError for a key of MODEL.KWARGS that the class of the model does not have, or that has its own key."""
    with on_meta_device():
        model_class = type(timm.create_model(name))
    entry = inspect.signature(timm.model_entrypoint(name)).parameters.keys()
    known = (class_arguments(model_class) | entry) - LOADER_ARGUMENTS
    if hasattr(sys.modules[model_class.__module__], "resolve_bn_args"):  # of EfficientNets
        known |= {"bn_eps"}
    for key in kwargs.keys() - (known - OWN_KEYS.keys()):
        hint = f"; its key is {OWN_KEYS[key]}" if key in OWN_KEYS else did_you_mean(key, known)
        raise UserError(f"MODEL.KWARGS: {key[:80]} is no further argument of {model_class.__name__}{hint}")


def class_arguments(model_class: type[nn.Module]) -> set[str]:
    """The arguments of the constructors of the class and its bases; the fields of a configuration, not itself.

    No name may follow from **kwargs: timm's functions take some for themselves, and download any address.
    """
    names = set()
    for owner in model_class.__mro__[:-1]:
        parameters = inspect.signature(owner).parameters
        for name, parameter in parameters.items():
            configs = [*filter(is_dataclass, (parameter.annotation, *get_args(parameter.annotation)))]
            if not configs:
                names.add(name)
            elif "kwargs" in parameters:
                names |= {field.name for config in configs for field in fields(config)}
    return names


def published_preprocessing(name: str) -> tuple[Values, Values, str]:
    """As `preprocessing_of` timm's `pretrained_cfg` of the weights `name`, and their name in timm.

    Empty for a name that timm does not know: `build_timm` refuses it.
    """
    published = None
    with suppress(RuntimeError):  # an unknown tag
        published = timm.get_pretrained_cfg(name)
    if published is None:
        return {}, {}, ""
    return *preprocessing_of(published.to_dict()), f"timm's {published.architecture}.{published.tag}"


def preprocessing_of(published: Values) -> tuple[Values, Values]:
    """The keys of DATA in a `pretrained_cfg` of timm's: of a training, and the ones that differ in an evaluation.

    An evaluation has the published test size, test crop and crop mode, as in timm's validate.py.
    """
    train, test = (resolve_data_config(pretrained_cfg=published, use_test_size=is_test) for is_test in (False, True))
    of_train, of_test = (
        {
            "IMAGE_SIZE": Data.model_validate({"IMAGE_SIZE": values["input_size"][1:]}).image_size,
            "CROP_PCT": values["crop_pct"],
        }
        for values in (train, test)
    )
    differing = {key: value for key, value in of_test.items() if value != of_train[key]}
    resize = RESIZE.get(test["crop_mode"], "crop")
    if resize != "crop":
        differing |= {"RESIZE": resize, "CROP_PCT": of_test["CROP_PCT"]}
    same = {"INTERPOLATION": train["interpolation"], "IMAGENET_MEAN": train["mean"], "IMAGENET_STD": train["std"]}
    return of_train | same, differing


def shared_arguments(options: Model, data: Data) -> Values:
    """The arguments that timm's models have in common.

    Not all families accept all rates: 0 is an argument of TYPE timm only, whose models have rates of their own.
    """
    rates = {rate: getattr(options, key.removeprefix("MODEL.").lower()) for rate, key in _RATES.items()}
    numbers = {"num_classes": options.num_logits, "in_chans": data.image_channels}
    left_out = [None] if options.type == "timm" else [None, 0]
    return numbers | {key: rate for key, rate in rates.items() if rate not in left_out}


@contextmanager
def errors_of_building(model: str, data: Data) -> Iterator[None]:
    """Converts the exceptions of constructors of timm and transformers into a UserError; failed downloads stay."""
    try:
        yield
    except (UserError, OSError):
        raise
    except TypeError as error:
        for rate, key in _RATES.items():
            if f"'{rate}'" in str(error):
                raise UserError(f"{model} does not accept an option that is set: {key}; set it to 0") from None
        raise UserError(f"{model} does not accept an option that is set: {first_line(error)}; remove it") from None
    except Exception as error:  # of many types, by family
        if find_shortage(error):  # the entry script names what to reduce
            raise
        raise UserError(
            f"{model} cannot be built with its MODEL keys and DATA.IMAGE_SIZE {data.image_size}: {first_line(error)}"
        ) from error


def check_image_size(model: nn.Module, name: str, data: Data) -> None:
    """Runs one forward pass in evaluation mode: many families detect only there that image size and keys do not fit.

    The weights and the running statistics stay unchanged. Raises UserError if the pass fails.
    """
    device = next(model.parameters()).device
    image = torch.zeros((1, *data.image_shape), device=device)
    try:
        with torch.no_grad():
            model.eval()(image)
    except Exception as error:  # of many types, by family
        given = f"its MODEL keys, DATA.IMAGE_SIZE {data.image_size} and IMAGE_CHANNELS {data.image_channels}"
        raise UserError(
            f"{name} with {given}: a forward pass fails ({first_line(error)}); change one of them"
        ) from error
    finally:
        model.train()


def classifiers(model: nn.Module) -> tuple[nn.Module, ...]:
    """timm's classifier; both of a distilled model; with VOLO's auxiliary one, which `get_classifier` leaves out."""
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is None:
        return ()
    classifier = get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    auxiliary = getattr(model, "aux_head", None)
    return heads if auxiliary is None else (*heads, auxiliary)


def linear_head(model: nn.Module) -> nn.Linear | None:
    """The head, if it is one linear layer with a bias, whose inputs are timm's `pre_logits`; None for any other."""
    heads = classifiers(model)
    head = heads[0] if len(heads) == 1 else None
    if not isinstance(head, nn.Linear) or head.bias is None:
        return None
    holder = next(module for module in model.modules() if head in module.children())
    # As in EfficientViT and SHViT, whose `pre_logits` are the inputs of the norm
    has_norm = holder is not model and any(isinstance(one, BatchNorm) for one in holder.children())
    return None if has_norm else head
