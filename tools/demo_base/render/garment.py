"""The top: MakeHuman's tights, widened, wrinkled and cut at a neckline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, noise_lattice, smoothstep
from tools.demo_base.render.mesh import cut, vertex_normals

NO_TRIM = 9.0  # added to a turtleneck's distance, so that no trim is near it


@dataclass(frozen=True)
class Garment:
    points: Array  # (n, 3)
    triangles: Array  # (F, 3)
    normals: Array  # (n, 3)
    rest: Array  # (n, 3)
    from_neckline: Array  # (n, 1) decimetres
    fade: Array  # (n,) brightness, about 1


def neckline(kind: str, rest: Array) -> Array:
    """Return how far (n,) points at rest (n, 3) lie inside the cloth, in decimetres; below 0 is skin."""
    x, y, z = rest.T
    ax = np.abs(x)
    front = smoothstep(-0.15, 0.55, z)

    def v_opening(width: float, depth: float) -> Array:
        opening: Array = np.clip(1 - ax / width, 0, 1) * depth * front
        return opening

    def arc(width: float, least: float) -> Array:
        height: Array = np.sqrt(np.clip(1 - (ax / width) ** 2, least, 1))
        return height

    if kind == "turtle":
        below: Array = 6.10 - 0.15 * (z - 0.2) - y
        return below
    if kind == "shirt":
        limit, width = 5.90 - 0.25 * front - v_opening(0.24, 0.75), 0.62
    elif kind == "crew":
        limit, width = 5.80 - 0.42 * front * arc(0.66, 0.002), 0.60
    elif kind == "vneck":
        limit, width = 5.74 - 0.30 * front - v_opening(0.56, 0.60), 0.60
    else:
        limit, width = 5.70 - 0.28 * front - arc(0.80, 0.001) * 0.45 * front, 0.74
    inside: Array = limit - y + 2.2 * np.clip(ax - width, 0, None)
    return inside


def build(human: Human, cage: Array, kind: str, rng: np.random.Generator) -> Garment:
    """Return the garment over the posed base mesh (N, 3)."""
    rest = human.tights.rest
    points = human.tights.operator @ cage
    normals = vertex_normals(points, human.tights.quads)
    inside = neckline(kind, rest)
    ease = 0.09 + 0.05 * smoothstep(5.3, 4.6, rest[:, 1])
    points = points + normals * ease[:, None]
    points = points + normals * _wrinkles(rest, rng)[:, None]
    if kind in ("crew", "turtle", "shirt"):  # a collar stands off the neck
        points = points + normals * (smoothstep(0.28, 0.0, inside) * 0.035)[:, None]
    points, triangles, (rest, distance) = cut(points, human.tights.quads, inside, [rest, inside])
    distance = distance + (NO_TRIM if kind == "turtle" else 0.0)
    normals = vertex_normals(points, triangles)
    spots = ndimage.map_coordinates(noise_lattice(), (rest * 3.3).T, order=1, mode="grid-wrap")
    return Garment(points, triangles, normals, rest, distance, 0.97 + 0.05 * spots)


def _wrinkles(rest: Array, rng: np.random.Generator) -> Array:
    """Return heights (n,) in decimetres: two crossing waves below the collar."""
    x, y = rest[:, 0], rest[:, 1]
    phase = rng.random(4) * 6
    heights = 0.02 * np.sin(x * 5 + y * 4 + phase[0] + 1.5 * np.sin(y * 3 + phase[1]))
    heights = heights + 0.016 * np.sin(y * 9 - np.abs(x) * 7 + phase[2] + np.sin(x * 4 + phase[3]))
    heights *= smoothstep(5.5, 5.1, y)
    out: Array = heights
    return out
