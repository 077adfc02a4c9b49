"""The size of the sources, counted on the syntax tree: tokens per room, branches per function, and three knots.

Lines are free, since a formatter or a joined line changes them. A token is one of Python's tokens besides comments,
docstrings, imports, and line ends. A branch is a place where a reader has to choose: `if`, `elif`, a conditional
expression, a filter of a comprehension, `and`, `or`, `except`, `case`. Lower a number when the code has got smaller.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

# Tokens of the files in a folder, subfolders of the second level apart.
CEILINGS = {
    ".": 525,
    "configs": 20241,
    "configs/schema": 14544,
    "datasets": 4107,
    "datasets/decoding": 5047,
    "datasets/loading": 6085,
    "datasets/shards": 12241,
    "datasets/sources": 35431,
    "datasets/transforms": 5181,
    "engine": 3939,
    "engine/checkpoint": 7402,
    "engine/commands": 1919,
    "engine/evaluation": 15914,
    "engine/features": 5014,
    "engine/plan": 6055,
    "engine/precision": 6858,
    "engine/profiling": 4366,
    "engine/report": 10208,
    "engine/run": 11365,
    "engine/training": 18427,
    "models": 15701,
    "models/weights": 9585,
    "scripts": 6883,
    "scripts/benchmarks": 7891,
    "scripts/exporting": 3599,
    "scripts/kubernetes": 230,
    "scripts/weights": 810,
    "utils": 11735,
    "utils/file_formats": 2618,
    "utils/processes": 3088,
    "tests": 11702,
    "tests/configs": 7174,
    "tests/datasets": 64996,
    "tests/engine": 111497,
    "tests/fixtures": 378,
    "tests/models": 26917,
    "tests/scripts": 11949,
    "tests/stress": 12982,
    "tests/utils": 9987,
}
MAX_PRODUCT_FILES = 182
MAX_BRANCHES = 15

FORMATTING = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count_tokens(text: str, tree: ast.Module) -> int:
    left_out = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in FORMATTING and token.start[0] not in left_out for token in tokens)


def count_branches(tree: ast.AST) -> int:
    branches = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.ExceptHandler, ast.match_case)):
            branches += 1
        elif isinstance(node, ast.comprehension):
            branches += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
    return branches


def knots_in(tree: ast.Module) -> Counter[str]:
    knots = Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            knots["conditional expression in another"] += sum(isinstance(one, ast.IfExp) for one in ast.walk(node)) > 1
        elif isinstance(node, COMPREHENSIONS):
            knots["walrus in a comprehension"] += any(isinstance(one, ast.NamedExpr) for one in ast.walk(node))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            # Values of one kind (two products, two calls) belong together, as do a swap and a step of a recurrence.
            kinds = {type(value) for value in node.value.elts}
            knots["unrelated values in one assignment"] += isinstance(node.targets[0], ast.Tuple) and len(kinds) > 1
    return knots


@cache
def sources() -> dict[Path, tuple[str, ast.Module]]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    paths = [Path(name) for name in listed.stdout.split()]
    texts = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def is_product(path: Path) -> bool:
    return path.parts[0] != "tests"


def test_no_room_has_more_tokens_than_its_ceiling():
    sizes = Counter[str]()
    for path, (text, tree) in sources().items():
        sizes[str(Path(*path.parent.parts[:2]))] += count_tokens(text, tree)
    excess = {room: size - CEILINGS.get(room, 0) for room, size in sizes.items()}
    too_large = {room: tokens for room, tokens in excess.items() if tokens > 0}
    assert not too_large, "remove code, or take the room from another one"
    assert sum(is_product(path) and path.name != "__init__.py" for path in sources()) <= MAX_PRODUCT_FILES


def test_no_function_of_the_product_has_more_branches_than_a_reader_follows():
    tangled = {}
    for path, (_, tree) in sources().items():
        for node in ast.walk(tree):
            if is_product(path) and isinstance(node, FUNCTIONS) and count_branches(node) > MAX_BRANCHES:
                tangled[f"{path}:{node.name}"] = count_branches(node)
    assert not tangled, "split the function by subject: a name for each step"


def test_the_product_has_no_knots():
    knots = Counter[str]()
    for path, (_, tree) in sources().items():
        if is_product(path):
            knots += knots_in(tree)
    assert not knots, "write each step on a line of its own"
