"""Curves: every value at its place, names escaped, gaps left out."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framecast.evaluation.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, chart, ticks


def points(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle [^>]*cx="([\d.]+)" cy="([\d.]+)"', svg)]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_enclose_the_values_in_even_round_steps(low, extent):
    marks = ticks(low, low + extent)
    slack = 1e-9 * (abs(low) + extent)
    assert marks[0] <= low + slack
    assert marks[-1] >= low + extent - slack
    assert 2 <= len(marks) <= 9
    steps = [b - a for a, b in pairwise(marks)]
    assert all(step == pytest.approx(steps[0], rel=1e-6, abs=slack) for step in steps)


def test_values_stand_where_the_axes_say():
    svg = chart([Curve("ours", [0, 5, 10], [0.0, 1.0, 2.0], 0)], "frame", "bits")
    assert points(svg) == [
        (LEFT, HEIGHT - BOTTOM),
        ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2),
        (WIDTH - RIGHT, TOP),
    ]


def test_what_is_not_known_is_left_out():
    svg = chart([Curve("ours", [0, 1, 2], [1.0, None, 3.0], 0, spread=[0.1, None, 0.2])], "frame", "bits")
    assert len(points(svg)) == 2
    assert not chart([Curve("ours", [0], [None], 0)], "frame", "bits")
    assert not chart([], "frame", "bits")


def test_a_flat_curve_and_a_single_point_are_drawn():
    assert len(points(chart([Curve("flat", [0, 1], [2.0, 2.0], 0)], "frame", "bits"))) == 2
    assert len(points(chart([Curve("one", [3], [0.0], 0)], "frame", "bits"))) == 1


def test_it_is_sound_markup_whatever_the_names():
    name = "<script>\"'&"
    markup = chart([Curve(name, [0, 1], [1.0, 2.0], 0, dashed=True), Curve(name, [0], [1.0], 1)], name, name)
    root = ElementTree.fromstring(markup)
    assert root.tag == "figure"
    assert "<script>" not in markup
