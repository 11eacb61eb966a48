"""Plots as inline SVG: no script, no style of their own beyond classes, so that the strictest policy shows them.

Colours come from the page by class: `axis`, `grid`, `mark`, `ours`, `second`, `bad`, `label`, `value`. A `sheet` of
plots is a file of its own and brings its style.
"""

from __future__ import annotations

import math
import re
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


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y) in the order of x, `joined` or not; `kind` is one of "ours", "second", "mark", "bad". Not `dotted`:
    a curve, whose points are none of their own."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "ours"
    joined: bool = True
    dotted: bool = True


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


def lines(series: Sequence[Line], title: str, x_unit: str, y_unit: str, *, dotted: bool = True) -> str:
    """Lines over a common plane from 0 on, with a legend; `dotted`: with a dot at each point."""
    height, left, right, legend = 260, 70, _WIDTH - 40, 26
    xs, ys = zip(*(point for each in series for point in each.points), strict=True)
    across = _Axis.over(min(0.0, *xs), max(xs), left, right)
    up = _Axis.over(min(0.0, *ys), max(ys), height - _AXIS, _TOP + legend)
    parts = [across.drawn(_TOP + legend, height - _AXIS, x_unit)]
    for tick in up.ticks:
        parts.append(_text(left - 10, up.at(tick), f"{tick:.{up.digits}f}", "value end"))
        parts.append(_line(left, up.at(tick), right, up.at(tick), "grid"))
    parts.append(_text(left, _TOP + 6, y_unit, "value"))
    x = left + _LETTER * (len(y_unit) + 3)
    for each in series:
        parts.append(f'<rect class="{each.kind}" x="{x:.0f}" y="{_TOP}" width="12" height="12"/>')
        parts.append(_text(x + 18, _TOP + 6, each.label, "label"))
        x += 18 + _LETTER * (len(each.label) + 3)
        places = [(across.at(x), up.at(y)) for x, y in each.points]
        if each.joined:
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline class="{each.kind}" fill="none" points="{drawn}"/>')
        if dotted and each.dotted:
            parts += [f'<circle class="{each.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places]
    return _svg(title, height, parts)


def sheet(title: str, notes: Sequence[str], plots: Sequence[str]) -> str:
    """One SVG file that a browser opens by itself: the title, lines of text (one with a leading "!" stands out), and
    the plots below each other, each under its own title."""
    parts, y = [_text(24, 34, title, "title")], 58.0
    for note in notes:
        parts.append(_text(24, y, note.removeprefix("!"), "bad" if note.startswith("!") else "value"))
        y += 20
    for plot in plots:
        size, named = re.match(r'<svg viewBox="0 0 \d+ (\d+)"', plot), re.search(r"<title>(.*?)</title>", plot)
        assert size is not None, "a plot of this module"
        assert named is not None, "a plot of this module"
        height = int(size[1])
        parts.append(f'<text class="heading" x="24" y="{y + 24:.0f}">{named[1]}</text>')
        place = f'<svg x="0" y="{y + 40:.0f}" width="{_WIDTH}" height="{height}"'
        parts.append(plot.replace("<svg", place, 1))
        y += 40 + height
    box = f'width="{_WIDTH}" height="{y + 16:.0f}" viewBox="0 0 {_WIDTH} {y + 16:.0f}"'
    ground = '<rect class="ground" width="100%" height="100%"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style>{ground}{''.join(parts)}</svg>\n"
    )


_STYLE = """
:root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1d2125; --soft: #5d666f; --line: #dfe3e6; --ours: #0b6e4f;
  --mark: #7a8590; --second: #c77b21; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --ink: #e4e7ea; --soft: #9aa4ad; --line: #2c3238;
  --ours: #4cc79c; --mark: #8b96a1; --second: #e0a45c; --bad: #ff8a80; } }
text { fill: var(--ink); font: 12.5px system-ui, sans-serif; } text.value { fill: var(--soft); font-size: 11.5px; }
text.title { font-size: 19px; font-weight: 600; } text.heading { font-size: 14px; font-weight: 600; }
text.bad { fill: var(--bad); font-weight: 600; } .end { text-anchor: end; } .middle { text-anchor: middle; }
rect.ground { fill: var(--ground); } line.grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }
line.ours, polyline.ours { stroke: var(--ours); } line.second, polyline.second { stroke: var(--second); }
line.mark, polyline.mark { stroke: var(--mark); } line.bad, polyline.bad { stroke: var(--bad); }
circle.ours, rect.ours { fill: var(--ours); } circle.second, rect.second { fill: var(--second); }
circle.mark, rect.mark { fill: var(--mark); } circle.bad, rect.bad { fill: var(--bad); }
"""
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
