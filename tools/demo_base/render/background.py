"""Backgrounds out of focus: coloured fields, rectangles and discs of confusion, blurred."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
from scipy import ndimage

from tools.demo_base.render.colours import hsv_linear
from tools.demo_base.render.maths import Array, smoothstep

REFERENCE_SIZE = 256  # radii and blurs are given in pixels of a picture of this size
NOISE_CELLS = 16
WHITE_POINT = 3.0  # linear; lamps are brighter than paper


class Field:
    """The picture in the making (n, n, 3), linear, top row first, with the tools to paint it."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.uniform = rng.uniform
        self.size = size
        self.scale = size / REFERENCE_SIZE
        self.y, self.x = np.mgrid[0:size, 0:size] / size
        self.image: Array = np.zeros((size, size, 3))

    def noise(self, amount: float) -> Array:
        """Return a smooth random field (n, n)."""
        n = self.size
        cells = ndimage.gaussian_filter(self.rng.normal(size=(NOISE_CELLS, NOISE_CELLS)), 1, mode="wrap")
        field: Array = ndimage.zoom(cells, n / NOISE_CELLS, order=3)[:n, :n] * amount
        return field

    def discs(
        self,
        count: int,
        colour: Callable[[], Array],
        radius: tuple[float, float],
        opacity: tuple[float, float],
        rows: tuple[float, float] = (0, 1),
    ) -> None:
        """Lay discs over the picture; `rows` is where their centres are, from the top."""
        n = self.size
        for _ in range(count):
            cx, cy = self.uniform(-0.05, 1.05) * n, self.uniform(*rows) * n
            r = self.uniform(*radius) * self.scale
            inside = np.clip(r - np.hypot(self.x * n - cx, self.y * n - cy) + 1, 0, 1)[..., None]
            mask = inside * self.uniform(*opacity)
            self.image = self.image * (1 - mask) + mask * colour()

    def blurred(self, pixels: float) -> Array:
        sigma = (pixels * self.scale, pixels * self.scale, 0)
        blurred: Array = ndimage.gaussian_filter(self.image, sigma, mode="nearest")
        return blurred


def _foliage(field: Field) -> float:
    u = field.uniform
    hue = u(0.18, 0.36)
    base = hsv_linear(hue, 0.5, u(0.2, 0.42))
    field.image[:] = base * (1.3 - 0.7 * field.y[..., None])
    field.image *= np.exp(field.noise(0.9))[..., None]

    def leaf() -> Array:
        return hsv_linear(hue + u(-0.08, 0.05), u(0.2, 0.65), u(0.25, 0.95))

    def gap() -> Array:
        return hsv_linear(hue + u(-0.1, 0.02), u(0.05, 0.3), 1) * u(1, 1.8)

    field.discs(90, leaf, (5, 18), (0.15, 0.5), (0, 0.9))
    field.discs(22, gap, (4, 12), (0.3, 0.7), (0, 0.6))
    return u(2.5, 6)


def _indoor(field: Field) -> float:
    u, rng, x, y = field.uniform, field.rng, field.x, field.y
    hue = u(0.02, 0.14) if rng.random() < 0.6 else u(0.5, 0.65)
    field.image[:] = hsv_linear(hue, u(0.05, 0.3), u(0.35, 0.8))
    field.image *= (1 + u(-0.4, 0.4) * (x - 0.5) + u(-0.3, 0.1) * (y - 0.5))[..., None]
    for _ in range(rng.integers(4, 9)):  # furniture and frames
        left, top, width, height = u(-0.2, 0.9), u(-0.2, 0.8), u(0.06, 0.45), u(0.15, 0.9)
        mask = ((x > left) & (x < left + width) & (y > top) & (y < top + height))[..., None]
        colour = hsv_linear((hue + float(rng.normal(0, 0.07))) % 1, u(0.05, 0.5), u(0.12, 0.95))
        field.image = np.where(mask, colour, field.image)
    if rng.random() < 0.5:  # a window
        left, width = u(-0.1, 0.8), u(0.15, 0.4)
        mask = ((x > left) & (x < left + width) & (y < u(0.4, 0.8)))[..., None]
        field.image = np.where(mask, np.array([1.0, 0.97, 0.9]) * u(1, 1.8), field.image)
    if rng.random() < 0.4:
        field.discs(8, lambda: np.array([1.3, 0.9, 0.55]) * u(0.8, 1.5), (5, 12), (0.5, 0.9), (0, 0.6))
    return u(6, 12)


