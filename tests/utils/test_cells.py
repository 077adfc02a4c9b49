"""Cells of CSV files with text from outside."""

import pytest

from utils.tables import safe_cell, unescaped_cell


@pytest.mark.parametrize("text", ["=1+1", "+49", "-x", "@home", "cat", "'quoted'", "", "'", "a=b"])
def test_a_cell_is_read_back_as_its_text(text):
    cell = safe_cell(text)
    assert unescaped_cell(cell) == text and not cell.startswith(("=", "+", "-", "@"))
