"""Averages the weights of checkpoints, evaluates the average, and writes it for -pretrained.

    python scripts/average_checkpoints.py RUN
    python scripts/average_checkpoints.py RUN RUN RUN -output soup.pth

This is the uniform soup (Wortsman et al., 2022): of the checkpoints of one run, or of the best weights of several runs
of one model, such as runs that fine-tune the same weights with other options. A run keeps its newest checkpoints only;
-opts SAVE_FREQ=1 KEEP_CHECKPOINTS=10 keeps more. Where a checkpoint has averaged weights (TRAIN.MODEL_EMA), these are
used. All flags of main_single_gpu.py may follow, such as -data_path.
"""

import shlex
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.flags import add_flag
from configs.yaml_io import write_yaml
from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.run_folder import checkpoints_by_progress
from engine.checkpoint.weights_record import exported_entry, read_record
from engine.evaluation.fast import speed_up
from engine.evaluation.session import build_eval_model
from models.weights.choose import EVALUATE
from models.weights.fit import load_pretrained
from models.weights.names import State
from scripts.flags import find_source, new_file, script_parser, split_flags, split_sources
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained
from utils.distributed import single_process
from utils.errors import UserError, print_escaped
from utils.files import atomic_save, remove_temporary_of
from utils.processes.entry import run_script

SCRIPT = "scripts/average_checkpoints.py"


def main(argv: list[str]) -> int:
    names, argv = split_sources(argv)
    usage = "RUN [RUN ...] [-output FILE] [flags of main_single_gpu.py]"
    what = "the checkpoints of RUN, or the best weights of several runs or files"
    parser = script_parser("average_checkpoints.py", usage, f"Averages {what}.")
    file_help = "checkpoint to write (default: average.pth in the first run's folder)"
    add_flag(parser, "output", type=new_file, metavar="FILE", help=file_help)
    flags, rest = split_flags(parser, argv)
    sources = list(dict.fromkeys(map(find_source, names)))
    if not sources or (len(sources) == 1 and not sources[0].is_dir()):
        raise UserError("give the folder of a run, or several runs or weight files, as the first arguments")
    if flags.output and flags.output.suffix != ".pth":
        raise UserError(f"-output {flags.output}: must end with .pth; add it")
    command = parse_command_line(["-eval", f"-pretrained={sources[0]}", *rest], SCRIPT)
    paths = _checkpoints(sources[0]) if len(sources) == 1 else list(dict.fromkeys(map(locate_weights, sources)))
    if len(paths) < 2:
        raise UserError(f"{sources[0]}: an average needs two checkpoints; train with SAVE_FREQ=1, or name more runs")
    context = single_process()
    trained = open_trained(command.with_weights(paths[0]), context)
    for path in paths[1:]:
        _check_same_data(trained, path)
    config = trained.config
    built = build_eval_model(config, context, record=trained.record)
    mean = built.fp32.state_dict()
    print_escaped(f"read: {paths[0]}")
    for count, path in enumerate(paths[1:], start=1):
        add = partial(add_to_mean, mean, count=count)
        load_pretrained(built.fp32, str(path), config.model, EVALUATE, trained.record.image_size, add)
        print_escaped(f"read: {path}")
    if trained.samples:
        speed_up(built.compute, config, built.evaluator.precision, len(trained.samples), keeps_weights=True)
    trained = trained.measure(built)
    output = flags.output or paths[0].with_name("average.pth")
    if any(name.endswith(".running_mean") for name in mean):
        print("Note: the running statistics of the batch norms are averaged, not measured again")
    weights = {name: tensor.cpu() for name, tensor in mean.items()}
    options = trained.options | {"EVAL": {"TTA": config.eval.tta}}  # of its figure and its thresholds
    about = {"options": write_yaml(options)} | trained.description | exported_entry(trained.split)
    about["class_names"] = trained.class_names  # of labels that are numbers none, as before
    if output.exists():
        print_escaped(f"Replacing: {output}, which another command wrote; -output keeps it")
    remove_temporary_of(output)
    atomic_save(output, {"model": weights} | about)  # a checkpoint without optimizer
    text = f"Saved: {output}, the mean of {len(paths)} weights, {trained.measured}"
    print_escaped(f"{text}; use it with -pretrained={shlex.quote(str(output))}")
    return 0


def add_to_mean(mean: State, state: State, count: int) -> None:
    """Adds one more state to the mean of `count`: computed in float64, a tensor at a time, and kept in its own type.

    Integers, such as counters, stay. A tensor with several names, as in CoaT, is averaged once.
    """
    by_place = {tensor.data_ptr(): (name, tensor) for name, tensor in mean.items()}
    for name, tensor in by_place.values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.double().lerp(state[name].to(tensor).double(), 1 / (count + 1)))


def _checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, each position once. Damaged ones are left out, with a line."""
    found = {}
    for path in checkpoints_by_progress(run):
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            print_escaped(f"skipped: {error}", file=sys.stderr)
            continue
        first = found.setdefault((checkpoint["epoch"], checkpoint["done_steps"]), path)
        if first != path:
            print_escaped(f"not read: {path}, of the same step as {first.name}")
    return list(found.values())


def _check_same_data(trained: TrainedModel, path: Path) -> None:
    """Raises UserError if the file states other classes, another preprocessing or another split."""
    first = read_record(str(trained.weights))
    other = read_record(str(path))
    if other is None or first is None:
        return
    of_first, of_other = (
        {"classes": record.class_names, "preprocessing": record.preprocessing, "held-out images": record.split}
        for record in (first, other)
    )
    if differing := [name for name, value in of_first.items() if of_other[name] != value]:
        raise UserError(
            f"{path}: was trained with other {', '.join(differing)} than {trained.weights}; "
            "average the predictions in place of the weights (docs/evaluation.md)"
        )


if __name__ == "__main__":
    run_script(main)
