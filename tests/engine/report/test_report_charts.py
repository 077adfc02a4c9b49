"""The charts of the page: points, axes, colours."""

import math
import re

import numpy as np
from conftest import each_row
from numpy.random import default_rng
from pytest import approx, mark

from engine.report.charts import MAX_POINTS, Chart, Series, axis_of, downsample, option_text
from engine.report.contents import points
from engine.report.page import _environment

DRAWING = """{% import "macros.html" as m with context %}{{ m.drawing(chart) }}"""
PIXELS = re.compile(r'points="([^"]*)"')


def drawing(chart: Chart) -> str:
    return _environment().from_string(DRAWING).render(chart=chart, is_shared=False)


def values_at_pixels(svg: str) -> list[np.ndarray]:
    """The points (N, 2) of all curves, from pixels and frame, with y from the grid lines and their numbers."""
    left, right, _, _, low, high = map(float, re.search(r'data-frame="([^"]*)"', svg)[1].split())
    grid = re.findall(r'class="grid" d="M\S+ ([\d.]+)H.*?text-anchor="end">([^<]*)<', svg)
    (first, first_label), (last, last_label) = grid[0], grid[-1]
    y_per_pixel = (float(last_label) - float(first_label)) / (float(last) - float(first))
    curves = []
    for line in PIXELS.findall(svg):
        x, y = np.array([pair.split(",") for pair in line.split()], float).T
        values = float(first_label) + (y - float(first)) * y_per_pixel
        curves.append(np.column_stack([low + (x - left) / (right - left) * (high - low), values]))
    return curves


def test_the_points_of_a_curve_are_its_values():
    points = [(epoch, 2.5 * math.exp(-epoch / 10)) for epoch in range(1, 41)]
    svg = drawing(Chart("Loss", "epoch", [Series("training", points)]))
    (drawn,) = values_at_pixels(svg)
    assert np.allclose(drawn, points, atol=0.02)
    xs, ys = (list(map(float, re.search(rf' data-{axis}="([^"]* [^"]*)"/?', svg)[1].split())) for axis in "xy")
    assert xs == [x for x, _ in points]
    assert np.allclose(ys, [y for _, y in points], rtol=1e-5)
    assert 'role="img"' in svg
    assert "<title" in svg


def test_a_long_curve_keeps_its_first_last_and_extreme_points():
    values = default_rng(0).normal(size=100_000)
    values[[12_345, 77_777]] = 50, -50
    points = list(enumerate(values.tolist()))
    kept = downsample(points)
    assert len(kept) <= MAX_POINTS
    assert kept == sorted(kept)
    assert {points[0], points[12_345], points[77_777], points[-1]} <= set(kept) <= set(points)
    assert downsample(points[:400]) == points[:400]


def test_values_of_many_magnitudes_have_a_logarithmic_axis():
    axis = axis_of([2, 65536], 5, log=True)
    assert axis.is_log
    assert axis.ticks == (1, 10, 100, 1000, 10_000, 100_000)
    assert axis.position(10) == approx(0.2)
    assert not axis_of([1, 50], 5, log=True).is_log
    assert not axis_of([0, 1e6], 5, log=True).is_log


@mark.parametrize("log", [False, True])
@each_row("values\n1e308 1\n-1e308 1e308\n1e150 -1e150\n5e-324 1")
def test_numbers_at_the_limits_of_float64_have_a_chart_or_are_left_out(values, log):
    """`metrics.csv` of a damaged run, or of another program."""
    for given in (values.split(), values.split()[:1]):
        rows = [{"epoch": value, "val_loss": value} for value in given]
        kept = sorted(points(rows, "epoch", "val_loss"))
        assert len(kept) == sum(not value.endswith("e308") for value in given)
        if kept:
            svg = drawing(Chart("Loss", "epoch", [Series("validation", kept)], log=log))
            pixels = [float(pixel) for pair in PIXELS.findall(svg)[0].split() for pixel in pair.split(",")]
            assert all(map(math.isfinite, pixels))


def test_a_section_of_options_is_shown_without_nulls_and_whole():
    point = dict.fromkeys(("class", "sensitivity", "specificity", "groups", "another_key_of_the_section"))
    assert option_text(point | {"class": "3", "sensitivity": 0.95}) == "{'class': '3', 'sensitivity': 0.95}"
