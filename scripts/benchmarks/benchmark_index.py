"""What the size of a data set costs: seconds at the start of a run, and memory in each loading worker.

    python scripts/benchmarks/benchmark_index.py -n 1000000

makes so many images (names of a few small files) in folders of a thousand and a list of them, in a temporary folder,
and reads them as a run does: for the first time, and again from the index that this has left. A worker then receives
what was read and goes through all of it; its own memory is what it has written, pages of files that it maps are not.
"""

import gc
import os
import re
import statistics
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import Parser, parse_command_line
from datasets.loading.workers import worker_context
from datasets.registry import read_samples
from datasets.sources.samples import ImageFiles
from scripts.benchmarks.common import add_flag, environment, markdown_table, new_file, positive, tell, write_json
from utils.distributed import single_process
from utils.errors import run_and_report_errors

SCRIPT = "benchmark_index.py"
ROLLUP = Path("/proc/self/smaps_rollup")
FOLDER_IMAGES, READINGS = 1000, 5
SETTLED_SECONDS = 3.0  # of what is younger no index is kept


def main(argv: list[str]) -> int:
    parser = Parser(prog=f"scripts/{SCRIPT}", description="What the size of a data set costs at the start and after.")
    add_flag(parser, "n", type=positive, default=1_000_000, metavar="N", help="images (default: 1000000)")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="write the figures there as well")
    add_flag(parser, "debug", action="store_true", help="show the traceback of an error")
    flags = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["AMPVIT_CACHE"] = str(root / "cache")
        tell(f"making {flags.n:,} images ...")
        make_images(root, flags.n)
        time.sleep(SETTLED_SECONDS)
        figures = {dataset: measured(root, dataset, flags.n) for dataset in ("imagenet2012", "folder")}
    found = environment(SCRIPT, argv, parse_command_line([]).config)
    print(f"{found['device']}, torch {found['torch']}: `{found['command']}`", end="\n\n")
    header = ["data set", "first reading", "from the index", "index", "sent to a worker", "a worker's own memory"]
    print(markdown_table(header, [row(dataset, figure) for dataset, figure in figures.items()]))
    write_json(flags.json, {"images": flags.n, "environment": found} | figures)
    return 0


def make_images(root: Path, count: int) -> None:
    """Names of one small file per folder, and `train_list.txt`."""
    with open(root / "train_list.txt", "w") as lines:
        for number in range(count):
            label, place = divmod(number, FOLDER_IMAGES)
            folder = root / "train" / f"n{label:08d}"
            path = folder / f"n{label:08d}_{place}.JPEG"
            if place == 0:
                folder.mkdir(parents=True)
                path.write_bytes(b"no image")
                first = path
            else:
                os.link(first, path)
            lines.write(f"{path.relative_to(root)} {label}\n")


def measured(root: Path, dataset: str, images: int) -> dict[str, float]:
    classes = -(-images // FOLDER_IMAGES)
    options = ["DATA.BATCH_SIZE=1", f"MODEL.NUM_CLASSES={classes}"]
    config = parse_command_line([f"-dataset={dataset}", f"-data_path={root}", "-opts", *options]).config
    seconds = []
    for _ in range(1 + READINGS):
        gc.collect()
        started = time.perf_counter()
        (samples,) = read_samples(config, single_process(), "train")
        seconds.append(time.perf_counter() - started)
        tell(f"{dataset}: {len(samples):,} images in {seconds[-1]:.2f} s")
    assert samples.listing.is_checked, "was not read from an index"
    index = max((root / "cache").glob("*.index"), key=lambda path: path.stat().st_mtime_ns)
    return {
        "first_seconds": seconds[0],
        "index_seconds": statistics.median(seconds[1:]),
        "index_bytes": index.stat().st_size,
        **in_worker(samples),
    }


def in_worker(samples: ImageFiles) -> dict[str, float]:
    """What a worker receives and then has of its own."""
    context = worker_context()
    ours, theirs = context.Pipe()
    worker = context.Process(target=go_through, args=(theirs,))
    worker.start()
    before = ours.recv()
    ours.send(samples)
    after = ours.recv()
    worker.join()
    return {"sent_bytes": len(ForkingPickler.dumps(samples)), "own_bytes": after - before}


def go_through(connection: Connection) -> None:
    connection.send(own_bytes())
    samples = connection.recv()
    for index in range(len(samples)):
        samples.name(index), samples.targets[index]
    connection.send(own_bytes())


def own_bytes() -> int:
    """Of this process: memory that it has written to and shares with no other."""
    gc.collect()
    found = re.search(r"Private_Dirty:\s+(\d+) kB", ROLLUP.read_text())
    return int(found[1]) * 1024


def row(dataset: str, figures: dict[str, float]) -> list[str]:
    return [
        dataset,
        f"{figures['first_seconds']:.2f} s",
        f"{figures['index_seconds']:.2f} s (median of {READINGS})",
        f"{figures['index_bytes'] / 1e6:.1f} MB",
        f"{figures['sent_bytes'] / 1e3:.1f} kB",
        f"{figures['own_bytes'] / 1e6:.1f} MB",
    ]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
