"""The screen cuts a line at 110 characters: each warning opens with its consequence."""

import ast
from pathlib import Path

import pytest
from conftest import ROOT

MAX_OPENING = 100 - len("Warning: Pretrained: ")
# Of each file with texts of warnings, the openings; {} is a value. A new warning gets a line here.
OPENINGS = {
    "configs/command_line.py": ["{} registers no part; use @register_model", "{} does not use {}"],
    "configs/parts.py": ["{} has changed: its SHA-256 is {}, in the run {}"],
    "configs/resolve.py": ["old keys without effect: {}", "{}: no effect without -amp"],
    "configs/weights.py": ["other pixels than the weights expect"],
    "datasets/loading/loader.py": ["{}: used, but its decoder warns: {}"],
    "datasets/registry.py": ["the figures are too high: {}"],
    "datasets/shards/data_set.py": [
        "not read are {} further images",
        "{}: cannot be read ({}); it is built again",
        "{}: cannot be written ({}); no run",
    ],
    "datasets/shards/samples.py": ["samples are read from their source: {}"] * 3,
    "datasets/sources/checks.py": [
        "{} training images per class (median); {}",
        "{} of {} classes have {} ({}); {}",
        "{} has {} training images, {} ",
        "16-bit images become {} of 256 levels",
        "{} image(s) cannot be read and are skipped",
        "some labels are wrong",
        "the figures are too high",
        "of {} images have further frames or pages",
    ],
    "datasets/sources/folders/advice.py": ["the folders decide, "],
    "datasets/sources/folders/class_folders.py": [
        "masks or copies are used: {}",
        "image(s) beside the class folders are not read",
        "{} file(s) are not read",
        "{}(s) cannot be read",
    ],
    "datasets/sources/groups.py": ["figures are too high if {} is a patient"],
    "datasets/sources/folders/labels.py": ["{} masks with the names of images are not read, such as {}"],
    "datasets/sources/listed/lists.py": ["{} is trained as a class"],
    "datasets/sources/names.py": ["classes {} differ only in case", "not evaluated: {}"],
    "datasets/sources/split.py": [
        "the figures may be too high: the checkpoint has no list of held-out images",
        "the figures are too high: the checkpoint was trained on {}",
        "the figures are of other images than before: {}",
        "the largest of {} folds has {}",
    ],
    "datasets/sources/folders/split_folders.py": ["{} is read as a class; if it is the training split"],
    "datasets/sources/tables/rows.py": ["no image of {} is found in {}"],
    "engine/commands/evaluate.py": ["{} cannot be written: {}"],
    "engine/features/probe.py": ["Probe: one group has all training images"],
    "engine/parallel.py": ["{} of {} marked modules ran compiled"],
    "engine/plan/training.py": [
        "Resume: skipped: {}",
        "all training images are of one class",
        "the model has {} classes, and the data {}",
    ],
    "engine/precision/policy.py": [
        "float16 is 10 to 100 times slower than -amp_dtype=bfloat16 on a CPU",
        "bfloat16 is up to 90 times slower than -amp=no on this CPU",
        "half precision saves memory, but no time",
        "this GPU emulates bfloat16",
    ],
    "engine/report/overview.py": ["LOSS.CLASS_WEIGHTS shifts the probabilities: that {}"],
    "engine/run/cost.py": ["rank {} on {} was {} slower than the median rank"],
    "engine/run/folder.py": ["Resume: may not be bit-exact: {}"],
    "engine/run/loggers.py": ["LOGGERS: {} lacks values: {}"],
    "engine/run/record.py": ["{}: {}; the run continues without them"],
    "engine/run/reporter.py": ["Data: {} of {} images skipped", "Data: {}: see bad_images_*.csv"],
    "engine/training/describe.py": [
        "one process: PARALLEL.STRATEGY {} has no effect",
        "TRAIN.WARMUP_EPOCHS {} exceeds half of NUM_EPOCHS {}; lower it",
        "TRAIN.END_LR {} exceeds BASE_LR {}, so the rate rises; lower it",
        "BASE_LR {} is tuned for a global batch of {}, not {}",
        "the initial weights are {} of the last average; {}",
        "MODEL.TUNE={} keeps random weights",
    ],
    "engine/training/end.py": [
        "test images: {}",
        "{} of {} test images cannot be read and do not count",
        "{} cannot be written: {}",
    ],
    "engine/training/optimizer.py": ["without a gradient, so never trained: {}"],
    "engine/training/outputs.py": ["Resume: missing in {}: {}", "{} cannot be written: {}"],
    "engine/training/session.py": ["ranks round differently: {}"],
    "engine/training/snapshot.py": [
        "the adapters cannot be written for peft: {}",
        "the main process may be killed when it saves: {}",
        "fewer than two checkpoints fit: {}",
    ],
    "engine/training/train_batch.py": ["{}: cannot be drawn ({})"],
    "engine/training/trainer.py": ["{} is undefined on these validation images; the lowest loss decides"],
    "models/weights/fit.py": ["the results differ from the results of the weights' own program"],
    "utils/device.py": ["this run uses the CPU: torch {} is built without CUDA"],
    "utils/files.py": ["nothing is locked, since the file system of {} has no flock"],
}
FORWARDING = {"engine/run/log.py", "engine/evaluation/session.py", "engine/plan/recipe.py"}  # texts of others


def text_of(node: ast.expr) -> str | None:
    """The literal text of a string, with {} for values; None for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def warning_of(node: ast.AST) -> ast.expr | None:
    """The expression of the text, if the node is a call that warns."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = ast.unparse(node.func).rpartition(".")[2]
    is_note = name == "Note" and "'warning'" in ast.unparse(node.args[0])
    return node.args[-1] if is_note or name in ("warn", "_warn", "warning") else None


def sources() -> dict[str, ast.Module]:
    paths = [
        path for top in ("configs", "datasets", "engine", "models", "utils") for path in (ROOT / top).rglob("*.py")
    ]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def test_each_warning_is_in_the_table():
    for file, tree in sources().items():
        texts = [text for node in ast.walk(tree) if (text := warning_of(node)) is not None]
        literal = [text for text in texts if text_of(text)]
        assert not texts or file in OPENINGS or file in FORWARDING, file
        assert len(literal) <= len(OPENINGS.get(file, literal)), file


@pytest.mark.parametrize("file", sorted(OPENINGS))
def test_a_warning_opens_with_its_consequence(file):
    nodes = ast.walk(ast.parse((Path(ROOT) / file).read_text()))
    texts = [text for node in nodes if isinstance(node, ast.expr) and (text := text_of(node))]
    for opening in OPENINGS[file]:
        assert len(opening.replace("{}", "12345678")) <= MAX_OPENING, opening
        assert any(text.startswith(opening) for text in texts), opening