def _studio(field: Field) -> float:
    u = field.uniform
    hue, value = u(0, 1), u(0.15, 0.75)
    backdrop = hsv_linear(hue, u(0.0, 0.3), value)
    distance = np.hypot(field.x - u(0.3, 0.7), field.y - u(0.3, 0.6))
    field.image[:] = backdrop
    field.image *= np.exp(-distance * u(0.6, 1.8) + 0.4)[..., None] * np.exp(field.noise(0.25))[..., None]
    return 5


def _sky(field: Field) -> float:
    u, rng, y = field.uniform, field.rng, field.y
    zenith = hsv_linear(u(0.54, 0.62), u(0.3, 0.65), u(0.6, 0.9))
    haze = hsv_linear(u(0.02, 0.12) if rng.random() < 0.5 else u(0.5, 0.6), u(0.08, 0.45), u(0.75, 1))
    horizon = u(0.5, 0.8)
    low = np.clip(y / horizon, 0, 1)[..., None]
    image = zenith * (1 - low) + haze * low
    image = image + np.clip(field.noise(0.5), 0, 1)[..., None] * 0.5 * (1 - low)
    ground = smoothstep(-0.01, 0.01, y - horizon - field.noise(0.06))[..., None]
    soil = hsv_linear(u(0.12, 0.4), u(0.15, 0.45), u(0.2, 0.45))
    field.image = image * (1 - ground) + ground * soil * np.exp(field.noise(0.4))[..., None]
    return u(3, 7)


def _city(field: Field) -> float:
    u, rng, x, y = field.uniform, field.rng, field.x, field.y
    night = rng.random() < 0.5
    field.image[:] = hsv_linear(u(0.55, 0.7), u(0.2, 0.5), u(0.08, 0.2) if night else u(0.45, 0.7))
    for _ in range(14):  # houses
        left, width, top = u(-0.1, 1), u(0.05, 0.25), u(-0.1, 0.6)
        mask = ((x > left) & (x < left + width) & (y > top))[..., None]
        shaded = field.image * u(0.4, 1.6) * np.array([1, u(0.9, 1), u(0.8, 1.1)])
        field.image = np.where(mask, shaded, field.image)
    field.image = ndimage.gaussian_filter(field.image, (5 * field.scale, 5 * field.scale, 0))

    def lamp() -> Array:
        hue = rng.choice([u(0.05, 0.13), u(0.5, 0.62), u(0.9, 1), u(0.06, 0.12)])
        return np.array(colorsys.hsv_to_rgb(hue, u(0.2, 0.8), 1)) * u(0.4, 2.2)

    if night:
        field.discs(55, lamp, (4, 13), (0.25, 0.8), (0.1, 0.95))
    else:
        field.discs(30, lambda: np.array([1, 0.98, 0.95]) * u(0.5, 1.5), (4, 14), (0.15, 0.5))
    return u(2, 4)


KINDS: dict[str, Callable[[Field], float]] = {  # paint the field and return the blur, in pixels
    "foliage": _foliage,
    "indoor": _indoor,
    "studio": _studio,
    "sky": _sky,
    "city": _city,
}


def paint(kind: str, seed: int, size: int) -> Array:
    """Return the background (size, size, 3), linear, top row first, already out of focus."""
    field = Field(size, np.random.default_rng(seed))
    blur = KINDS[kind](field)
    return np.clip(field.blurred(blur), 0, WHITE_POINT)
