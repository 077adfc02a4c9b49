"""The recipe of a training without -cfg: data, weights and device choose it, before anything depends on its name."""

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from configs.command_line import Command, read_options
from configs.load import read_layers
from configs.programs import program_of, shown_path, split_words
from configs.resolve import model_follows_source, rate_of_tuning, recipe_follows_data
from configs.schema.section import without
from configs.weights import OF_EVERY_MODEL, keys_in_section
from configs.yaml_io import Values, as_option
from datasets.recognition import recognize_dataset
from datasets.sources.groups import group
from datasets.sources.rows import cut, read_rows
from datasets.sources.source import Wanted, source_class
from utils.device import on_meta_device
from utils.distributed import ProcessContext, find_on_main, single_process
from utils.errors import UserError, to_single_line
from utils.file_formats.hf_folder import HUB, LOCAL, find_on_hub, weight_file
from utils.files import without_none
from utils.notes import Note
from utils.system import lacks_gpus

_OWN_IMAGES = ("folder", "csv", "parquet")  # data sets
_FEW = 64  # images: an epoch of them has four steps, also where a recipe's batch is larger than the data
_MANY = 20_000  # images: ten times the largest set that folder_small.yaml was measured on
_LARGE = 50e6  # parameters: between ViT-S and ViT-B
_FROM_SCRATCH = "resnet10t"  # more accurate than the ViT of folder_small.yaml on a few thousand images (docs/log.md)


@dataclass(frozen=True)
class Choice:
    """Values of flags by name, for a layer below the given options; -cfg is the recipe.

    reason: why. notes: that another recipe may be meant, that there are no weights.
    """

    flags: Values
    reason: str
    notes: Sequence[Note] = ()

    def words(self) -> list[str]:
        """The choice as flags of the command line."""
        words = []
        for name, value in self.flags.items():
            if isinstance(value, list):
                words += [f"-{name}", *value]
            else:
                words.append(f"-{name}" if value is True else f"-{name}={value}")
        return words


def choose_recipe(command: Command, context: ProcessContext) -> Command:
    """A training without -cfg on class folders or a table: with the recipe of `recipe_follows_data`, and a note; on the
    digits without keys of MODEL: with vit_digits.yaml.

    With -cfg, too, timm's model has its rate, see `rate_follows_tuning`. -resume=auto finds the run of the same choice.
    Other commands stay as they are, also those with an architecture in keys of MODEL, and with data that cannot be
    read, whose problems the plan reports. A collective call: the main process looks at data and weights. Raises
    UserError if given weights cannot be read.
    """
    # On each rank, whatever its options are: `check_same_options` names the differences later.
    choice = find_on_main(lambda: _choice_for(command), context)
    if choice:
        command = _with_choice(command, choice)
    return _follow_model(command) if command.recipe else command


def _choice_for(command: Command) -> Choice | None:
    """The recipe, where it is open; or the recipe of the command with the model of given weights."""
    if command.recipe:
        return _model_of_weights(command)
    config = command.config
    given = command.given
    if config.model.resume not in (None, "auto") or config.eval.enabled:
        return None
    data_set = given.get("DATA.DATASET", "folder")
    if data_set == "digits":
        is_open = keys_in_section("MODEL", given) <= {"RESUME"}
        return Choice(_recipe("vit_digits"), "a ViT for these images") if is_open else None
    if "DATA.DATA_PATH" not in given or data_set not in _OWN_IMAGES:
        return None
    if given.get("MODEL.TYPE") == "timm" and "MODEL.NAME" in given and not command.flags.model:
        model = {"model": config.model.name}  # as a key of -opts it would keep the layers of a recipe
        choice = _choose(replace(command, flags=argparse.Namespace(**vars(command.flags) | model)))
        return choice and replace(choice, flags=choice.flags | model)
    keys = {key.partition(".")[0] for key in keys_in_section("MODEL", given)}
    has_timms_model = command.flags.model or config.model.pretrained == "timm"
    return _choose(command) if has_timms_model or keys <= OF_EVERY_MODEL else None


def _model_of_weights(command: Command) -> Choice | None:
    """The recipe of a fine-tuning with the model of the given weights, if none is given."""
    flags = command.flags
    given = command.given
    fine_tunes = given.get("MODEL.HEAD") == "probe" or given.get("MODEL.TUNE")  # a recipe with timm's weights
    names_model = any(word.startswith(("MODEL.TYPE=", "MODEL.NAME=")) for word in flags.opts)
    is_other = any((flags.model, names_model, flags.eval, flags.resume))
    if is_other or not (fine_tunes and os.path.exists(flags.pretrained or "")):
        return None
    weights = _weights_to_start_from(command)
    if not weights.flags or f"MODEL.NAME={as_option(command.config.model.name)}" in weights.flags.get("opts", ()):
        return None  # the recipe may be for this model, and have other options of it
    return Choice({"cfg": flags.cfg} | weights.flags, weights.reason)


