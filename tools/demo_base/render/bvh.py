"""Nearest points and rays on a mesh, with Blender's own tree. Needs bpy."""

from __future__ import annotations

from typing import Any

import bpy  # noqa: F401  mathutils comes with it, and only after it
import numpy as np
from mathutils import Vector
from mathutils.bvhtree import BVHTree

from tools.demo_base.render.maths import Array


class Bvh:
    """A search tree over points (n, 3) and faces of any number of corners."""

    def __init__(self, points: Array, faces: list[list[int]]) -> None:
        self._tree: Any = BVHTree.FromPolygons(points.tolist(), faces)

    def nearest(self, point: Array) -> tuple[Array, Array]:
        """Return the closest point of the surface and its normal."""
        place, normal, _, _ = self._tree.find_nearest(Vector(point))
        return np.array(place), np.array(normal)

    def from_front(self, x: float, y: float, z: float) -> tuple[int, Array] | None:
        """Return the face and the point that a ray along -z from (x, y, z) hits first."""
        place, _, face, _ = self._tree.ray_cast((x, y, z), (0, 0, -1))
        return None if face is None else (face, np.array(place))
