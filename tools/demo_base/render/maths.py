"""Vectors, rotations, smooth steps and noise."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
NOISE_SIDE = 32
METRES = 0.1  # in a decimetre


def unit(vectors: Array, axis: int = -1) -> Array:
    """Return the vectors at length 1; a zero vector stays zero."""
    scaled: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=axis, keepdims=True), 1e-9)
    return scaled


def smoothstep(start: float, end: float, x: ArrayLike) -> Array:
    """Return 0 before `start`, 1 after `end`, and 3t²-2t³ between; `start` may be above `end`."""
    t = np.clip((np.asarray(x) - start) / (end - start), 0, 1)
    eased: Array = t * t * (3 - 2 * t)
    return eased


def rotation(axis: ArrayLike, degrees: float) -> Array:
    """Return the 3×3 matrix that turns column vectors about `axis` (Rodrigues' formula)."""
    a = unit(np.asarray(axis, float))
    angle = math.radians(degrees)
    cross = np.array([[0, -a[2], a[1]], [a[2], 0, -a[0]], [-a[1], a[0], 0]])
    matrix: Array = np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    return matrix


def turn(yaw: float, pitch: float, roll: float) -> Array:
    """Return the rotation by roll about z, then pitch about x, then yaw about y, in degrees."""
    matrix: Array = rotation((0, 1, 0), yaw) @ rotation((1, 0, 0), pitch) @ rotation((0, 0, 1), roll)
    return matrix


def to_blender(directions: Array) -> Array:
    """Turn y up into z up, float32."""
    return np.stack([directions[..., 0], -directions[..., 2], directions[..., 1]], -1).astype(np.float32)


def to_metres(points: Array) -> Array:
    """Turn y up into z up and decimetres into metres, float32."""
    scaled = np.stack([points[..., 0], -points[..., 2], points[..., 1]], -1) * METRES
    return scaled.astype(np.float32)


@cache
def noise_lattice() -> Array:
    """Return the fixed cube of normal variates that every 3D noise interpolates; it repeats each `NOISE_SIDE`."""
    return np.random.default_rng(3).normal(size=(NOISE_SIDE,) * 3)