def _with_choice(command: Command, choice: Choice) -> Command:
    """The command as if the words of the choice stood before its own."""
    chosen = read_options(command.argv, _with_flags(command.flags, choice.flags), command.script)
    words = shlex.join(choice.words())
    same = f"python {command.script} {words} {shlex.join(command.argv)}"
    notes = (*choice.notes, Note("log", f"The same: {same}"), *chosen.notes)
    return replace(chosen, notes=notes, choice=f"{words} ({choice.reason})")


def _with_flags(given: argparse.Namespace, flags: Values) -> argparse.Namespace:
    """The flags of a command line that begins with `flags`."""
    options = [*flags.get("opts", ()), *given.opts]
    return argparse.Namespace(**vars(given) | flags | {"opts": options})


def _choose(command: Command) -> Choice | None:
    """The choice for own images, None if they cannot be read."""
    given = command.given
    images = _count_images(command)
    if not images:
        return None
    weights = _weights_to_start_from(command)
    on_cpu = lacks_gpus(command.flags.device)
    probes = given.get("MODEL.TUNE") == "probe"

    def choice_if(trains: bool) -> Choice:
        name, epochs = recipe_follows_data(images, weights.exist, on_cpu, trains, probes)
        flags = _recipe(name) | weights.flags | _own_flags(command, name, images, epochs, on_cpu)
        possible = (Note("screen", weights.hint), Note("warning", _warning_of(command, name, images)))
        notes = [note for note in possible if note.text]
        return Choice(flags, f"{images:,} images; {weights.reason}", notes)

    choice = choice_if(command.flags.profile or any(key.startswith(("TRAIN.", "MODEL.TUNE")) for key in given))
    is_probe = choice.flags["cfg"] == _recipe("probe")["cfg"]
    if is_probe and not probes and not _has_linear_head(_with_choice(command, choice)):
        return choice_if(trains=True)
    return choice


def _recipe(name: str) -> Values:
    return {"cfg": str(shown_path(Path(__file__).parents[2] / "configs" / f"{name}.yaml"))}


def _warning_of(command: Command, name: str, images: int) -> str:
    """A text where folder_small.yaml, with its 64 pixels, is probably not what is meant; '' elsewhere."""
    if name != "folder_small" or "DATA.IMAGE_SIZE" in command.given:
        return ""
    given = [*split_words(command.argv)]
    theirs = [word for word, _ in given if word.startswith("--") and "-" in word[2:]]  # none is documented here
    program = program_of(given, theirs)
    if program:
        there = f"{program.defaults}; docs/flags.md#{program.page}"
        return f"64 pixels and the recipe of few images, not the defaults of {program.program}. For them: {there}"
    if images > _MANY:
        return f"64 pixels are for fewer than {_MANY:,} images; try -model=vit_small_patch16_224 -image_size=224"
    return ""


def _has_linear_head(command: Command) -> bool:
    """Whether the model has one; True for a model that cannot be built, whose problem the plan reports."""
    from models.build import build_on_meta  # imports timm, which other commands may not need
    from models.timm_model import linear_head

    config = command.config
    if config.model.type == "timm":  # whose image size is not known yet
        return linear_head(_timms_model(config.model.name, num_classes=2)) is not None  # DINOv2 is without a head
    with suppress(UserError):
        return linear_head(build_on_meta(config.model, config.data)) is not None
    return True


def _timms_model(name: str, **arguments: Any) -> Any:
    """timm's model without memory; an empty module for an unknown name."""
    import timm
    import torch

    with suppress(RuntimeError), on_meta_device():
        if timm.is_model(name):
            return timm.create_model(name, **arguments)
    return torch.nn.Module()


