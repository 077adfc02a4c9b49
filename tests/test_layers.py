"""The structure of the sources: a layer imports lower layers only; files and functions are short."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import OPTIONAL_MODULES, ROOT

REQUIRED_MODULES = {
    "torch", "torchvision", "timm", "yaml", "tqdm", "numpy", "PIL", "safetensors", "pydantic", "pydantic_core",
    "jinja2", "markupsafe", "nvidia",  # torch needs them
    "huggingface_hub",  # timm needs it
}  # fmt: skip
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
    {"features"},
    {"report"},
    {"evaluation"},
    {"plan"},
    {"run"},
    {"checkpoint", "precision", "parallel"},
    {"progress"},
]
# The modules of `configs`, top layer first.
CONFIGS_LAYERS = [
    {"command_line"},
    {"help", "compare"},
    {"resolve"},
    {"load"},
    {"flags", "weights", "batch_plan"},
    {"schema"},
    {"parts"},
    {"yaml_io"},
]
PROJECT_MODULES = {*LAYERS, "scripts", "tests", "main_single_gpu", "main_multi_gpu"}
PRODUCT_FILES = [*ROOT.glob("main_*.py"), *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 100


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


@pytest.mark.parametrize(("layer", "layers"), [("engine", ENGINE_LAYERS), ("configs", CONFIGS_LAYERS)])
def test_the_parts_of_a_layer_import_only_lower_parts(layer, layers):
    depth = {name: number for number, names in enumerate(layers) for name in names}
    for path in (ROOT / layer).rglob("*.py"):
        package = path.relative_to(ROOT / layer).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for module in imported_modules(path):
            top, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if top == layer and other != package:
                assert depth[other] > depth[package], f"{path.relative_to(ROOT)} imports {module}"


def test_files_and_functions_are_short():
    for path in PRODUCT_FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= MAX_FILE_LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MAX_FUNCTION_LINES, f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"


def test_test_files_have_different_names():
    """pytest collects them by their names: two of one name end the collection."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_private_names_of_torch_are_in_one_file():
    """`torch._foreach_*` is allowed: optimizers outside of torch rely on it."""
    private = re.compile(r"\b(?:torch|dist)\.(?:\w+\.)*_(?!_|foreach_)\w+|\btorch\._C\b")
    for path in [*PRODUCT_FILES, *(ROOT / "scripts").rglob("*.py")]:
        if path != ROOT / "utils" / "torch_compat.py":
            found = private.findall(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} uses {found}: add a function to utils/torch_compat.py"


def test_only_declared_packages_are_imported():
    allowed = REQUIRED_MODULES | OPTIONAL_MODULES | PROJECT_MODULES | sys.stdlib_module_names
    for path in PRODUCT_FILES:
        assert not top_level_modules(path) - allowed, path


def loaded_with(*modules: str) -> set[str]:
    """All modules that a process has loaded after it imported these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_configs_and_the_entry_scripts_import_no_torch():
    """So that -h and a wrong flag are answered at once."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PRODUCT_FILES]
    loaded = loaded_with(*(module for module in modules if module.startswith(("configs.", "main_"))))
    assert {"configs.schema.families.registry", "configs.flags", "configs.resolve"} < loaded
    assert not {"torch", "torchvision", "timm", "numpy"} & loaded
