"""Runs the commands of README.md and docs/ as they are written, so that none of them stops working.

    python tests/stress/doc_commands.py                       # more than half an hour on two cores
    python tests/stress/doc_commands.py -only 'data|README'

Each page has a folder with a copy of the project and with small data, runs and weights under the names of the page
(pages/folder.py); its commands run there in order, two pages at a time. A command that no table below names runs
without a change, on a CPU. The flags and files of a command that is not run are checked.
"""

import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from faults.processes import reset_signals
from pages.commands import Command, read_commands
from pages.folder import ROOT, Workshop
from pages.runner import Runner
from results import Result, parser, report, show_progress

from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

# Texts that stand for others, in this order.
REPLACED = (
    (r"/dataset/", "dataset/"),
    (r"/data/imagenet-tar", "imagenet-tar"),
    (r"vit_base_patch16_224.pdparams", "tests/fixtures/paddlevit_small/vit.pdparams"),
    (r"-cfg=\.\.\. -data_path=\.\.\.", "-cfg=tests/fixtures/paddlevit_small/vit.yaml -dataset=folder -data_path=TEST"),
    (r"-cfg=(\.\.\.|CONFIG.yaml)", "-cfg=configs/vit_digits.yaml"),
    (r"RUN \[RUN \.\.\.\]", "RUN RUN2"),
    (r"(main_multi_gpu.py)( \.\.\.|$)", r"\1 -cfg=configs/vit_digits.yaml"),
    (r" \.\.\.", " -dataset=fake"),
    (r"DIR/images|DIR/(train|test)(?= |$)", "DIR"),
    (r"torchrun (--standalone )?--nproc_per_node=\d", "torchrun --standalone --nproc_per_node=2"),
    (r"0\.\.4", "0..1"),
    (r"SEED=0(,1|\.\.2)", "SEED=0"),
    (r"BASE_LR=1e-3,2e-3", "BASE_LR=1e-3"),
    (r"50,90,250", "50"),
    (r"SEED=0..7", "SEED=0"),
    (r"(?<=O1-)fp16", "bf16"),
)

# Flags that make a command small: those of each expression that it matches are added to its end.
_TINY = "-opts MODEL.EMBED_DIM=48 MODEL.DEPTH=1 MODEL.NUM_HEADS=3 DATA.IMAGE_SIZE=32"
_WITHOUT_STEPS = r" -(h|eval|embed|predict)\b|-resume=(\S*RUN|output)|probe.yaml"
_BEST = "my_parts|teacher"  # the next command needs the best weights: of a whole epoch
ADDED = (
    (r"main_\w+.py (?!-h)|quickstart.sh", "-device=cpu"),
    (rf"main_\w+.py (?!.*({_WITHOUT_STEPS}|{_BEST}))|quickstart|sweep.py", "-opts TRAIN.MAX_STEPS=2"),
    (r"main_\w+.py (?!-h)", "-opts DATA.NUM_WORKERS=0"),
    (r"^(?!.*(torchrun|distributed|-ngpus)).*main_multi", "-ngpus=2"),
    (r"-resume.* -epochs=100", "-epochs=3"),
    (r"(?<!-pretrained=)vit_base_patch16_224|vit_tiny\S+ -dataset=imagenet2012", f"-batch_size=4 {_TINY}"),
    (r"-name=(teacher|student)", "-epochs=1 -batch_size=256"),
    (r"-model=(local-dir|test_vit)|main.*(caltech256|cait_)", "-batch_size=4"),
    (r"vit_base_patch16_dinov3", "-image_size=64"),
    (r"BATCH_SIZE=4096", "-batch_size=8 -opts DATA.GLOBAL_BATCH_SIZE=16"),
    (r"a1.yaml", "-ngpus=2 -batch_size=4 -opts DATA.IMAGE_SIZE=32"),
    (r"test.sh", "tests/test_layers.py"),
    (r"benchmark_train", "-rounds=1 -warmup=1 -steps=2 -interval=1 -batch_size=2 -opts DATA.IMAGE_SIZE=32"),
    (r"benchmark_train(?!.*caltech256)", _TINY),
    (r"sweep.*caltech256", "-batch_size=4 -opts DATA.IMAGE_SIZE=32"),
    (r"benchmark_input", f"-rounds=1 -seconds=0.1 -batch_size=4 {_TINY}"),
    (r"benchmark_gpu", f"-parts=O1 -timed_images=4 -small_batch=2 -large_batch=2 {_TINY}"),
    (r"parity", "-seeds=1 -epochs=2 -batch_size=128 -opts MODEL.DEPTH=1 TRAIN.WARMUP_EPOCHS=1"),
    (r"fault_bench", "-only='worker killed'"),
    (r"fuzz.py", "-n 20"),
)  # fmt: skip

