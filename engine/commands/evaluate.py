"""The evaluation command."""

import time
from dataclasses import replace

from configs.command_line import Command
from datasets.loading.loader import BadImageList, build_eval_loader
from engine.evaluation.session import build_eval_files, build_session
from engine.report.contents import contents_of
from engine.report.overview import class_figures, error_of, shift_by_weights
from engine.report.page import write_report
from engine.run.folder import open_new_folder, start_log
from engine.run.reporter import log_validation
from utils.device import device_name, peak_memory_bytes
from utils.distributed import ProcessContext
from utils.files import absolute_file


def evaluate(command: Command, context: ProcessContext) -> int:
    """Evaluates the weights of -pretrained, or the checkpoint that -resume names; records the result."""
    logger = start_log(command, context)
    session = build_session(command, context, logger)
    plan, evaluator = session.plan, session.evaluator
    config, samples = plan.config, plan.samples
    folder = open_new_folder(replace(command, config=config), context, logger, "eval-")
    bad_images = BadImageList(context.rank, folder)
    batches = build_eval_loader(config.data, samples, context, config.timeout_seconds, bad_images)
    started = time.perf_counter()
    metrics, results = evaluator.evaluate(session.model, batches)
    seconds = time.perf_counter() - started
    precision = evaluator.precision.name
    log_validation(logger, "", metrics, config.model.num_logits, len(samples), seconds, plan.title, precision)
    if results:  # on the main process
        about = {"split": plan.split, "checkpoint": absolute_file(str(config.model.pretrained))}
        logger.record.set_result(
            **metrics.values,
            **about,
            samples=metrics.samples,
            finished=True,
            stopped_early=None,
            numeric_precision=precision,
            images_per_second=metrics.samples / seconds,
            peak_memory_bytes=peak_memory_bytes(context.device),
            device=device_name(context.device),
        )
        logger.record.update()  # before the files, which may fail
        files = build_eval_files(config, samples, evaluator, folder)
        summary = files.write(metrics, results, session.model, epoch=None, **about)
        names = ("precision", "recall", "f1", "ece")
        logger.record.set_result(**{name: summary[name] for name in names if name in summary})
        logger.record.update(state="finished", exit_status=0)
        contents = contents_of(logger.record, config, files.values)
        score = f"{metrics.metric.text(metrics.score)}{error_of(contents, contents.evaluation)}"
        logger.info(f"----- {plan.title} {metrics.metric.title}: {score}")
        if classes := class_figures(contents):
            logger.info(f"----- Classes: {classes}")
        logger.info(f"----- Report: {write_report(folder)}")
        logger.log(f"----- Tables: {files.folder}")
        if shift := shift_by_weights(contents):
            logger.warn(shift)
    logger.begin(*session.lines)
    return 0
