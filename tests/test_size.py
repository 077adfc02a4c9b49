"""A function of the product has no more branches than a reader follows; `python scripts/size.py` prints all sizes."""

import pytest

from scripts.size import branches_of_functions, parse_sources

MAX_BRANCHES = 15


def test_no_function_of_the_product_has_more_branches_than_a_reader_follows():
    sources = parse_sources()
    if not sources:
        pytest.skip("not a clone")
    branches = branches_of_functions(sources)
    assert len(branches) > 1000
    tangled = {name: count for name, count in branches.items() if count > MAX_BRANCHES}
    assert not tangled, "split the function by subject: a name for each step"
