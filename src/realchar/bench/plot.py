"""Two plots of a report as one SVG: peak memory, and seconds a step, against the budget. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from itertools import cycle
from typing import Any

from realchar.errors import InvalidInput

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 460, 300, 52, 34, 82, 44  # of one plot, and of the margins around its axes
LINE = 13  # between labels
OURS, OTHERS, RESIDENT = ("#0b6e4f", "#2f6fb5", "#7b4bb0", "#a0791a"), "#c2571a", "#444444"
Point = tuple[float, float]
VALUES: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("Peak memory, GB", lambda row: float(row["peak_gb"])),
    ("Seconds a step with CFG", lambda row: float(row["s_per_step"]["cfg"])),
)


def svg_of(report: dict[str, Any]) -> str:
    """Return the SVG. Raises InvalidInput where no streamed row with a budget came through."""
    rows = [row for row in report["rows"] if row["ok"] and row["kind"] in ("engine", "diffusers")]
    series: dict[str, list[dict[str, Any]]] = {}
    for row in sorted((row for row in rows if row["budget_gb"] is not None), key=lambda row: row["budget_gb"]):
        series.setdefault(_way(row), []).append(row)
    if not series:
        message = "There is no streamed row with a budget to plot; choose the row stream and give --budgets."
        raise InvalidInput("plot", message)
    # What has no budget of its own is drawn at what it takes.
    others = [row for row in rows if row["kind"] == "diffusers"]
    resident = next((row for row in rows if row["mode"] == "resident"), None)
    charts = []
    for title, get in VALUES:
        lines = {way: [(float(row["budget_gb"]), get(row)) for row in own] for way, own in series.items()}
        marks = {str(row["name"]): (float(row["peak_gb"]), get(row)) for row in others}
        charts.append(list(_plot(title, lines, marks, None if resident is None else get(resident))))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
    background = f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>'
    second = [f'<g transform="translate({WIDTH} 0)">', *charts[1], "</g>"]
    return "\n".join([head, background, *charts[0], *second, "</svg>"]) + "\n"


def _way(row: dict[str, Any]) -> str:
    """Return what a row with a budget is called apart from that: `stream`, or what it has besides."""
    return str(row["name"]).removeprefix(f"stream {row['budget_gb']:g} GB").strip() or "stream"


def _plot(title: str, lines: dict[str, list[Point]], marks: dict[str, Point], resident: float | None) -> Iterator[str]:
    drawn = [*(point for line in lines.values() for point in line), *marks.values()]
    right = max(x for x, _ in drawn) * 1.04
    top = max([y for _, y in drawn] + [resident or 0.0]) * 1.12

    def place(x: float, y: float) -> Point:
        across, up = (WIDTH - LEFT - RIGHT) * x / right, (HEIGHT - TOP - BOTTOM) * y / top
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    yield _text((LEFT + WIDTH - RIGHT) / 2, 18, title, "middle", size=13)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "budget, GB", "middle")
    (x0, y0), (x1, y1) = place(0, 0), place(right, top)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="black"/>'
    for y in (top * part / 4 for part in range(5)):
        yield _text(x0 - 5, place(0, y)[1] + 4, f"{y:.2g}" if top < 10 else f"{y:.0f}", "end")
    for x in sorted({x for line in lines.values() for x, _ in line}):
        yield _text(place(x, 0)[0], y0 + 15, f"{x:g}", "middle")
    labels: list[tuple[float, str, str]] = []
    if resident is not None:
        height = place(0, resident)[1]
        yield f'<path d="M{x0} {height}H{x1}" stroke="{RESIDENT}" stroke-dasharray="5 4"/>'
        labels.append((height, "resident", RESIDENT))
    for (name, line), colour in zip(lines.items(), cycle(OURS), strict=False):
        points = [place(*point) for point in line]
        yield f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in points:
            yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
        labels.append((points[-1][1], name, colour))
    for name, point in marks.items():
        across, up = place(*point)
        yield f'<rect x="{across - 3}" y="{up - 3}" width="6" height="6" fill="{OTHERS}"/>'
        yield _text(across + 6, up + 4, name, "start", OTHERS)
    yield from _apart(labels, x1 + 6)


def _apart(labels: list[tuple[float, str, str]], x: float) -> Iterator[str]:
    """Write labels beside the plot, each at its height or below the one before."""
    last = -float(LINE)
    for height, name, colour in sorted(labels):
        last = max(height + 4, last + LINE)
        yield _text(x, round(last, 1), name, "start", colour)


def _text(x: float, y: float, text: str, anchor: str, fill: str = "black", size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">{escape(text)}</text>'
