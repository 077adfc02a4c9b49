"""The structure of the sources: a layer imports lower layers only; files and functions are short."""

import ast
import re
from pathlib import Path

import pytest

from tests.hidden_packages import OPTIONAL_MODULES

ROOT = Path(__file__).parents[1]
LAYERS = {
    "utils": {"utils"},
    "configs": {"configs", "utils"},
    "models": {"models", "configs", "utils"},
    "datasets": {"datasets", "configs", "utils"},
    "engine": {"engine", "models", "datasets", "configs", "utils"},
}
# The packages of `engine`, top layer first; packages of the same layer do not import each other.
ENGINE_LAYERS = [
    {"commands"},
    {"profiling"},
    {"training"},
    {"report"},
    {"evaluation"},
    {"run"},
    {"checkpoint", "precision", "parallel", "progress"},
]
PROJECT_MODULES = {*LAYERS, "scripts", "tests", "main_single_gpu", "main_multi_gpu"}
PRODUCT_FILES = [*ROOT.glob("main_*.py"), *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 60


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return modules


def top_level_modules(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imported_modules(path)}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_only_lower_layers(layer):
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        upward = top_level_modules(path) & PROJECT_MODULES - LAYERS[layer]
        assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


def test_engine_packages_import_only_lower_packages():
    depth = {name: number for number, names in enumerate(ENGINE_LAYERS) for name in names}
    for path in (ROOT / "engine").rglob("*.py"):
        package = path.relative_to(ROOT / "engine").parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for module in imported_modules(path):
            top, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if top == "engine" and other != package:
                assert depth[other] > depth[package], f"{path.relative_to(ROOT)} imports {module}"


def test_files_and_functions_are_short():
    for path in PRODUCT_FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= MAX_FILE_LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MAX_FUNCTION_LINES, f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"


def test_private_names_of_torch_are_in_one_file():
    """`torch._foreach_*` is allowed: optimizers outside of torch rely on it."""
    private = re.compile(r"\b(?:torch|dist)\.(?:\w+\.)*_(?!_|foreach_)\w+|\btorch\._C\b")
    for path in [*PRODUCT_FILES, *(ROOT / "scripts").rglob("*.py")]:
        if path != ROOT / "utils" / "torch_compat.py":
            found = private.findall(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} uses {found}: add a function to utils/torch_compat.py"


# The only modules that import an optional package when they are imported: `utils.packages.require` comes before them.
NEED_OPTIONAL_PACKAGES = ("datasets.shards.",)
BENCHMARKS = {f"scripts.benchmarks.{name}" for name in ("benchmark_gpu", "benchmark_train", "benchmark_input")}
BENCHMARKS |= {"scripts.benchmarks.gpu.machine", "scripts.benchmarks.gpu.parallel"}


def modules_imported_at_head(path: Path) -> set[str]:
    """Includes `from package import module`; leaves out imports in functions and in `if TYPE_CHECKING`."""
    modules, waiting = set(), [*ast.parse(path.read_text()).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef):
            waiting += ast.iter_child_nodes(node)
    return modules


def head_imports() -> dict[str, set[str]]:
    """By module of the product and the scripts."""
    files = [*PRODUCT_FILES, *(ROOT / "scripts").rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): modules_imported_at_head(path) for path in files}


def modules_reached_from(*modules: str) -> set[str]:
    """The modules that are imported with these, at the heads of files."""
    imports, reached, waiting = head_imports(), set(), list(modules)
    while waiting:
        reached.add(module := waiting.pop())
        waiting += imports.get(module, set()) - reached
    return reached


def test_configs_and_the_entry_scripts_import_no_torch():
    """So that -h and a wrong flag are answered at once."""
    reached = modules_reached_from(*(name for name in head_imports() if name.startswith(("configs.", "main_"))))
    assert {"configs.schema.families.registry", "configs.reading.flags", "configs.resolve", "utils.errors"} < reached
    assert not {"torch", "torchvision", "timm", "numpy"} & {module.partition(".")[0] for module in reached}


def test_a_training_command_imports_no_other_command_and_no_page():
    """Nor shards, FSDP on one rank, and profiling."""
    loaded = modules_reached_from("main_single_gpu", "engine.commands.run", "engine.commands.train")
    unused = r"datasets\.shards|engine\.(profiling|report\.[a-z]|parallel\.(ddp|fsdp))"
    unused += r"|engine\.commands\.(evaluate|predict|profile|dry_run)$"
    assert {"engine.training.step", "engine.parallel.strategy"} < loaded
    assert not {module for module in loaded if re.match(unused, module)}


def test_optional_packages_are_imported_where_they_are_used():
    """No product module, and no program that benchmark_gpu.py starts, needs them: at its head, or through another."""
    imports = head_imports()
    optional = {"torch.utils.tensorboard", *OPTIONAL_MODULES}
    needing = {name for name, found in imports.items() if ({m.partition(".")[0] for m in found} | found) & optional}
    while more := {name for name, modules in imports.items() if modules & needing} - needing:
        needing |= more
    assert not {name for name in needing if not name.startswith(("scripts.", *NEED_OPTIONAL_PACKAGES))}
    assert not needing & BENCHMARKS
