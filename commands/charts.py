"""Charts as SVG text: a frame with axes, linear or logarithmic, and marks in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 620.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 40.0  # around the frame
TICKS = 6

STYLE = """
svg { display: block; max-width: 100%; } svg text { font-size: 11px; fill: #5a6472; font-family: inherit; }
.grid { stroke: #e6e9ed; } .frame { fill: #fff; stroke: #cfd5dc; }
"""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` along `length` pixels."""

    low: float
    high: float
    length: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            low, high, value = math.log(self.low), math.log(self.high), math.log(max(value, self.low * 1e-9))
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low) * self.length

    def ticks(self) -> list[float]:
        """Round values."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first < 4 else (1,)
            found = [s * 10.0**e for e in range(first, last + 1) for s in steps]
        else:
            rough = (self.high - self.low) / TICKS
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= rough)
            found = [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [v for v in found if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]


def span(values: Iterable[float], log: bool = False, zero: bool = False) -> tuple[float, float]:
    """Ends of an axis that shows all finite values, with some room; from 0 on with `zero`."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(known), max(known)
    if log:
        return low / 1.3, high * 1.3
    room = 0.05 * (high - low) or abs(high) or 1.0
    return (0.0 if zero else low - room), high + room


@dataclass
class Chart:
    """`x` and `y` are the ends of the axes; marks outside of them are left out."""

    title: str
    x_title: str
    y_title: str
    x: tuple[float, float]
    y: tuple[float, float]
    x_log: bool = False
    y_log: bool = False
    _marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._across = Scale(*self.x, WIDTH - LEFT - RIGHT, self.x_log)
        self._up = Scale(*self.y, HEIGHT - TOP - BOTTOM, self.y_log)

    def _place(self, x: float, y: float) -> tuple[float, float]:
        return LEFT + self._across.at(x), HEIGHT - BOTTOM - self._up.at(y)

    def _inside(self, x: float, y: float) -> bool:
        (low, high), (bottom, top) = self.x, self.y
        return low <= x <= high and bottom <= y <= top

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, name: str = "", dash: str = ""
    ) -> None:
        places = [self._place(*p) for p in points if self._inside(*p)]
        if len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            style = f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"'
            self._marks.append(f'<polyline points="{path}" {style}>{_title(name)}</polyline>')

    def dot(self, x: float, y: float, colour: str, name: str = "", hollow: bool = False) -> None:
        if self._inside(x, y):
            a, b = self._place(x, y)
            fill = "#fff" if hollow else colour
            style = f'fill="{fill}" stroke="{colour}" stroke-width="1.4"'
            self._marks.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" {style}>{_title(name)}</circle>')

    def svg(self) -> str:
        left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
        frame = f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"/>'
        parts = [frame]
        for value in self._across.ticks():
            x = left + self._across.at(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{value:g}</text>')
        for value in self._up.ticks():
            y = bottom - self._up.at(value)
            parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        middle = (left + right) / 2
        parts.append(
            f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(self.x_title)}</text>'
        )
        turn = f'transform="translate(14 {(top + bottom) / 2}) rotate(-90)"'
        parts.append(f'<text {turn} text-anchor="middle">{escape(self.y_title)}</text>')
        size = f'width="{WIDTH:.0f}" height="{HEIGHT:.0f}" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"'
        inner = "".join((*parts, *self._marks))
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{_title(self.title)}{inner}</svg>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