def _own_flags(command: Command, recipe: str, images: int, epochs: int | None, on_cpu: bool) -> Values:
    """The values of flags that the number of images and the device choose, where none are given."""
    given = command.given.keys()
    flags = Values()
    if epochs is not None and given.isdisjoint(("TRAIN.NUM_EPOCHS", "TRAIN.MINUTES")):
        flags["epochs"] = epochs
    if recipe == "folder_small" and not command.flags.model:
        flags["model"] = _FROM_SCRATCH
    if not on_cpu and not command.states_precision:
        flags["amp"] = True
    if recipe != "probe" and images < _FEW and given.isdisjoint(("DATA.BATCH_SIZE", "DATA.GLOBAL_BATCH_SIZE")):
        flags["batch_size"] = max(1, images // 4)
    return flags


def _count_images(command: Command) -> int:
    """The number of training images; with DATA.FOLDS the mean over the folds, so that all of them have one recipe.

    0 if the data are no images of one's own, or cannot be read.
    """
    alone = single_process("cpu")  # the main process reads them before the others do
    found = recognize_dataset(command.config.data, alone)
    if found.dataset not in _OWN_IMAGES:
        return 0
    wanted = Wanted(found, ("train",))
    try:
        source = source_class(found.dataset)(wanted)
        rows = cut(group(read_rows(source, wanted), wanted), wanted)
    except UserError:
        return 0
    if "train" not in rows.splits:
        return 0
    images = len(rows.splits["train"])
    split = rows.run_split
    if not found.folds or not split:
        return images
    in_all_folds = len(split.trained) + len(split.held_out or ())
    return round(in_all_folds * (found.folds - 1) / found.folds)


def _follow_model(command: Command) -> Command:
    """With the rate of timm's model by `rate_follows_tuning`, unless one is given.

    The plan reports a name that timm does not know.
    """
    config = command.config
    model = command.config.model
    is_probed = model.type == "timm" and model.head == "probe" and model.pretrained
    takes_steps = command.checked_name in ("train", "profile")
    if "TRAIN.BASE_LR" in command.given or not is_probed or not takes_steps:
        return command
    import torch

    from utils.torch_compat import BatchNorm

    backbone = _timms_model(model.name)
    norms = [one for one in backbone.modules() if isinstance(one, BatchNorm | torch.nn.LayerNorm)]
    has_batch_norms_only = {isinstance(one, BatchNorm) for one in norms} == {True}
    is_large = sum(one.numel() for one in backbone.parameters()) > _LARGE
    rate = rate_of_tuning(model.tune == "lora", is_large, has_batch_norms_only)
    return replace(command, config=config.with_train(base_lr=rate))


@dataclass(frozen=True)
class FoundWeights:
    """exist: whether there are weights to start from. flags: of the model that they describe. hint: the way to some."""

    exist: bool
    reason: str
    flags: Values = field(default_factory=dict)
    hint: str = ""


def _weights_to_start_from(command: Command) -> FoundWeights:
    weights = command.config.model.pretrained
    if "MODEL.PRETRAINED" not in command.given:
        return _find_timms_weights(command)
    shown = weights
    if weights and os.path.exists(weights):
        shown = str(Path(*Path(weights).parts[-2:]))
    describes = weights not in (None, "timm") and not command.flags.model
    return FoundWeights(bool(weights), f"weights: {shown}", _model_in(str(weights)) if describes else {})


def _model_in(weights: str) -> Values:
    """The flags of the model that a file of weights describes; none if it describes none."""
    from engine.checkpoint.weights_record import record_in  # imports timm, which other commands may not need
    from models.weights.read import read_weights

    file = read_weights(weights)
    record = record_in(file)
    section = record.model if record else file.model_section
    if section.get("TYPE") == "transformers":
        return {"model": weights if weights.startswith(HUB) else f"{LOCAL}{Path(weight_file(weights)).parent}"}
    described = without(without_none(section), OF_EVERY_MODEL)
    options = [f"MODEL.{key}={as_option(value)}" for key, value in described.items()]
    return {"opts": options} if options else {}


def _find_timms_weights(command: Command) -> FoundWeights:
    """Of the model that finetune.yaml has with the given options."""
    from models.timm_model import published_on_hub

    try:
        options = read_layers(_with_flags(command.flags, _recipe("finetune")), evaluates=False)
        model_follows_source(options)
        name = str(options.get("MODEL.NAME"))
        pretrained = str(options.get("MODEL.PRETRAINED"))
        if pretrained != "timm":  # but of the source of -model
            return FoundWeights(True, f"weights: {pretrained}")
        if options.get("MODEL.KWARGS"):
            return FoundWeights(False, "MODEL.KWARGS: no weights, unless -pretrained=timm is given")
        place = find_on_hub(*published_on_hub(name))
    except (UserError, RuntimeError) as error:  # timm's of an unknown tag
        return FoundWeights(False, f"no weights: {to_single_line(str(error))}")
    if not place:
        hint = f"The weights of {name} are not on this machine: -pretrained=FILE names them"
        return FoundWeights(False, "no weights found", hint=hint)
    return FoundWeights(True, f"weights of {name} {place}")
