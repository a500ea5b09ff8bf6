"""Eyeballs: a sphere with a cornea, fitted to MakeHuman's and turned to look at the camera."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.figure import Head, enlarge_eyes
from tools.demo_base.render.maths import Array, unit

MAX_GLANCE = 20  # degrees off the head's forward direction
CORNEA = 0.055  # how far it bulges, as a share of the radius
CORNEA_EDGE = 0.52  # radians off the optical axis
SHRINK = 0.985  # so that the lids cover it
SEGMENTS = 36


@dataclass(frozen=True)
class Eyeball:
    points: Array  # (n, 3)
    quads: Array  # (F, 4)
    directions: Array  # (n, 3) from the centre, z along the optical axis


def build(vertices: Array, head: Head, camera: Array, drawn: bool) -> Eyeball:
    """Fit an eyeball to vertices (k, 3) that looks at the camera (3,); a drawn one is enlarged like the lids."""
    centre, radius = sphere(vertices)
    gaze = _gaze(head, centre, camera)
    right = unit(np.cross(head.up, gaze))
    up = np.cross(gaze, right)
    polar = np.concatenate([np.linspace(0, 0.9, 22), np.linspace(0.98, 1.9, 10)])  # finer where it shows
    around = np.linspace(0, 2 * np.pi, SEGMENTS, endpoint=False)
    theta, phi = np.meshgrid(polar, around, indexing="ij")
    grid = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], -1)
    local = grid.reshape(-1, 3)
    bulge = 1 + CORNEA * np.clip(1 - (theta.ravel() / CORNEA_EDGE) ** 2, 0, 1)
    points = centre + radius * bulge[:, None] * (local[:, :1] * right + local[:, 1:2] * up + local[:, 2:] * gaze)
    if drawn:
        upright = (points - centre) @ head.rotation
        points = centre + enlarge_eyes(upright, np.zeros(3)) @ head.rotation.T
    return Eyeball(points, _quads(len(polar)), local)


def sphere(vertices: Array) -> tuple[Array, float]:
    """Fit a sphere by least squares: |x|² = 2c·x + (r² - |c|²)."""
    rows = np.column_stack([2 * vertices, np.ones(len(vertices))])
    solution = np.linalg.lstsq(rows, (vertices**2).sum(1), rcond=None)[0]
    centre = solution[:3]
    return centre, math.sqrt(max(solution[3] + centre @ centre, 1e-4)) * SHRINK


def _gaze(head: Head, centre: Array, camera: Array) -> Array:
    gaze = unit(camera - centre)
    angle = math.degrees(math.acos(np.clip(head.forward @ gaze, -1, 1)))
    if angle > MAX_GLANCE:
        gaze = unit(head.forward * (1 - MAX_GLANCE / angle) + gaze * (MAX_GLANCE / angle))
    return gaze


def _quads(rings: int) -> Array:
    i, j = np.meshgrid(np.arange(rings - 1), np.arange(SEGMENTS), indexing="ij")
    here, beside, n = j, (j + 1) % SEGMENTS, SEGMENTS
    corners = [i * n + here, (i + 1) * n + here, (i + 1) * n + beside, i * n + beside]
    return np.stack(corners, -1).reshape(-1, 4)
