"""The recipe of a training without -cfg: data, weights and device choose it, before anything depends on its name."""

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.command_line import Command, parse_command_line
from configs.flags import entry_parser, expand_words, parse_flags
from configs.load import model_sections
from configs.resolve import recipe_follows_data
from configs.schema.config import known_keys
from configs.weights import OF_EVERY_MODEL
from configs.yaml_io import format_value
from datasets.registry import recognize_dataset
from datasets.sources.source import source_class
from utils.distributed import single_process
from utils.errors import UserError, to_single_line
from utils.file_formats.hf_folder import HUB, LOCAL, find_on_hub, weight_file
from utils.notes import Note
from utils.system import lacks_gpus

_OWN_IMAGES = ("folder", "csv", "parquet")  # data sets
_FEW = 64  # images: an epoch of them has four steps, also where a recipe's batch is larger than the data
_LARGE = 50e6  # parameters: between ViT-S and ViT-B
_FROM_SCRATCH = "resnet10t"  # more accurate than the ViT of folder_small.yaml on a few thousand images (docs/log.md)
_RECIPES = Path(__file__).parents[2] / "configs"


def choose_recipe(command: Command, argv: list[str]) -> Command:
    """A training without -cfg on class folders or a table: with the recipe of `recipe_follows_data`, and a note; on the
    digits without keys of MODEL: with vit_digits.yaml.

    With -cfg, too, timm's model has its rate, see `rate_follows_tuning`. -resume=auto finds the run of the same choice.
    Other commands stay as they are, also those with an architecture in keys of MODEL, and with data that cannot be
    read, whose problems the plan reports. Each rank calls it before it joins the others. Raises UserError if given
    weights cannot be read.
    """
    data, model, train = (command.given.get(section, {}) for section in ("DATA", "MODEL", "TRAIN"))
    config, own_layers = command.config, any(f"MODEL.{key}" not in known_keys("timm") for key in model)
    if command.recipe:
        return _follow_model(command)
    if config.model.resume not in (None, "auto") or config.eval.enabled:
        return command
    if data.get("DATASET") == "digits" and not model.keys() - {"RESUME"}:
        chosen = parse_command_line([f"-cfg={_file('vit_digits')}", *argv], command.script)
        return replace(chosen, reason="a ViT for these images")
    if "DATA_PATH" not in data or ("DATASET" in data and data["DATASET"] not in _OWN_IMAGES):
        return command
    named = parse_flags(expand_words(argv), entry_parser(command.script)).model
    if not named:
        same_type = model_sections(config.model.name)["MODEL"]["TYPE"] == model.get("TYPE", "timm")
        if own_layers or ("TYPE" in model and not same_type and config.model.pretrained != "timm"):
            return command
        argv = [f"-model={config.model.name}"] * ("TYPE" in model) + argv  # -opts would keep the layers of a recipe
    images, found = 0, recognize_dataset(config.data, single_process("cpu"))
    with suppress(UserError):
        source = source_class(found.dataset)(found)
        images = len(source.read("train")) if found.dataset in _OWN_IMAGES else 0
        if found.folds and (split := source.splitter.result):  # as many for each fold, so that all have one recipe
            images = round((len(split.trained) + len(split.held_out or ())) * (found.folds - 1) / found.folds)
    if not images:
        return command
    has_weights, reason, flags = _find_weights(model, config.model.pretrained, argv)
    on_cpu, trains = lacks_gpus(command.device), bool(train) or command.profile or "TUNE" in model
    name, epochs = recipe_follows_data(images, has_weights, on_cpu, trains, probes=model.get("TUNE") == "probe")
    if epochs and not {"NUM_EPOCHS", "MINUTES"} & train.keys():
        flags = [*flags, f"-epochs={epochs}"]
    if name == "folder_small" and not named and "TYPE" not in model:
        flags = [*flags, f"-model={_FROM_SCRATCH}"]
    if not on_cpu and "ENABLED" not in command.given.get("AMP", {}):
        flags = [*flags, "-amp"]
    if name != "probe" and images < _FEW and not {"BATCH_SIZE", "GLOBAL_BATCH_SIZE"} & data.keys():
        flags = [*flags, f"-batch_size={max(1, images // 4)}"]
    words = [f"-cfg={_file(name)}", *flags, *argv]
    reason = f"{images:,} images; {reason}"
    reason += "; -minutes=M or -epochs=N trains all weights" if name == "probe" and on_cpu else ""
    chosen = parse_command_line(words, command.script)
    same = Note("log", f"The same: {shlex.join(['python', command.script, *words])}")
    return _follow_model(replace(chosen, notes=(same, *chosen.notes), reason=reason))


