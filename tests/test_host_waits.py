"""Training does not wait for the GPU: calls that read a tensor on the host occur in known functions only."""

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import ROOT

FOLDERS = ("engine/training", "engine/precision", "datasets/transforms")
METHODS = {"item", "cpu", "tolist", "numpy", "nonzero", "argwhere", "is_nonzero", "synchronize", "equal", "allclose"}
CONVERSIONS = {"int", "float", "bool"}
TENSORS = {"loss", "logits", "grad_norm", "scaled_norm", "last_skipped", "skipped", "targets"}  # no conditions on them
ALLOWED = {
    # at a checkpoint, a report, or the end of a run
    ("engine/precision/loss_scaler.py", "LossScaler.skipped"): ["int"],
    ("engine/precision/loss_scaler.py", "LossScaler.consecutive_skipped"): ["int"],
    ("engine/precision/loss_scaler.py", "LossScaler.state_dict"): ["tolist"],
    ("engine/precision/non_finite.py", "_all_finite"): ["bool"],
    # an event of the step before the last one, which limits how far the host runs ahead
    ("engine/precision/loss_scaler.py", "LossScaler.skipped_too_often"): ["synchronize"],
    # optimizers that are not fused; DESIGN: "with a fused optimizer, the host waits only ..."
    ("engine/precision/loss_scaler.py", "LossScaler.step"): ["if last_skipped"],
    # tensors and numbers of the host: images of Pillow, draws of mixup, the boxes of a run on a CPU, learning rates
    ("datasets/transforms/device.py", "RandomErase.forward"): ["tolist", "tolist"],
    ("datasets/transforms/mixup.py", "Mixup.forward"): ["int"],
    ("datasets/transforms/mixup.py", "_minmax_boxes"): ["int"],
    ("datasets/transforms/mixup.py", "Mixup.mix_batch"): ["float", "tolist"],
    ("datasets/transforms/pillow_ops.py", "module"): ["int"] * 5,
    ("datasets/transforms/policies.py", "to_pillow"): ["numpy"],
    ("datasets/transforms/timm_policy.py", "_build"): ["int"],
    ("engine/training/step_graph.py", "StepGraph.run"): ["tolist"],
}


def waits_in(source: str) -> Iterator[tuple[str, str]]:
    """(function, call) for each call of `METHODS` and `CONVERSIONS`, and for each condition on one of `TENSORS`."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inside = function
            if isinstance(child, ast.FunctionDef):
                inside = f"{node.name}.{child.name}" if isinstance(node, ast.ClassDef) else child.name
            if isinstance(child, ast.Call):
                name = getattr(child.func, "attr", None)
                if name in METHODS:
                    yield inside, name
                elif getattr(child.func, "id", None) in CONVERSIONS and child.args:
                    yield inside, child.func.id
            if isinstance(child, ast.If | ast.IfExp | ast.While | ast.Assert):
                yield from ((inside, f"if {name}") for name in _truth_values(child.test))
            yield from visit(child, inside)

    return visit(ast.parse(source), "module")


def _truth_values(test: ast.AST) -> Iterator[str]:
    """The names among `TENSORS` whose truth value, or whose comparison with a number, decides `test`."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _truth_values(value)
    elif isinstance(test, ast.UnaryOp):
        yield from _truth_values(test.operand)
    elif isinstance(test, ast.Compare):
        if not any(isinstance(operator, ast.Is | ast.IsNot) for operator in test.ops):
            yield from _truth_values(test.left)
    else:
        name = getattr(test, "attr", getattr(test, "id", None))
        if name in TENSORS:
            yield name


def test_the_host_waits_in_known_functions_only():
    found: dict[tuple[str, str], list[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for function, call in waits_in(path.read_text()):
                found.setdefault((str(path.relative_to(ROOT)), function), []).append(call)
    assert {place: Counter(calls) for place, calls in found.items()} == {
        place: Counter(calls) for place, calls in ALLOWED.items()
    }


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("total += loss.item()", "item"),
        ("x = float(loss)", "float"),
        ("rows = mask.nonzero()", "nonzero"),
        ("y = 1 if self.last_skipped else 2", "if last_skipped"),
        ("if step and grad_norm > 3: pass", "if grad_norm"),
        ("if loss is None: pass", None),
        ("torch.where(loss > 3, loss, 0)", None),
    ],
)
def test_a_wait_is_found(line, call):
    assert list(waits_in(f"def step(self):\n    {line}")) == ([("step", call)] if call else [])
