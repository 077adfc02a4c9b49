"""Prints how large and how branched the sources are: tokens, branches, and the most branched functions, by room.

Counted on the syntax tree, so that formatting changes nothing. A token is one of Python's tokens besides comments,
docstrings, imports, and line ends. A branch is a place where a reader has to choose: `if`, `elif`, a conditional
expression, a filter of a comprehension, `and`, `or`, `except`, `case`. A room is a folder of the second level.

    python scripts/size.py
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parse_sources() -> dict[Path, tuple[str, ast.Module]]:
    """Texts and syntax trees of the Python files that git tracks, by path; empty outside a clone."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    paths = [Path(name) for name in listed.stdout.split()]
    texts = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def is_product(path: Path) -> bool:
    return path.parts[0] != "tests"


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count_tokens(text: str, tree: ast.Module) -> int:
    left_out = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    words = (token for token in tokens if token.string.strip() and token.type != tokenize.COMMENT)
    return sum(token.start[0] not in left_out for token in words)


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


def branches_of_functions(sources: dict[Path, tuple[str, ast.Module]]) -> dict[str, int]:
    """Branches of each function of the product, by "path:name"."""
    found = {}
    for path, (_, tree) in sources.items():
        for node in ast.walk(tree):
            if is_product(path) and isinstance(node, FUNCTIONS):
                found[f"{path}:{node.name}"] = count_branches(node)
    return found


def main() -> None:
    sources = parse_sources()
    tokens = Counter[str]()
    branches = Counter[str]()
    for path, (text, tree) in sources.items():
        size = count_tokens(text, tree)
        choices = count_branches(tree)
        kind = "the product" if is_product(path) else "the tests"
        for room in (kind, str(Path(*path.parent.parts[:2]))):
            tokens[room] += size
            branches[room] += choices
    print(f"{'room':32} {'tokens':>8} {'branches per 1,000 tokens':>26}")
    for room, size in tokens.most_common():
        print(f"{room:32} {size:8,} {1000 * branches[room] / max(size, 1):26.1f}")
    print("the most branched functions of the product:")
    for name, choices in Counter(branches_of_functions(sources)).most_common(10):
        print(f"{choices:4}  {name}")


if __name__ == "__main__":
    main()
