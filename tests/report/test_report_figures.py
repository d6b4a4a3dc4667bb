from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from medley.report import Dots, Line, lines, partition, strip
from medley.report.figures import DARK, LIGHT, Axis, mark
from medley.report.numbers import Stat
from medley.report.text import with_units, worths
from medley.report.units import column

SVG = "{http://www.w3.org/2000/svg}"

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB: protan, deutan, tritan.
SEEN = np.array(
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ]
)


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    to_lms = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize(("palette", "ground"), [(LIGHT, "#fcfcfa"), (DARK, "#15171b")])
def test_colours_stand_out_and_apart_for_every_eye(palette: tuple[str, ...], ground: str) -> None:
    weights = np.array([0.2126, 0.7152, 0.0722])
    for colour in palette:
        a, b = sorted((float(linear(colour) @ weights), float(linear(ground) @ weights)))
        assert (b + 0.05) / (a + 0.05) > 2.9, colour
    for eye, least in zip(SEEN, (0.115, 0.115, 0.115, 0.078), strict=True):
        seen = [oklab(eye @ linear(c)) for c in palette]
        gap, i, j = min((np.linalg.norm(seen[i] - seen[j]), i, j) for i in range(8) for j in range(i))
        assert gap > least, (palette[i], palette[j])
    assert len({re.search(r'd="([^"]*)', mark(k)).group(1) for k in range(8)}) == 8  # type: ignore[union-attr]


@example(1e-10, 1e-6, "count")
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.sampled_from(["number", "count", "bytes", "seconds", "percent"]))
def test_ticks_are_few_and_inside(low: float, span: float, kind: str) -> None:
    axis = Axis(low, low + max(span, abs(low) * 1e-6), 0, 100, kind)
    ticks = axis.ticks(5)
    assert len(ticks) <= 8
    slack = 1e-6 * (axis.high - axis.low)
    assert all(axis.low - slack <= v <= axis.high + slack for v, _ in ticks)
    if kind != "count":
        assert len(ticks) >= 2