# Commands that do not run here: the reason, and what tests them.
NOT_RUN = (
    (r"^(pip|python3 -m pip) (?!.*&&)", "installs packages"),
    (r"^git clone", "downloads"),
    (r"^docker ", "docker"),
    (r"^(sbatch|srun)", "Slurm: try_clusters.py slurm"),
    (r"^mpirun|pgrep -n mpirun", "Open MPI: try_clusters.py mpirun"),
    (r"^kubectl|scripts/kubernetes/torchrun.py", "Kubernetes: tests/scripts/test_cluster_files.py"),
    (r"torchrun --nnodes", "several hosts: try_clusters.py two_hosts"),
    (r"-m paddle|torchrun.* train.py", "the command of another program"),
    (r"=s3://", "a bucket: tests/datasets/shards/test_s3.py"),
    (r"https://host/", "a web server: faults/tar.py"),
    (r"LOGGERS=.wandb", "wandb, mlflow and trackio: tests/engine/run/test_loggers.py"),
    (r"run_all.py|doc_commands.py", "runs this program"),
    (r"# GPU$", "a GPU: tests/engine/training/test_batch_size.py"),
    (r"try_clusters.py", "as root, ten minutes: run_all.py runs it"),
)


def main(argv: list[str]) -> int:
    flags = parser("Runs the commands of README.md and docs/.")
    flags.add_argument("-only", default="", metavar="REGEX", help="only pages whose name matches")
    flags = flags.parse_args(argv)
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages = {page: read_commands(page) for page in every if re.search(flags.only, page.name)}
    if not pages:
        raise UserError(f"-only {flags.only}: matches no page")
    reset_signals()
    with tempfile.TemporaryDirectory(prefix="pages-") as root, ThreadPoolExecutor(2) as pool:
        workshop = Workshop(Path(root))
        runners = {}
        for page, commands in pages.items():
            folder = workshop.make_folder(page, [adapted(command.text) for command in commands])
            runners[page] = Runner(folder, workshop.environment)
        order = sorted(pages, key=lambda page: -len(pages[page]))
        try:
            results = list(pool.map(lambda page: run_page(runners[page], page.name, pages[page]), order))
        finally:  # Ctrl-C ends the running commands
            pool.shutdown(wait=False, cancel_futures=True)
            for runner in runners.values():
                runner.close()
    return report(results, flags.json)


def run_page(runner: Runner, name: str, commands: list[Command]) -> Result:
    result, started = Result(f"commands: {name}", len(commands)), time.monotonic()
    for command in commands:
        if runner.is_closed:
            break
        begun, text, reasons = time.monotonic(), adapted(command.text), matching(NOT_RUN, command.text)
        if reasons:
            problem = runner.check(text)
            result.skipped.append(f"line {command.line}: {reasons[0]}")
        else:
            problem = runner.run(text, " ".join(matching(ADDED, text)), command.variables, command.status)
        result.failures += [f"line {command.line}: {problem}"] if problem else []
        outcome = problem or ", ".join(reasons) or "works"
        show_progress(f"{command.place}: {outcome} ({time.monotonic() - begun:.0f} s): {command.text}")
    runner.close()
    result.seconds = time.monotonic() - started
    return result


def matching(table: tuple[tuple[str, str], ...], text: str) -> list[str]:
    return [value for pattern, value in table if re.search(pattern, text, re.S)]


def adapted(text: str) -> str:
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return text


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
