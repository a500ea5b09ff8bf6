"""Two plots of a report as one SVG: peak memory, and seconds a step, against the budget. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from realchar.errors import InvalidInput

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 420, 300, 52, 34, 14, 44  # of one plot, and of the margins around its axes
OURS, OTHERS, RESIDENT = "#0b6e4f", "#c2571a", "#444444"
Point = tuple[float, float]
VALUES: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("Peak memory, GB", lambda row: float(row["peak_gb"])),
    ("Seconds a step with CFG", lambda row: float(row["s_per_step"]["cfg"])),
)


def svg_of(report: dict[str, Any]) -> str:
    """Return the SVG. Raises InvalidInput where no streamed row with a budget came through."""
    rows = [row for row in report["rows"] if row["ok"] and row["kind"] in ("engine", "diffusers")]
    budgeted = sorted((row for row in rows if row["budget_gb"] is not None), key=lambda row: row["budget_gb"])
    ours = [row for row in budgeted if row["name"] == f"stream {row['budget_gb']:g} GB"]
    if not ours:
        message = "There is no streamed row with a budget to plot; choose the row stream and give --budgets."
        raise InvalidInput("plot", message)
    # What has no budget of its own is drawn at what it takes.
    others = [(row, row["peak_gb"]) for row in rows if row["kind"] == "diffusers"]
    others += [(row, row["budget_gb"]) for row in budgeted if row not in ours]
    resident = next((row for row in rows if row["mode"] == "resident"), None)
    charts = []
    for title, get in VALUES:
        line = [(float(row["budget_gb"]), get(row)) for row in ours]
        marks = {_short(row): (x, get(row)) for row, x in others}
        charts.append(list(_plot(title, line, marks, None if resident is None else get(resident))))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
    background = f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>'
    second = [f'<g transform="translate({WIDTH} 0)">', *charts[1], "</g>"]
    return "\n".join([head, background, *charts[0], *second, "</svg>"]) + "\n"


def _short(row: dict[str, Any]) -> str:
    """Return a row's name, without what all of ours have in common."""
    name = str(row["name"])
    return name if row["budget_gb"] is None else name.removeprefix("stream ")


def _plot(title: str, line: list[Point], marks: dict[str, Point], resident: float | None) -> Iterator[str]:
    drawn = [*line, *marks.values()]
    right = max(x for x, _ in drawn) * 1.08
    top = max([y for _, y in drawn] + [resident or 0.0]) * 1.12

    def place(x: float, y: float) -> Point:
        across, up = (WIDTH - LEFT - RIGHT) * x / right, (HEIGHT - TOP - BOTTOM) * y / top
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    yield _text(WIDTH / 2, 18, title, "middle", size=13)
    yield _text(WIDTH / 2, HEIGHT - 8, "budget, GB", "middle")
    (x0, y0), (x1, y1) = place(0, 0), place(right, top)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="black"/>'
    for y in (top * part / 4 for part in range(5)):
        yield _text(x0 - 5, place(0, y)[1] + 4, f"{y:.2g}" if top < 10 else f"{y:.0f}", "end")
    for x, _ in line:
        yield _text(place(x, 0)[0], y0 + 15, f"{x:g}", "middle")
    if resident is not None:
        height = place(0, resident)[1]
        yield f'<path d="M{x0} {height}H{x1}" stroke="{RESIDENT}" stroke-dasharray="5 4"/>'
        yield _text(x1, height - 4, "resident", "end", RESIDENT)
    points = [place(*point) for point in line]
    yield f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" stroke="{OURS}" stroke-width="2"/>'
    for x, y in points:
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{OURS}"/>'
    yield _text(points[-1][0], points[-1][1] + 16, "stream", "end", OURS)
    for name, point in marks.items():
        across, up = place(*point)
        yield f'<rect x="{across - 3}" y="{up - 3}" width="6" height="6" fill="{OTHERS}"/>'
        yield _text(across + 6, up + 4, name, "start", OTHERS)


def _text(x: float, y: float, text: str, anchor: str, fill: str = "black", size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">{escape(text)}</text>'
