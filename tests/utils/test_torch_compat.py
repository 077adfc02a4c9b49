"""A failing test here names a private function of torch that a new version has changed."""

import pytest
import torch

from utils import torch_compat

CHANGED = "torch has changed this private name: adapt utils/torch_compat.py"


def test_sequence_numbers_connect_the_backward_pass_with_the_forward_pass():
    backward_numbers = []

    class Recorder(torch_compat.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if torch_compat.is_backward_pass():
                backward_numbers.append(torch_compat.current_sequence_number())
            return func(*args, **(kwargs or {}))

    value = torch.ones(3, requires_grad=True)
    assert not torch_compat.is_backward_pass(), CHANGED
    assert torch_compat.current_sequence_number() is None, CHANGED
    first = torch_compat.next_sequence_number()
    result = value.exp()
    last = torch_compat.next_sequence_number()
    assert first < last, CHANGED
    with Recorder():
        result.backward(torch.ones(3))
    assert any(first <= number < last for number in backward_numbers), CHANGED


@pytest.mark.parametrize(
    ("op", "name", "is_view"),
    [
        (torch.ops.aten.mm.default, "mm", False),
        (torch.ops.aten.view.default, "view", True),
        (torch.ops.aten.add_.Tensor, "add_", False),
    ],
)
def test_ops(op, name, is_view):
    assert torch_compat.is_op(op) and not torch_compat.is_op(torch.mm), CHANGED
    assert (torch_compat.op_name(op), torch_compat.is_view(op)) == (name, is_view), CHANGED


def test_a_backend_gets_the_forward_and_the_backward_graph():
    ops = {"forward": [], "backward": []}

    def compiler(name):
        def interpret(graph: torch.fx.GraphModule):
            ops[name] += [
                torch_compat.op_name(node.target) for node in graph.graph.nodes if torch_compat.is_op(node.target)
            ]
            return torch.fx.Interpreter(graph).run

        return interpret

    torch._dynamo.reset()
    function = torch.compile(torch.sin, backend=torch_compat.graph_backend(compiler("forward"), compiler("backward")))
    value = torch.ones(3, requires_grad=True)
    function(value).sum().backward()
    assert "sin" in ops["forward"] and "cos" in ops["backward"], CHANGED
    assert torch.equal(value.grad, torch.ones(3).cos())
