"""Lines are wrapped between parts; durations have two units."""

import pytest

from utils.tables import format_duration, wrap_parts


def test_lines_are_wrapped_between_parts():
    assert wrap_parts(["a" * 60, "b, c", "d" * 60, "e" * 200], indent="    ") == [
        f"{'a' * 60}, b, c",
        f"    {'d' * 60}",
        f"    {'e' * 200}",
    ]
    assert wrap_parts(["x" * 59, "y" * 59]) == [f"{'x' * 59}, {'y' * 59}"]  # exactly 120
    assert wrap_parts([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4.24, "4.2s"), (9.97, "10s"), (59.7, "1m00s"), (36_180, "10h03m"), (86_399.9, "1d00h"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert format_duration(seconds) == text
