"""The parts that an evaluation and a prediction have in common: weights, data and model, checked and logged."""

from dataclasses import dataclass

from torch import nn

from configs.reading.command_line import Command
from configs.schema import Config
from datasets.sources.samples import Samples
from engine.commands.evaluation_data import read_evaluation_data
from engine.commands.open_run import find_on_all_ranks
from engine.evaluation.evaluate import Evaluator
from engine.run.facts import Devices
from engine.run.log import RunLogger
from engine.training.eval_model import build_eval_model
from utils.distributed import ProcessContext
from utils.errors import UserError

_TITLES: dict[str | None, str] = {"train": "Training", "test": "Test"}  # of a split, in the log


@dataclass(frozen=True)
class OpenedEvaluation:
    """The completed options, the samples, and the model of `MODEL.PRETRAINED`, ready for `evaluator`.

    title: of the figures in the log.
    """

    config: Config
    samples: Samples
    model: nn.Module
    evaluator: Evaluator
    title: str


def open_evaluation(command: Command, context: ProcessContext, logger: RunLogger) -> OpenedEvaluation:
    """Reads the data, and the weights of -pretrained or of the checkpoint that -resume names.

    Raises:
        UserError: as `read_evaluation_data`; no such checkpoint; the weights do not fit the model.
    """
    if command.config.model.resume:
        found = find_on_all_ranks(command.config, context, logger)
        if found is None:
            raise nothing_to_evaluate(command.config)
        command = command.with_weights(found.path)
        del found  # the content of the checkpoint
    config, samples, data_notes = read_evaluation_data(command, context)
    built = build_eval_model(config, context)
    for note in (*built.notes, *data_notes):
        logger.note(note)
    logger.record(Devices(context.world_size, str(context.device), built.evaluator.precision.describe()))
    # At O2 and O3 the fp32 weights of `built` are not needed.
    return OpenedEvaluation(config, samples, built.compute, built.evaluator, _TITLES.get(command.split, "Validation"))


def nothing_to_evaluate(config: Config) -> UserError:
    return UserError(
        f"-resume auto: no run of this experiment in {config.save} has a checkpoint to evaluate; name a run with "
        "-resume=RUN, or give -pretrained"
    )