@given(st.floats(-14, 3), st.floats(0.01, 14))
def test_log_ticks_are_few_and_inside(low: float, decades: float) -> None:
    ticks = Axis(10**low, 10 ** (low + decades), 0, 100, log=True).ticks(6)
    assert 2 <= len(ticks) <= 8
    assert all(10**low * 0.999 <= v <= 10 ** (low + decades) * 1.001 for v, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_axis_units() -> None:
    assert [t for _, t in Axis(0, 3e6, 0, 1, "bytes").ticks(3)] == ["0", "1", "2", "3"]
    assert Axis(0, 3e6, 0, 1, "bytes").scale == (1e6, "MB")
    assert Axis(0, 7200, 0, 1, "seconds").scale == (3600.0, "h")
    assert [t for _, t in Axis(0, 1, 0, 1, "percent").ticks(5)] == ["0", "20", "40", "60", "80", "100"]
    assert [t for _, t in Axis(1e-9, 1, 0, 1, log=True).ticks(3)] == ["10⁻⁹", "10⁻⁶", "10⁻³", "10⁰"]


def curve_points(svg: str) -> np.ndarray:
    path = next(p for p in ET.fromstring(svg).iter(f"{SVG}path") if "linejoin" in p.get("style", ""))
    return np.array([[float(v) for v in pair.split(",")] for pair in path.get("d", "")[1:].split(" ")])


@pytest.mark.parametrize("log", [False, True])
def test_a_curve_reads_back_from_its_pixels(log: bool) -> None:
    x = np.linspace(0, 50, 40)
    y = np.exp(-x / 4)
    svg = lines([Line("a", 0, x, y, y * 0.9, y * 1.1)], title="t", log=log)
    root = ET.fromstring(svg)
    x0, x1, left, right = map(float, root.get("data-x", "").split()[:4])
    y0, y1, bottom, top = map(float, root.get("data-y", "").split()[:4])
    points = curve_points(svg)
    np.testing.assert_allclose(x0 + (points[:, 0] - left) / (right - left) * (x1 - x0), x, atol=0.01 * 50)
    share = (points[:, 1] - bottom) / (top - bottom)
    if log:
        np.testing.assert_allclose(y0 * (y1 / y0) ** share, y, rtol=0.01)
    else:
        np.testing.assert_allclose(y0 + share * (y1 - y0), y, atol=0.002)


def test_log_axis_with_zeros_says_so_and_keeps_the_rest() -> None:
    x = np.arange(5.0)
    svg = lines([Line("a", 0, x, np.array([1.0, 1e-2, 1e-4, 0.0, -1.0]))], title="t", log=True)
    y = curve_points(svg)[:, 1]
    assert "zero and below lie on the bottom edge" in svg
    assert (np.diff(y[:4]) > 0).all()
    assert y[3] == y[4] == float(ET.fromstring(svg).get("data-y", "").split()[2])
    assert "bottom edge" not in lines([Line("a", 0, x, x + 1)], title="t", log=True)
    nothing = lines([Line("a", 0, x, np.zeros(5))], title="t", log=True)
    assert np.isfinite(curve_points(nothing)).all()


def test_long_curves_are_thinned_and_wide_bands_do_not_set_the_scale() -> None:
    x = np.arange(10_000.0)
    svg = lines([Line("a", 0, x, np.sin(x / 900), np.full(10_000, -1e6), np.full(10_000, 1e6))], title="t")
    assert len(curve_points(svg)) == 400
    assert len(svg) < 20_000
    low, high = map(float, ET.fromstring(svg).get("data-y", "").split()[:2])
    assert -3 < low < -1
    assert 1 < high < 3


def test_broken_runs_end_in_a_cross_and_do_not_set_the_scale() -> None:
    x = np.arange(6.0)
    svg = lines([Line("a", 0, x, 1 - x / 10), Line("b", 1, x, 10**x, broken=True)], title="t", legend=False)
    assert float(ET.fromstring(svg).get("data-y", "").split()[1]) < 2
    assert 'data-broken="1"' in svg
    assert "b breaks off at" in svg
    assert "l7,7m0,-7l-7,7" in svg
    alone = lines([Line("b", 1, x, 10**x, broken=True)], title="t", log=True)
    assert float(ET.fromstring(alone).get("data-y", "").split()[1]) >= 1e5


@pytest.mark.parametrize(
    "svg",
    [
        lines([], title="<&>"),
        lines([Line("<&>", 9, np.array([1.0]), np.array([2.0]))], title="<&>"),
        strip([Dots("<&>", 0, [0.5, 0.7], [0.1]), Dots("none", 1, [])], title="<&>"),
        strip([], title="<&>"),
        partition(np.array([0, 0]), None, title="<&>"),
        partition(np.array([3, 2]), np.array([[3, 0], [0, 2]]), ["<", "&"], title="<&>"),
    ],
)
def test_every_figure_is_xml_with_a_title_and_a_description(svg: str) -> None:
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "<&>"
    assert root.findtext(f"{SVG}desc")
    assert "nan" not in svg


def test_partition_draws_areas_and_says_what_it_leaves_out() -> None:
    counts = np.array([[4, 0], [1, 16]])
    root = ET.fromstring(partition(counts.sum(1), counts))
    radii = sorted(float(c.get("r", "")) for c in root.iter(f"{SVG}circle"))
    assert len(radii) == 3
    assert radii[2] / radii[1] == pytest.approx(2, rel=0.05)
    assert radii[2] / radii[0] == pytest.approx(4, rel=0.05)
    many = partition(np.full(1000, 50), np.ones((1000, 50), dtype=np.int64))
    assert "100 of 1000 clients, 40 of 50 labels drawn, evenly sampled" in many
    assert many.count("<circle") == 4000
    assert "drawn" not in partition(np.full(100, 5), np.ones((100, 5), dtype=np.int64))


def test_a_method_that_sends_a_thousand_times_as_much_does_not_squeeze_the_others() -> None:
    x = np.array([0.0, 1e3, 1e4])
    for log, widest in (("x", 0.5), ("xy", 0.5), (False, 0.01)):
        svg = lines([Line("a", 0, x, 1 + x), Line("b", 1, x * 1e3, 1 + x)], title="t", x="bytes", log=log)  # type: ignore[arg-type]
        paths = re.findall(r'data-name="a"><path d="M([^"]+)"', svg)
        xs = [float(p.split(",")[0]) for p in paths[0].split(" ")]
        share = (xs[-1] - xs[0]) / 312
        assert share <= widest * 1.01
        assert (share > 0.2) == bool(log)
    assert re.findall(r">(\d+ [kMG]?B)<", lines([Line("a", 0, x, 1 + x)], title="t", x="bytes", log="x")) == [
        "1 kB",
        "2 kB",
        "5 kB",
        "10 kB",
    ]


@pytest.mark.parametrize(
    ("mean", "half", "metric", "said"),
    [
        (-0.97, 3.95, "seconds_to_target", "−1.0 ± 4.0 s"),
        (0.002, 0.3, "seconds_to_target", "+2.00 ± 300 ms"),
        (1200.0, 5e6, "bytes_to_target", "0.0 ± 5.0 MB"),
        (1.5, 0.5, "seconds_to_target", "+1.50 ± 0.50 s"),
    ],
)
def test_a_difference_and_its_interval_have_one_unit(mean: float, half: float, metric: str, said: str) -> None:
    assert with_units(mean, half, metric, signed=True) == said


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("bytes", [999_000, 1_090_000, 0], ["0.999 MB", "1.09 MB", "0 B"]),
        ("bytes", [456, 999], ["456 B", "999 B"]),
        ("bytes", [456, 2e6], ["456 B", "2.00 MB"]),
        ("seconds", [0.24, 1.86, math.nan], ["0.240 s", "1.86 s", "–"]),
        ("seconds", [20, 7200], ["20.0 s", "2.00 h"]),
    ],
)
def test_a_column_has_one_unit_unless_a_figure_is_tiny_in_it(kind: str, values: list[float], said: list[str]) -> None:
    assert column(kind, values) == said


def test_seeds_in_brackets_have_the_unit_of_their_mean() -> None:
    wide, narrow = [20e3, 1.9e6, 2e3], [20e3, 19e3, 21e3]
    assert worths([Stat.of(wide), Stat.of(narrow)], "bytes_to_target") == [
        "641 kB (20.0, 1900, 2.00)",
        "20.0 kB (20.0, 19.0, 21.0)",
    ]
    assert worths([Stat.of(wide), Stat.of([5e6, 5e6, 5e6])], "bytes_to_target") == [
        "0.641 MB (0.020, 1.90, 0.002)",
        "5.00 MB",
    ]
