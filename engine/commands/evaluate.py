"""The commands that read a trained model: evaluation, and prediction of labels or features."""

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from configs.command_line import Command
from configs.flags import Prediction
from datasets.batch import Batch
from datasets.loading.loader import BadImageList, build_eval_loader
from datasets.loading.sampler import Key
from datasets.sources.class_names import names_of_labels
from engine.checkpoint.run_folder import check_writable, lock_run_folder, remove_temporary
from engine.evaluation.files import EXPLANATIONS, EvaluationFiles, write_maps
from engine.evaluation.images import write_images
from engine.evaluation.predictions import CSV_FILE, Predictions, batches_per_write
from engine.evaluation.results import TOP_K, classes_without_images
from engine.evaluation.session import EvaluationSession, build_evaluation_session
from engine.features.store import embed
from engine.plan.decision import write_measured
from engine.plan.evaluation import EvaluationPlan
from engine.run.folder import check_shared, open_new_folder, start_log
from engine.run.log import RunLogger
from engine.run.record import EVALUATION, REPORT
from engine.run.reporter import log_validation
from utils.device import device_name, peak_memory_bytes
from utils.distributed import ProcessContext, call_on_main, find_on_main, work_while_others_wait
from utils.errors import UserError
from utils.files import absolute_file


def evaluate(command: Command, context: ProcessContext) -> int:
    """Evaluates the weights of -pretrained, or the checkpoint that -resume names; records the result."""
    logger = start_log(command, context)
    session = build_evaluation_session(command, context, logger)
    plan = session.plan
    evaluator = session.evaluator
    config = plan.config
    samples = plan.samples
    folder = open_new_folder(replace(command, config=config), context, logger, "eval-")
    logger.begin(*session.lines)
    bad_images = BadImageList(context.rank).open(folder)
    batches = build_eval_loader(config, samples, context, bad_images)
    started = time.perf_counter()
    if config.data.image_hashes != "none":
        samples.hash_content()
    metrics, results = evaluator.evaluate(session.model, batches)
    seconds = time.perf_counter() - started
    write_images({plan.split: samples}, folder, config.model.pretrained, True, config.data, context, logger)
    precision = evaluator.precision.name
    log_validation(logger, _title(plan), metrics, config.model.num_logits, seconds, plan.title, precision)
    lost = classes_without_images(results, samples)
    logger.warn_of_skipped(plan.title.lower(), len(samples) - metrics.samples, lost)

    def record() -> None:
        assert results
        from engine.report import page  # late: the answer has been printed
        from engine.report.contents import contents_of
        from engine.report.overview import class_lines, score_text, shift_by_weights

        about = {"split": plan.split, "checkpoint": absolute_file(session.weights)}
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
        files = EvaluationFiles(folder / EVALUATION, samples, config, evaluator)
        before = evaluator.decision
        now = metrics.decision
        chooses_point = before.point != now.point
        files.write(metrics, results, session.model, epoch=None, chooses_point=chooses_point, **about)
        is_new = chooses_point or before.thresholds != now.thresholds
        if command.runs and is_new and not plan.images.trained:
            write_measured(command.runs, now, config)
        logger.record.update(state="finished", exit_status=0)
        contents = contents_of(logger.record, config)
        score = score_text(contents, contents.evaluation, metrics.score)
        figure = f"{plan.title} {metrics.metric.title} {plan.images.remark}".rstrip()
        logger.info(f"----- {figure}: {score}")
        for line in class_lines(contents):
            logger.info(f"----- {line}")
        try:
            logger.info(f"----- Report: {page.write_report(folder)}")
        except (OSError, UserError) as error:  # the result is more important
            logger.warn(f"{REPORT} cannot be written: {error}")
        logger.log(f"----- Tables: {files.folder}")
        if shift := shift_by_weights(contents):
            logger.warn(shift)

    call_on_main(record, context)
    return 0


def _title(plan: EvaluationPlan) -> str:
    """Words before the figures, if they are of images that the model was trained on."""
    return f"Figures {plan.images.remark}: " if plan.images.remark else ""


def predict(command: Command, context: ProcessContext) -> int:
    """Labels the images of `-predict`, and writes `predictions.csv`, or writes the features of the images of `-embed`.

    Raises UserError: no image can be read; the file then has the reasons. Another process writes to the folder. The
    model has no features.
    """
    logger = start_log(command, context)
    options = command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    session = build_evaluation_session(command, context, logger)
    command = replace(command, config=session.plan.config)
    folder = options.folder or open_new_folder(command, context, logger, "embed-" if options.embeds else "predict-")
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    if options.explain:
        check_shared(folder, context)  # each rank writes the maps of its images
    with lock_run_folder(folder) if context.is_main else nullcontext():
        if context.is_main:
            remove_temporary(folder, below=False)
        logger.begin(*session.lines)
        if options.embeds:
            embed(session, folder, options.path is None, logger)
        else:
            label(session, folder, options, logger)
    return 0


def label(session: EvaluationSession, folder: Path, options: Prediction, logger: RunLogger) -> None:
    """Writes `predictions.csv` and the files that `options` asks for.

    Every rank must call it.
    Raises UserError: no image can be read.
    """
    context = session.evaluator.context
    plan = session.plan
    evaluator = session.evaluator
    config = plan.config
    samples = plan.samples
    classes = config.model.num_logits
    top_k = classes if evaluator.multi_label else max(options.top_k or classes, TOP_K)
    started = time.perf_counter()
    batches = build_eval_loader(config, samples, context)

    def draw(batch: Batch, keys: list[Key]) -> None:
        if options.explain:
            whole = config.data if config.eval.maps == "image" else None
            maps = partial(write_maps, folder, samples, session.model, evaluator, batch, keys, whole)
            work_while_others_wait(maps, context)  # a rank may have no image of the last batches

    parts = evaluator.classify(session.model, batches, top_k, batches_per_write(top_k), draw)
    names = names_of_labels(samples, classes)
    review = config.eval.review
    predictions = Predictions(folder, samples, names, options, evaluator.thresholds, evaluator.decision.point, review)
    files = predictions.write(parts, context)

    def report() -> int:
        seconds = time.perf_counter() - started
        number = len(samples)
        num_readable = predictions.num_readable
        speed = f"({number / seconds:.1f} images/s)"
        num_bad = number - num_readable
        logger.table(predictions.table())
        logger.info(f"----- {number} images in {seconds:.1f} s {speed}; {num_bad} of {number} have an error")
        for line in predictions.lines:
            logger.info(f"----- {line}")
        if options.explain:
            files.append(folder / EXPLANATIONS)
        if options.path is None and num_readable:
            metrics = predictions.metrics(config.eval.best_metric)
            precision = evaluator.precision.name
            log_validation(logger, _title(plan), metrics, classes, seconds, plan.title, precision)
        logger.info(f"----- Predictions: {', '.join(map(str, files))}")
        return num_readable

    if not find_on_main(report, context):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / CSV_FILE} has the reasons")
