"""Compares training through the entry script with a bare loop of the same model and with timm's train.py.

    python scripts/benchmarks/benchmark_train.py -timm_train ~/pytorch-image-models/train.py -json train.json
    python scripts/benchmarks/benchmark_train.py -programs ready -loops 0,2,9 -spins 300000,0,1000,10000

By default it trains configs/vit_tiny_patch16_224.yaml at batch size 32 with -amp and without dropout, because timm's
train.py has no dropout by default. The programs:

- `jpeg`: main_single_gpu.py on JPEGs, which the script makes, or on the JPEGs of `-data FOLDER`;
- `ready`: main_single_gpu.py on random images in memory, without crops (`-dataset=fake`);
- `ranks`: main_multi_gpu.py on the same, with one process per visible GPU (not by default);
- `bare`: forward pass, loss, backward pass, clipping and AdamW on ready tensors;
- `timm`: timm's train.py with the same JPEGs, model, batch size, workers, precision, optimizer and drop rates;
- `timm_explicit`: the same with TIMM_FUSED_ATTN=0, its best setting on a CPU.

The programs take turns; the order is reversed in every second round. A turn starts a program in its own processes and
ends it. The first `-warmup` steps are not timed. Then the loading workers are paused until the program has used their
prefetched batches. The next `-steps` steps are timed by the clock of this script, between the arrivals of two log
lines. A ratio is the median of the ratios within the rounds. `-json` is rewritten after every turn.

`-loops` runs busy loops beside the turns, as other programs would. `-spins` are values of libgomp's GOMP_SPINCOUNT: how
long OpenMP's threads spin on a CPU before they sleep. 300000 is libgomp's default; 0 is OMP_WAIT_POLICY=passive.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Train
from datasets.loading.slots import PREFETCH_FACTOR
from engine.training.trial import build_state, ready_batches
from scripts.benchmarks.common import ENTRY, parse_names, print_result
from scripts.benchmarks.images import IMAGENET, link_images, make_images
from scripts.benchmarks.programs import BARE, TIMM, Program, add_turn_flags, entry_program, run_turn
from scripts.benchmarks.timm_command import EXPLICIT_ATTENTION, add_timm_flag, check_comparable, timm_flags
from scripts.benchmarks.training_parts import bare_loop
from scripts.benchmarks.turns import Figures, figures_table, memory, ratio_table, speed, speed_ratios, take_turns
from scripts.flags import add_flag, flag_parser, numbers, split_flags
from utils.device import peak_memory_bytes, synchronize, visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_train.py"
NO_DROPOUT = ["-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32", "-num_workers=2", "-amp", *NO_DROPOUT]
PROGRAMS = ("jpeg", "ready", "ranks", "bare", "timm", "timm_explicit")
OTHERS = PROGRAMS[3:]  # not the entry scripts
RATIOS = (("jpeg", "timm"), ("jpeg", "timm_explicit"), ("ready", "bare"), ("jpeg", "ready"), ("bare", "timm"))
SUPPORTED = {"accum_iter": 1, "model_ema": False, "mixup_alpha": 0.0, "cutmix_alpha": 0.0}  # the only values


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*DEFAULTS, *rest]).config
    if flags.worker:
        for line in run_bare_loop(config, flags.interval):
            print(line, flush=True)
    names = checked_programs(flags, config)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if set(names) - {"ready", "ranks", "bare"}:
            images = flags.data or folder / "images"
            if not flags.data:
                make_images(images, IMAGENET)
            link_images(images, folder / "data", entries=max_steps(flags, config) * config.data.batch_size)
        programs = {name: build_program(name, rest, config, flags, folder) for name in names}
        figures = measure_turns(programs, flags, config.data.batch_size)
    ratios = speed_ratios(figures, ratio_pairs(names, flags))
    texts = [
        f"{flags.rounds} turns of {flags.steps} steps each, after {flags.warmup} warm-up steps:",
        figures_table(figures, {"images/s": speed, "peak memory (GB)": memory}),
        ratio_table(ratios),
    ]
    print_result(SCRIPT, argv, config.data.batch_size, texts, flags.json, figures=figures, ratios=ratios)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares training through the entry script with a bare loop and timm's train.py.")
    add_timm_flag(parser)
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "programs", metavar="A,B", help=f"of {', '.join(PROGRAMS)} (default: all that can run here)")
    loops = "numbers of busy loops beside each program (default: 0)"
    add_flag(parser, "loops", type=numbers, default=[0], metavar="A,B", help=loops)
    spins = "values of GOMP_SPINCOUNT; ratios to the first one (default: the entry scripts')"
    add_flag(parser, "spins", type=numbers, default=[None], metavar="A,B", help=spins)
    add_turn_flags(parser, rounds=6, warmup=8, steps=12)
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # run the bare loop in this process
    return parser


def measure_turns(programs: dict[str, Program], flags: argparse.Namespace, batch_size: int) -> Figures:
    """The figures of each program beside each number of loops, with each number of spins."""
    turns = {label(*turn): turn for turn in product(programs, flags.loops, flags.spins)}

    def measure(turn: str, _: int) -> dict[str, float]:
        name, loops, spins = turns[turn]
        program, ranks = programs[name], max(1, visible_gpus()) if name == "ranks" else 1
        if spins is not None:
            program = program._replace(command=["env", f"GOMP_SPINCOUNT={spins}", *program.command])
        with ExitStack() as busy:
            for _ in range(loops):
                loop = busy.enter_context(Popen([sys.executable, "-Sc", "while True: pass"]))
                busy.callback(loop.kill)
            return run_turn(program, flags.warmup, flags.steps, flags.limit, ranks * batch_size)

    return take_turns(list(turns), flags.rounds, measure, flags.json)


def ratio_pairs(names: list[str], flags: argparse.Namespace) -> list[tuple[str, str]]:
    """Two programs beside the same loops, and one program with other spins."""
    (first, *others), beside = flags.spins, list(product(flags.loops, flags.spins))
    programs = [(label(one, *same), label(other, *same)) for one, other in RATIOS for same in beside]
    turns = product(names, flags.loops)
    return programs + [(label(*turn, spins), label(*turn, first)) for turn in turns for spins in others]


def label(name: str, loops: int, spins: int | None) -> str:
    beside = [f"{loops} busy loops"] if loops else []
    return ", ".join([name, *beside, *([] if spins is None else [f"{spins} spins"])])


def checked_programs(flags: argparse.Namespace, config: Config) -> list[str]:
    """The programs to run. Raises UserError for flags and options that cannot be compared."""
    timms = () if flags.timm_train is None else ("timm",) if visible_gpus() else ("timm", "timm_explicit")
    names = parse_names("programs", flags.programs, PROGRAMS) if flags.programs else ["jpeg", "ready", "bare", *timms]
    if any(name.startswith("timm") for name in names):
        if flags.timm_train is None:
            raise UserError("-programs timm: needs -timm_train PATH, the train.py of a checkout of timm")
        check_comparable(config)
    check_supported(config.train)
    if config.amp.enabled and config.amp.level != "O1" and any(name in OTHERS for name in names):
        raise UserError(f"AMP.LEVEL {config.amp.level}: {', '.join(OTHERS)} support O1 only; use -programs=jpeg,ready")
    return names


def check_supported(train: Train) -> None:
    """Raises UserError for options that not all programs have, or that change their work per step."""
    others = {key: value for key, value in SUPPORTED.items() if getattr(train, key) != value}
    if others:
        fixes = " ".join(f"TRAIN.{key.upper()}={str(value).lower()}" for key, value in others.items())
        raise UserError(f"the comparison does not support this recipe; add -opts {fixes}")


def max_steps(flags: argparse.Namespace, config: Config) -> int:
    """Upper bound of the steps of a program in a turn. An epoch is at least as long."""
    return flags.warmup + flags.steps + (PREFETCH_FACTOR + 1) * config.data.num_workers + 3 * flags.interval


def build_program(name: str, rest: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> Program:
    """folder: has the JPEGs in `data`; gets the folders of the runs."""
    if name == "bare":
        return Program([sys.executable, __file__, "-worker", f"-interval={flags.interval}", *rest], BARE)
    if name.startswith("timm"):
        command = EXPLICIT_ATTENTION if name == "timm_explicit" else []
        words = timm_flags(config, folder / "data", folder / "timm", flags.interval)
        return Program([*command, sys.executable, str(flags.timm_train), *words], TIMM, config.data.num_workers > 0)
    data = ["-dataset=folder", f"-data_path={folder / 'data'}"] if name == "jpeg" else None
    entry = ENTRY.with_name("main_multi_gpu.py") if name == "ranks" else ENTRY
    program = entry_program([*DEFAULTS, *rest], flags.interval, folder / name, data, entry)
    return program._replace(prefetches=program.prefetches and name != "ranks")  # its child processes are the ranks


def run_bare_loop(config: Config, interval: int) -> Iterator[str]:
    """Trains without end and yields a log line after every `interval` steps."""
    context = single_process()
    loop = bare_loop(build_state(config, context), config.train, ready_batches(config, context))
    for steps in count(interval, interval):
        loop(interval)
        synchronize(context.device)
        yield f"bare loop, step {steps - 1}, {peak_memory_bytes(context.device) / 1e9:.3f}G"


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
