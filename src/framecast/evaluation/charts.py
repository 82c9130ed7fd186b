"""Curves as SVG that stands inside a page: it takes the page's colours, and numbers show where a pointer rests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 40
NUM_TICKS = 5


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[int]
    y: Sequence[float | None]
    colour: int
    """Of the page's series, from 0."""
    spread: Sequence[float | None] | None = None
    """Shown as a band around the curve."""
    dashed: bool = False


def chart(curves: Sequence[Curve], x_name: str, y_name: str) -> str:
    """One drawing with axes and legend; nothing where there is nothing to draw."""
    points = [(x, y) for curve in curves for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    if not points:
        return ""
    edges = [y + sign * s for curve in curves for y, s in _with_spread(curve) for sign in (-1, 1)]
    x_low, x_high = (float(edge(x for x, _ in points)) for edge in (min, max))
    y_ticks = ticks(min(edges), max(edges))
    x_ticks = [tick for tick in ticks(x_low, x_high) if x_low <= tick <= x_high and tick == round(tick)]
    frame = _Frame((x_low, x_high), (y_ticks[0], y_ticks[-1]))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{y_name} by {x_name}", quote=True)}">'
    ]
    parts += [frame.horizontal(tick) for tick in y_ticks]
    parts += [frame.vertical(tick) for tick in x_ticks]
    parts.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">{escape(x_name)}</text>')
    parts += [frame.band(curve) for curve in curves]
    parts += [frame.line(curve) for curve in curves]
    parts.append("</svg>")
    legend = "".join(
        f'<span><i class="s{curve.colour}{" dashed" * curve.dashed}"></i>{escape(curve.name)}</span>'
        for curve in curves
    )
    return (
        f'<figure><figcaption>{escape(y_name)}</figcaption>{"".join(parts)}<div class="legend">{legend}</div></figure>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose the values."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / NUM_TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(step for step in (magnitude, 2 * magnitude, 5 * magnitude, 10 * magnitude) if step >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class _Frame:
    """From values to places in the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float | int) -> float:
        low, high = self.x_range
        return LEFT + (WIDTH - LEFT - RIGHT) * ((value - low) / (high - low) if high > low else 0.5)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def horizontal(self, value: float) -> str:
        place = f"{self.y(value):.1f}"
        line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>'
        return f'{line}<text class="tick end" x="{LEFT - 6}" y="{place}" dy="0.32em">{_short(value)}</text>'

    def vertical(self, value: float) -> str:
        return f'<text class="tick" x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 15}">{value:.0f}</text>'

    def band(self, curve: Curve) -> str:
        if curve.spread is None:
            return ""
        upper, lower = [], []
        for x, y, spread in zip(curve.x, curve.y, curve.spread, strict=True):
            if y is not None and spread is not None:
                upper.append(f"{self.x(x):.1f},{self.y(y + spread):.1f}")
                lower.append(f"{self.x(x):.1f},{self.y(y - spread):.1f}")
        return f'<polygon class="band s{curve.colour}" points="{" ".join(upper + lower[::-1])}"/>' if upper else ""

    def line(self, curve: Curve) -> str:
        known = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in known)
        dots = "".join(
            f'<circle class="s{curve.colour}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.6">'
            f"<title>{escape(curve.name)}, {x:.0f}: {y:.4g}</title></circle>"
            for x, y in known
        )
        dashed = " dashed" * curve.dashed
        return f'<polyline class="curve s{curve.colour}{dashed}" points="{places}"/>' + ("" if curve.dashed else dots)


def _with_spread(curve: Curve) -> list[tuple[float, float]]:
    spreads = curve.spread or [None] * len(curve.y)
    return [(y, spread or 0.0) for y, spread in zip(curve.y, spreads, strict=True) if y is not None]


def _short(value: float) -> str:
    text = f"{value:.4g}"
    return "0" if float(text) == 0 else text
