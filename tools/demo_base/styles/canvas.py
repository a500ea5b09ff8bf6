"""What every style draws with: smooth curves, paints, soft edges, clipping. Lengths are units of the drawing.

A canvas is `factor` times as large as its picture, so that edges come out smooth when it is scaled down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

Point = tuple[float, float]
Color = tuple[int, int, int]
Floats = npt.NDArray[np.float64]
Box = tuple[int, int, int, int]
STEPS = 14  # straight pieces between two points of a curve


@dataclass(frozen=True)
class Fade:
    """Colour that changes from the top of a shape to its bottom, or from left to right."""

    first: Color
    last: Color
    across: bool = False


@dataclass(frozen=True)
class Dots:
    """Printed screen of black dots on white: share of black at the top and at the bottom of a shape."""

    top: float
    bottom: float
    pitch: float = 3.4


Paint = Color | Fade | Dots


def curve(points: Sequence[Point], closed: bool = False) -> list[Point]:
    """Return a Catmull-Rom curve through the points; a point that is named twice is a corner."""
    pts = list(points)
    padded = [pts[-1], *pts, pts[0], pts[1]] if closed else [pts[0], *pts, pts[-1]]
    steps = np.linspace(0, 1, STEPS, endpoint=False)[:, None]
    out: list[Point] = []
    for i in range(len(padded) - 3):
        if padded[i + 1] == padded[i + 2]:
            continue
        a, b, c, d = (np.array(p) for p in padded[i : i + 4])
        cubic = b + 0.5 * steps * (c - a + steps * (2 * a - 5 * b + 4 * c - d + steps * (3 * (b - c) + d - a)))
        out += [(float(x), float(y)) for x, y in cubic]
    return out if closed else [*out, pts[-1]]


def ellipse(x: float, y: float, rx: float, ry: float | None = None, turn: float = 0.0) -> list[Point]:
    """Return an ellipse around (x, y), turned by `turn` degrees."""
    ry = rx if ry is None else ry
    c, s = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    around = [(rx * math.cos(t), ry * math.sin(t)) for t in np.linspace(0, 2 * math.pi, 72, endpoint=False)]
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in around]


def lock(left: Point, right: Point, tip: Point, bend: float = 0.0, belly: float = 0.12) -> list[Point]:
    """Return a strand of hair between two roots and a sharp tip; `bend` swings it sideways, `belly` rounds its sides."""
    out: list[Point] = []
    for (x0, y0), (x1, y1) in ((left, tip), (tip, right)):
        mx = (x0 + x1) / 2 - (y1 - y0) * belly + bend
        my = (y0 + y1) / 2 + (x1 - x0) * belly
        for t in np.linspace(0, 1, 20).tolist():
            a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
            out.append((a * x0 + b * mx + c * x1, a * y0 + b * my + c * y1))
    return out


def mirror(points: Sequence[Point], axis: float) -> list[Point]:
    return [(2 * axis - x, y) for x, y in points]


class Canvas:
    """A picture of `width` x `height` pixels; `scale` pixels are one unit of the drawing."""

    def __init__(self, width: int, height: int, paper: Color = (255, 255, 255), scale: float = 1.0, factor: int = 4):
        self.size = (width, height)
        self.k = scale * factor
        self.image = Image.new("RGB", (width * factor, height * factor), paper)
        self._clip: Image.Image | None = None

    def fill(self, points: Sequence[Point], paint: Paint, soft: float = 0.0, opacity: float = 1.0) -> None:
        """Paint a closed shape; `soft` is the radius by which its edge is blurred."""
        box = self._box(points, 3 * soft + 1)
        if box is not None:
            mask = Image.new("L", (box[2] - box[0], box[3] - box[1]))
            ImageDraw.Draw(mask).polygon(self._pixels(points, box), fill=255)
            self._paste(box, mask, paint, soft, opacity)

    def line(
        self,
        points: Sequence[Point],
        color: Paint,
        width: float,
        taper: float = 0.0,
        soft: float = 0.0,
        opacity: float = 1.0,
    ) -> None:
        """Draw a line with round ends; `taper` is the share of its length over which each end runs thin."""
        box = self._box(points, width + 3 * soft + 1)
        if box is None:
            return
        mask = Image.new("L", (box[2] - box[0], box[3] - box[1]))
        draw = ImageDraw.Draw(mask)
        x, y = _evenly(self._pixels(points, box), max(1.0, width * self.k / (1.5 if taper else 4)))
        if taper:  # one polygon: its ends are thin, and such lines bend gently
            draw.polygon(_ribbon(x, y, width * self.k, taper), fill=255)
        else:
            r = width * self.k / 2
            for dot in np.stack([x - r, y - r, x + r, y + r], -1).tolist():
                draw.ellipse(dot, fill=255)
        self._paste(box, mask, color, soft, opacity)

    def shape(self, points: Sequence[Point], paint: Paint, ink: Color | None, width: float = 1.6) -> None:
        """Paint a closed shape and draw its outline."""
        self.fill(points, paint)
        if ink is not None:
            self.line([*points, points[0]], ink, width)

    @contextmanager
    def inside(self, points: Sequence[Point]) -> Iterator[None]:
        """Restrict all drawing to a shape, within the shape that it is restricted to already."""
        before, mask = self._clip, Image.new("L", self.image.size)
        ImageDraw.Draw(mask).polygon(self._pixels(points, (0, 0, 0, 0)), fill=255)
        self._clip = mask if before is None else ImageChops.multiply(mask, before)
        try:
            yield
        finally:
            self._clip = before

    def finish(self) -> Image.Image:
        return self.image.resize(self.size, Image.Resampling.BOX)

    def _pixels(self, points: Sequence[Point], box: Box) -> list[Point]:
        return [(x * self.k - box[0], y * self.k - box[1]) for x, y in points]

    def _box(self, points: Sequence[Point], margin: float) -> Box | None:
        xs, ys = zip(*points, strict=True)
        k, (width, height) = self.k, self.image.size
        left, top = max(0, int((min(xs) - margin) * k)), max(0, int((min(ys) - margin) * k))
        right, bottom = min(width, int((max(xs) + margin) * k) + 1), min(height, int((max(ys) + margin) * k) + 1)
        return (left, top, right, bottom) if left < right and top < bottom else None

    def _paste(self, box: Box, mask: Image.Image, paint: Paint, soft: float, opacity: float) -> None:
        if soft:
            mask = mask.filter(ImageFilter.GaussianBlur(soft * self.k))
        if opacity < 1:
            mask = mask.point([round(v * opacity) for v in range(256)])
        if self._clip is not None:
            mask = ImageChops.multiply(mask, self._clip.crop(box))
        self.image.paste(self._render(paint, box), box, mask)

    def _render(self, paint: Paint, box: Box) -> Image.Image:
        size = (box[2] - box[0], box[3] - box[1])
        if isinstance(paint, Fade):
            ramp = Image.linear_gradient("L")
            ramp = (ramp.rotate(90) if paint.across else ramp).resize(size)
            return Image.composite(Image.new("RGB", size, paint.last), Image.new("RGB", size, paint.first), ramp)
        if isinstance(paint, Dots):
            return _screen(paint, box, self.k)
        return Image.new("RGB", size, paint)  # pasting a bare colour through a mask takes twice as long


def _evenly(points: list[Point], gap: float) -> tuple[Floats, Floats]:
    """Return x and y of points along the line at an even distance of about `gap`."""
    line = np.array(points)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    at = np.linspace(0, along[-1], max(2, int(along[-1] / gap) + 1))
    return np.interp(at, along, line[:, 0]), np.interp(at, along, line[:, 1])


def _ribbon(x: Floats, y: Floats, width: float, taper: float) -> list[Point]:
    """Return the outline of a line that runs thin at both ends."""
    end = np.minimum(np.linspace(0, 1, len(x)), np.linspace(1, 0, len(x))) / taper
    radius = width / 2 * (0.15 + 0.85 * np.sin(np.minimum(1, end) * np.pi / 2))
    dx, dy = np.gradient(x), np.gradient(y)
    length = np.maximum(np.hypot(dx, dy), 1e-6)
    u, v = -dy / length * radius, dx / length * radius
    xs, ys = np.concatenate([x + u, (x - u)[::-1]]), np.concatenate([y + v, (y - v)[::-1]])
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _screen(paint: Dots, box: Box, k: float) -> Image.Image:
    y, x = np.mgrid[box[1] : box[3], box[0] : box[2]].astype(np.float32)
    turn = math.pi / (paint.pitch * k)  # the screen stands at 45 degrees
    height = (np.cos((x + y) * turn) + np.cos((x - y) * turn)) / 4 + 0.5
    share = paint.top + (paint.bottom - paint.top) * (y - box[1]) / max(1, box[3] - box[1])
    return Image.fromarray(np.where(height > 1 - share, 0, 255).astype(np.uint8)).convert("RGB")
