"""Where on the bust what is: soft masks over points in rest space, tuned to MakeHuman's base mesh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.maths import Array, smoothstep

# height of the hairline (decimetres) by the angle from straight ahead (radians) about the skull's axis
HAIRLINE = np.array(
    [
        (0.0, 7.91),
        (0.3, 7.93),
        (0.5, 7.88),
        (0.68, 7.74),
        (0.85, 7.57),
        (1.0, 7.42),
        (1.12, 7.10),
        (1.25, 7.05),
        (1.42, 7.42),
        (1.65, 7.45),
        (1.9, 7.05),
        (2.2, 6.75),
        (2.7, 6.55),
        (3.2, 6.5),
    ]
)
SKULL_AXIS_Z = 0.25


@dataclass(frozen=True)
class Masks:
    """Each (n,), 0…1, over the vertices of the subdivided bust."""

    lips: Array
    lids: Array
    red: Array  # nose, cheeks, ears, chin: blood close to the surface
    blush: Array  # where make-up goes
    under_eyes: Array
    beard: Array
    t_zone: Array  # forehead and nose, where skin shines
    scalp: Array


def azimuth(points: Array) -> Array:
    """Return the angle from straight ahead about the skull's axis, 0…π, the same on both sides."""
    x, _, z = points.T
    angle: Array = np.arctan2(np.abs(x), z - SKULL_AXIS_Z)
    return angle


def above_hairline(points: Array) -> Array:
    """Return a signed height in decimetres: above 0 hair grows; ears and neck are far below."""
    x, y, z = points.T
    ax = np.abs(x)
    height = y - np.interp(azimuth(points), HAIRLINE[:, 0], HAIRLINE[:, 1])
    ear = (ax > 0.735) & (y < 7.4) & (y > 6.7) & (z > 0.3) & (z < 0.68)
    return np.where(ear, -1, np.where(y < 6.45, -1, height))


def build(rest: Array, lips: Array, ears: Array, lids: Array) -> Masks:
    """Return the masks at rest points (n, 3); lips, ears and lids (n,) come from MPFB's textures."""

    def spot(centre: tuple[float, float, float], size: float) -> Array:
        falloff: Array = np.exp(-(((rest - np.array(centre)) / size) ** 2).sum(1))
        return falloff

    def both(centre: tuple[float, float, float], size: float) -> Array:
        return spot(centre, size) + spot((-centre[0], centre[1], centre[2]), size)

    lip = np.clip(lips, 0, 1)
    red = 1.0 * spot((0, 6.92, 1.6), 0.17) + 0.85 * both((0.47, 6.92, 1.2), 0.24) + 0.8 * ears
    red = red + 0.35 * spot((0, 6.3, 1.4), 0.22) + 0.4 * both((0.12, 6.86, 1.5), 0.10)
    shine = spot((0, 7.1, 1.55), 0.22) + spot((0, 7.75, 1.3), 0.32) + 0.6 * spot((0, 6.9, 1.65), 0.16)
    return Masks(
        lips=lip,
        lids=np.clip(lids, 0, 1),
        red=np.clip(red, 0, 1),
        blush=np.clip(both((0.50, 6.93, 1.2), 0.17), 0, 1),
        under_eyes=np.clip(both((0.30, 7.11, 1.35), 0.11), 0, 1),
        beard=_beard(rest) * (1 - np.clip(lip * 1.5, 0, 1)),
        t_zone=np.clip(shine, 0, 1),
        scalp=smoothstep(-0.06, 0.05, above_hairline(rest)),
    )


def _beard(rest: Array) -> Array:
    """Return the jaw without the cheeks, and the upper lip."""
    x, y, z = rest.T
    ax = np.abs(x)
    jaw = smoothstep(6.78, 6.42, y - 0.55 * smoothstep(0.30, 0.80, ax)) * smoothstep(0.30, 0.6, z)
    jaw = jaw * smoothstep(-0.06, 0.10, y - 6.10 - 0.42 * smoothstep(1.15, 0.45, z))
    upper = np.exp(-(((y - 6.80) / 0.085) ** 2)) * smoothstep(0.46, 0.20, ax)
    upper = upper * smoothstep(1.05, 1.3, z) * smoothstep(6.92, 6.84, y)
    cheeks = 1 - 0.95 * np.exp(-(((ax - 0.36) / 0.17) ** 2 + ((y - 6.80) / 0.20) ** 2))
    beard: Array = np.clip(np.maximum(jaw * cheeks, upper), 0, 1)
    return beard
