"""The evaluation command."""

import time
from dataclasses import replace

from configs.command_line import Command
from configs.schema import Config
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import build_eval_loader
from datasets.transforms.device import build_eval_transform
from engine.commands.evaluation_data import read_evaluation_data
from engine.commands.open_run import find_on_all_ranks, open_new_folder, start_log
from engine.parallel.strategy import build_strategy
from engine.telemetry.reporter import peak_memory_bytes, validation_line, write_result
from engine.training.build import build_eval_model
from engine.training.evaluation import evaluate
from utils.distributed import ProcessContext
from utils.errors import UserError


def evaluate_weights(command: Command, context: ProcessContext) -> int:
    """Evaluates the weights of -pretrained, or those of the checkpoint that -resume names; writes `result.json`."""
    logger, config = start_log(command, context), command.config
    if config.model.resume:
        found = find_on_all_ranks(config, context, logger)
        if found is None:
            raise nothing_to_evaluate(config)
        config = config.with_model(pretrained=str(found.path))
        del found  # the content of the checkpoint
    config, samples, data_notes = read_evaluation_data(config, context)
    built = build_eval_model(config, context)
    model, precision = built.compute, built.precision
    for note in (*built.notes, *data_notes):
        logger.info(f"----- {note}")
    del built  # at O2 and O3 the fp32 weights are not needed
    logger.info(f"----- {context.world_size} process(es), {context.device}, {precision.describe()}")
    folder = open_new_folder(replace(command, config=config), context, logger, "eval-")
    bad_images = BadImageList(folder, context.rank)
    batches = build_eval_loader(config.data, samples, context, config.timeout_seconds, bad_images)
    transform = build_eval_transform(config.data).to(context.device)
    started = time.perf_counter()
    metrics = evaluate(model, batches, transform, precision, build_strategy(context), context)
    seconds = time.perf_counter() - started
    logger.info(validation_line("", metrics, config.model.num_classes, len(samples), seconds))
    if context.is_main:
        result = {
            "top1": metrics.top1,
            "top5": metrics.top5,
            "loss": metrics.loss,
            "checkpoint": config.model.pretrained,
            "images_per_second": metrics.samples / seconds,
            "peak_memory_bytes": peak_memory_bytes(context.device),
        }
        write_result(folder, result)
    return 0


def nothing_to_evaluate(config: Config) -> UserError:
    return UserError(
        f"-resume auto: no run of this experiment in {config.save} has a checkpoint to evaluate; name a run with "
        "-resume=RUN, or give -pretrained"
    )
