"""What a camera adds to the path-traced picture: vignette, bloom, contrast, grain."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from tools.demo_base.render.colours import to_linear, to_srgb
from tools.demo_base.render.maths import Array

VIGNETTE = 0.28
BLOOM = 0.04  # share of the light
SATURATION = 1.14
CONTRAST = 0.03
GRAIN = 0.010


def develop(picture: Array, rng: np.random.Generator) -> Array:
    """Return the sRGB picture (n, n, 3), 0…1, as photographed."""
    n = picture.shape[0]
    y, x = np.mgrid[0:n, 0:n] / n - 0.5
    light = to_linear(picture) * (1 - VIGNETTE * np.clip(np.hypot(x, y) - 0.25, 0, 1)[..., None])
    blurred = ndimage.gaussian_filter(light, (n / 60, n / 60, 0))
    colour = to_srgb(light * (1 - BLOOM) + BLOOM * blurred)
    grey = colour.mean(-1, keepdims=True)
    colour = np.clip(grey + (colour - grey) * SATURATION, 0, 1)
    colour = colour + CONTRAST * (colour - 0.5) * 4 * colour * (1 - colour)
    grain = rng.normal(0, 1, (n, n, 1)) * 0.7 + rng.normal(0, 1, (n, n, 3)) * 0.35
    grain = ndimage.gaussian_filter(grain, (0.45, 0.45, 0))
    midtones = np.sqrt(np.clip(colour * (1 - colour), 0, 1))
    developed: Array = np.clip(colour + grain * GRAIN * (0.5 + 1.1 * midtones), 0, 1)
    return developed