def _file(recipe: str) -> Path:
    file, here = _RECIPES / f"{recipe}.yaml", Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _follow_model(command: Command) -> Command:
    """With the rate of timm's model by `rate_follows_tuning`, unless one is given.

    The plan reports a name that timm does not know.
    """
    config, model = command.config, command.config.model
    is_probed = model.head == "probe" and model.pretrained and not (config.eval.enabled or model.tune.solves_head)
    if "BASE_LR" in command.given.get("TRAIN", {}) or not is_probed or model.type != "timm":
        return command
    import timm
    import torch

    from utils.torch_compat import BatchNorm

    backbone, rate, is_lora = torch.nn.Module(), config.train.base_lr, model.tune.kind == "lora"
    with suppress(RuntimeError), torch.device("meta"):
        backbone = timm.create_model(model.name) if timm.is_model(model.name) else backbone
    norms = {type(one) for one in backbone.modules() if isinstance(one, BatchNorm | torch.nn.LayerNorm)}
    if norms and all(issubclass(one, BatchNorm) for one in norms) and not is_lora:
        rate = 5e-4
    elif sum(one.numel() for one in backbone.parameters()) > _LARGE:
        rate = 2e-4 if is_lora else 5e-5
    return replace(command, config=config.with_train(base_lr=rate))


def _find_weights(given: dict[str, Any], weights: str | None, argv: list[str]) -> tuple[bool, str, list[str]]:
    """Whether there are weights, the reason, and flags for the model that they describe. given: keys of MODEL."""
    from engine.checkpoint.weights_record import read_record  # imports timm, which other commands may not need
    from models.timm_model import published_on_hub
    from models.weights.read import forget_weights, read_weights

    if "PRETRAINED" in given:
        section: dict[str, Any] = {}
        shown = str(Path(*Path(weights).parts[-2:])) if weights and os.path.exists(weights) else weights
        if weights and given.keys().isdisjoint(("TYPE", "NAME")):
            record = read_record(weights)
            name = read_weights(weights).architecture if record is None else ""
            section = record.model if record else {"TYPE": "timm", "NAME": name} if name else {}
            forget_weights()
        if weights and section.get("TYPE") == "transformers":
            source = weights if weights.startswith(HUB) else f"{LOCAL}{Path(weight_file(weights)).parent}"
            return True, f"weights: {shown}", [f"-model={source}"]
        own = {f"MODEL.{key}": value for key, value in section.items() if key not in OF_EVERY_MODEL}
        options = [f"{key}={format_value(value)}" for key, value in own.items() if value is not None]
        return bool(weights), f"weights: {shown}", ["-opts", *options] if options else []
    try:
        model: Any = parse_command_line([f"-cfg={_RECIPES / 'finetune.yaml'}", *argv]).config.model
        if model.pretrained != "timm":  # but of the source of -model
            return True, f"weights: {model.pretrained}", []
        if model.kwargs:
            return False, "MODEL.KWARGS: no weights, unless -pretrained=timm is given", []
        place = find_on_hub(*published_on_hub(model.name))
    except (UserError, RuntimeError) as error:  # timm's of an unknown tag
        return False, f"no weights: {to_single_line(str(error))}", []
    return bool(place), f"weights of {model.name} {place or 'not found: -pretrained=FILE'}", []
