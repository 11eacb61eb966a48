"""Plots as inline SVG: no script, no style of their own beyond classes, so that the strictest policy shows them.

Colours come from the page by class: `axis`, `grid`, `mark`, `ours`, `second`, `label`, `value`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 760
_LABELS = 150
_VALUES = 130
_ROW = 26
_TOP = 8
_AXIS = 34
_LETTER = 7.5


@dataclass(frozen=True, slots=True)
class Point:
    """A value with its interval (equal to it where there is none); `ours` stands out."""

    label: str
    mean: float
    low: float
    high: float
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Spot:
    """A point of a plane, with an interval upwards and downwards."""

    label: str
    x: float
    y: float
    low: float
    high: float
    ours: bool = False


def dots(points: Sequence[Point], title: str, unit: str) -> str:
    """A dot with whiskers for each, one below the other, over a common axis."""
    low, high = min(each.low for each in points), max(each.high for each in points)
    axis = _Axis.over(min(low, 0.0) if low < 0.3 * high else low, high, _LABELS, _WIDTH - _VALUES)
    height = _TOP + _ROW * len(points) + _AXIS
    parts = [axis.drawn(_TOP, height - _AXIS, unit)]
    for at, each in enumerate(points):
        y = _TOP + _ROW * (at + 0.5)
        kind = "ours" if each.ours else "mark"
        parts.append(_text(_LABELS - 12, y, each.label, "label end"))
        if each.high > each.low:
            parts.append(_line(axis.at(each.low), y, axis.at(each.high), y, kind))
        parts.append(f'<circle class="{kind}" cx="{axis.at(each.mean):.1f}" cy="{y:.1f}" r="4.5"/>')
        spread = f" ± {(each.high - each.low) / 2:.4f}" if each.high > each.low else ""
        parts.append(_text(_WIDTH - _VALUES + 12, y, f"{each.mean:.4f}{spread}", "value"))
    return _svg(title, height, parts)


def bars(groups: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], title: str, unit: str) -> str:
    """Horizontal bars from 0, for each label one of each name (two at most), with a legend."""
    axis = _Axis.over(0.0, max(value for _, values in groups for value in values), _LABELS, _WIDTH - _VALUES)
    row, legend = 18 * len(names) + 12, 26
    height = _TOP + legend + row * len(groups) + _AXIS
    parts = [axis.drawn(_TOP + legend, height - _AXIS, unit)]
    for at, name in enumerate(names):
        x = _LABELS + 150 * at
        parts.append(f'<rect class="{_KINDS[at]}" x="{x}" y="{_TOP}" width="12" height="12"/>')
        parts.append(_text(x + 18, _TOP + 6, name, "value"))
    for at, (label, values) in enumerate(groups):
        top = _TOP + legend + row * at + 6
        parts.append(_text(_LABELS - 12, top + 9 * len(names), label, "label end"))
        for place, value in enumerate(values):
            y = top + 18 * place
            width = max(0.0, axis.at(value) - _LABELS)
            parts.append(f'<rect class="{_KINDS[place]}" x="{_LABELS}" y="{y + 2}" width="{width:.1f}" height="14"/>')
            parts.append(_text(_LABELS + width + 8, y + 9, f"{value:.3f}", "value"))
    return _svg(title, height, parts)


def plane(spots: Sequence[Spot], title: str, x_unit: str, y_unit: str) -> str:
    """Points with their names: `x_unit` from 0 to the right, `y_unit` upwards."""
    height, left = 320, 90
    across = _Axis.over(0.0, max(each.x for each in spots), left, _WIDTH - _VALUES)
    low, high = min(each.low for each in spots), max(each.high for each in spots)
    room = max(high - low, 1e-4) * 0.1
    up = _Axis.over(low - room, high + room, height - _AXIS, _TOP)
    parts = [across.drawn(_TOP, height - _AXIS, x_unit)]
    for tick in up.ticks:
        parts.append(_text(left - 10, up.at(tick), f"{tick:.{up.digits}f}", "value end"))
        parts.append(_line(left, up.at(tick), _WIDTH - _VALUES, up.at(tick), "grid"))
    parts.append(_text(left + 6, _TOP + 8, y_unit, "value"))
    taken = [(across.at(each.x) - 5, across.at(each.x) + 5, up.at(each.y)) for each in spots]
    for each in sorted(spots, key=lambda one: (one.x, one.y)):
        x, y, kind = across.at(each.x), up.at(each.y), "ours" if each.ours else "mark"
        if each.high > each.low:
            parts.append(_line(x, up.at(each.low), x, up.at(each.high), kind))
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        place = y
        start, stop = x + 10, x + 10 + _LETTER * len(each.label)
        while any(start < end and begin < stop and abs(place - other) < 15 for begin, end, other in taken):
            place += 15
        taken.append((start, stop, place))
        parts.append(_text(start, place, each.label, "label"))
    return _svg(title, height, parts)


_KINDS = ("ours", "second")


@dataclass(frozen=True, slots=True)
class _Axis:
    """From values to pixels, with ticks at round values."""

    low: float
    high: float
    start: float
    stop: float
    step: float

    @classmethod
    def over(cls, low: float, high: float, start: float, stop: float) -> _Axis:
        span = high - low if high > low else max(abs(high), 1e-3)
        power = 10.0 ** math.floor(math.log10(span / 5))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 6)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(first * step, max(last, first + 1) * step, start, stop, step)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def ticks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [self.low + self.step * at for at in range(count + 1)]

    @property
    def digits(self) -> int:
        return max(0, -math.floor(math.log10(self.step)))

    def drawn(self, top: float, bottom: float, unit: str) -> str:
        parts = [_line(self.at(tick), top, self.at(tick), bottom, "grid") for tick in self.ticks]
        parts += [_text(self.at(tick), bottom + 12, f"{tick:.{self.digits}f}", "value middle") for tick in self.ticks]
        parts.append(_text((self.start + self.stop) / 2, bottom + 27, unit, "value middle"))
        return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dy="0.35em">{escape(text)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    inner = f"<title>{escape(title)}</title>{''.join(parts)}"
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{inner}</svg>'
