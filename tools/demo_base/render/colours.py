"""Colour conversions: sRGB transfer curve (IEC 61966-2-1) and HSV adjustments."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tools.demo_base.render.maths import Array

Rgb = tuple[float, float, float]


def to_linear(srgb: ArrayLike) -> Array:
    """Return linear values of sRGB ones, both 0…1."""
    c = np.asarray(srgb, float)
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def to_srgb(linear: ArrayLike) -> Array:
    """Return sRGB values of linear ones; below 0 is cut, above 1 continues the curve."""
    c: Array = np.clip(np.asarray(linear, float), 0, None)
    return np.where(c <= 0.0031308, c * 12.92, 1.055 * c ** (1 / 2.4) - 0.055)


def adjust(srgb: Sequence[float] | Array, saturation: float = 1.0, value: float = 1.0, hue: float = 0.0) -> Array:
    """Return the sRGB colour with saturation and value multiplied (up to 1) and hue moved (in turns)."""
    h, s, v = colorsys.rgb_to_hsv(*srgb)
    return np.array(colorsys.hsv_to_rgb((h + hue) % 1, min(1, s * saturation), min(1, v * value)))


def hsv_linear(hue: float, saturation: float, value: float) -> Array:
    """Return the linear colour of HSV coordinates, each 0…1."""
    return to_linear(colorsys.hsv_to_rgb(hue, saturation, value))
