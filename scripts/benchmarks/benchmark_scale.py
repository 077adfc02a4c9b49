"""Measures how the cost of a row grows with the work, by the code of a clone: CPU seconds and peak memory.

    PYTHONPATH=. python scripts/benchmarks/benchmark_scale.py interval

Rows: the functions below. Each prepares its inputs and returns the call that is measured.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Call = Callable[[], Any]


def interval(folder: Path) -> Call:
    """The interval of mean AP: 20,000 images, 1,000 labels."""
    from engine.evaluation.intervals import confidence_interval
    from engine.evaluation.results import results_of_scores
    from utils.metric_table import METRICS

    generator = np.random.default_rng(0)
    targets = (generator.random((20_000, 1000), np.float32) < 0.003).astype(np.int8)
    results = results_of_scores(targets, generator.standard_normal(targets.shape, np.float32) + targets)
    return lambda: confidence_interval(results, METRICS["mean_ap"])


def wide(folder: Path) -> Call:
    """The rows of a wide prediction: 200 images, 21,841 classes, in one batch of results."""
    from configs.flags import Prediction
    from datasets.sources.samples import Samples
    from engine.evaluation.predictions import Predictions
    from engine.evaluation.results import SampleResults
    from utils.distributed import single_process

    class Named(Samples):
        def name(self, index: int) -> str:
            return f"{index}.jpg"

    probabilities = np.random.default_rng(0).dirichlet(np.ones(21_841), 200).astype(np.float32)
    labels = np.argsort(-probabilities, 1).astype(np.int32)
    probabilities = np.take_along_axis(probabilities, labels, 1)
    results = SampleResults(np.zeros(200, np.int64), labels, probabilities, np.zeros(200, np.float32))
    names = [f"class {label}" for label in range(21_841)]
    predictions = Predictions(folder, Named(["a"]), names, Prediction("photos", None, None, False, False, None))
    return lambda: predictions.write([results], single_process("cpu"))


def hints(folder: Path) -> Call:
    """300 class folders of a validation, of which half are unknown."""
    from datasets.sources.folders.class_folders import read_class_folders

    for number in range(300):
        (folder / f"n{number + 50_000_000 * (number % 2):08d}").mkdir()
    known = {f"n{number:08d}" for number in range(3000)}
    return lambda: read_class_folders(folder, known=known)


def runs(folder: Path) -> Call:
    """The options that -resume=auto reads among 100 runs of this experiment, up to the newest one."""
    from configs.command_line import parse_command_line, to_yaml
    from engine.plan import training
    from engine.run.log import RunLogger
    from utils.distributed import single_process

    config = parse_command_line(["-dataset=digits", f"-output={folder}", "-resume=auto"]).config
    for number in range(100):
        run = folder / f"run-{number}"
        run.mkdir()
        (run / "config.yaml").write_text(to_yaml(config))
        (run / "last.pth").touch()
        (run / "log.txt").touch()
    context = single_process("cpu")
    logger = RunLogger(context)
    training.find_checkpoint = lambda _, __, runs, *more: next(iter(runs)) and None  # type: ignore[assignment]
    return lambda: training.find_on_all_ranks(config, context, logger)


def table(folder: Path) -> Call:
    """metrics.csv of 1,000 epochs."""
    from engine.run.record import RunRecord

    record = RunRecord()
    record.open(folder, "", pid=1, host="a")
    record.open_rows(0, 0)

    def add() -> None:
        for epoch in range(1, 1001):
            record.add_row("evaluation", epoch=epoch, step=epoch, val_loss=0.5)
            record.add_row("epoch", epoch=epoch, step=epoch, lr=0.5)

    return add


def options(folder: Path) -> Call:
    """config.yaml with the weights of 21,841 classes, written and read."""
    from configs.command_line import parse_command_line, to_yaml
    from configs.yaml_io import read_yaml

    weights = json.dumps(np.random.default_rng(0).random(21_841).tolist())
    config = parse_command_line(["-dataset=fake", "-opts", f"LOSS.CLASS_WEIGHTS={weights}"]).config
    file = folder / "config.yaml"
    return lambda: (file.write_text(to_yaml(config)), read_yaml(file))


def arrays(folder: Path) -> Call:
    """scores.npz of 200,000 images of 2 classes."""
    from engine.evaluation.results import results_of_scores
    from engine.evaluation.tables import ResultTables

    scores = np.random.default_rng(0).standard_normal((200_000, 2), np.float32)
    results = results_of_scores((scores > 0).astype(np.int8), scores)
    names = [f"train/class_{index % 2}/image_of_a_camera_{index:06d}.jpg" for index in range(len(scores))]
    tables = ResultTables(folder, ["a", "b"], names.__getitem__)
    return lambda: tables._write_array("scores", scores, results)


def meetings(folder: Path) -> Call:
    """The device of each of 1,000 ranks, which all ranks read; in one process, without their connections."""
    from torch import distributed as dist

    from utils.distributed import _meet

    store = dist.TCPStore("localhost", 0, is_master=True)
    for rank in range(1000):
        store.set(f"device of rank {rank}", "cpu")
    return lambda: [_meet(store, rank, 1000, 60, "device", "cpu") for rank in range(1000)]


def gathered(folder: Path) -> Call:
    """The results of 500,000 images without scores, on rank 0 of two."""
    from torch import distributed as dist
    from torch import nn

    from engine.evaluation.evaluate import Evaluator
    from utils.distributed import ProcessContext

    rank = int(os.fork() == 0)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    evaluator = Evaluator(nn.Identity(), Any, Any, ProcessContext(rank, rank, 2, 2, torch.device("cpu")))
    shapes = {"targets": [], "labels": [5], "probabilities": [5], "losses": []}
    dtypes = {"targets": torch.int64, "labels": torch.int32}
    parts = [
        {name: torch.ones([250, *shape], dtype=dtypes.get(name)) for name, shape in shapes.items()} for _ in range(1000)
    ]
    if rank:
        evaluator._gather(parts, {}, 500_000)
        os._exit(0)
    return lambda: evaluator._gather(parts, {}, 500_000)


ROWS = {row.__name__: row for row in (interval, wide, hints, runs, table, options, arrays, meetings, gathered)}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    row = parser.parse_args(argv).row
    with tempfile.TemporaryDirectory() as folder:
        call = ROWS[row](Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        call()
        seconds = time.process_time() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        files = sum(path.stat().st_size for path in Path(folder).glob("*"))
    figures = f"{seconds:.2f} CPU s, {memory / 1024:.0f} MB more than its inputs, {files / 1e6:.1f} MB in files"
    print(f"{row}: {os.environ['PYTHONPATH']}: {figures}")


if __name__ == "__main__":
    main(sys.argv[1:])
