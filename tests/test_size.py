"""A function of the product has no more branches than a reader follows; `python scripts/size.py` prints all sizes."""

from test_layers import SOURCES, nodes_of

from scripts.size import FUNCTIONS, count_branches

MAX_BRANCHES = 15


def test_no_function_of_the_product_has_more_branches_than_a_reader_follows():
    functions = [(path, node) for path in SOURCES for node in nodes_of(path) if isinstance(node, FUNCTIONS)]
    assert len(functions) > 1000
    tangled = [(path.name, node.name) for path, node in functions if count_branches(node) > MAX_BRANCHES]
    assert not tangled, "split the function by subject: a name for each step"
