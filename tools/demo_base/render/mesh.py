"""Meshes as arrays: subdivision, normals, cutting, points on a surface."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from tools.demo_base.render.maths import Array, unit

Sparse = Any  # scipy.sparse.csr_matrix; scipy is no requirement of the project


@dataclass(frozen=True)
class Samples:
    """Points on a surface that move with it: triangle indices (n,) and barycentric weights (n, 3)."""

    triangle: Array
    weights: Array


@dataclass(frozen=True)
class Surface:
    """A subdivided part of the human: quads over its own vertices, which are `operator` @ the base mesh's."""

    quads: Array  # (F, 4)
    operator: Sparse  # (n, base vertices)
    rest: Array  # (n, 3) decimetres

    @cached_property
    def triangles(self) -> Array:
        return split_quads(self.quads)

    def sample(self, density: Array, count: int, rng: np.random.Generator) -> Samples:
        """Draw points with a chance by rest area times the density (n,) of the corners."""
        triangles = self.triangles
        corners = self.rest[triangles]
        edges = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        area = np.linalg.norm(edges, axis=1) * density[triangles].mean(1)
        index = np.searchsorted(np.cumsum(area) / area.sum(), rng.random(count)).clip(0, len(triangles) - 1)
        uv = rng.random((count, 2))
        outside = uv.sum(1) > 1
        uv[outside] = 1 - uv[outside]
        return Samples(index, np.column_stack([1 - uv.sum(1), uv]))

    def at(self, samples: Samples, values: Array) -> Array:
        """Return values (n, k) of the vertices, interpolated at the samples."""
        mixed: Array = (values[self.triangles[samples.triangle]] * samples.weights[..., None]).sum(1)
        return mixed


def split_quads(quads: Array) -> Array:
    """Return (2F, 3): the first triangle of every quad, then the second."""
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def catmull_clark(quads: Array, vertices: int) -> tuple[Sparse, Array]:
    """Return one step of Catmull-Clark subdivision (1978) as a matrix over vertices, and the new quads.

    The rows are the old vertices moved, then edge points, then face points. A boundary vertex goes halfway to its
    boundary edges' mean midpoint; vertices of no face stay.
    """
    faces = len(quads)
    pairs = np.sort(np.stack([quads, np.roll(quads, -1, 1)], -1).reshape(-1, 2), 1)
    edges, edge_of, used = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    edge_of = edge_of.reshape(-1)
    face_of = np.repeat(np.arange(faces), 4)
    ends = np.repeat(np.arange(len(edges)), 2)
    corners, both = quads.reshape(-1), edges.reshape(-1)
    face_points = sp.csr_matrix((np.full(faces * 4, 0.25), (face_of, corners)), (faces, vertices))
    edge_faces = sp.csr_matrix((np.ones(faces * 4), (edge_of, face_of)), (len(edges), faces))
    midpoints = sp.csr_matrix((np.full(len(ends), 0.5), (ends, both)), (len(edges), vertices))
    inner = (used == 2).astype(float)
    edge_points = sp.diags(1 - 0.5 * inner) @ midpoints + sp.diags(0.25 * inner) @ edge_faces @ face_points
    vertex_faces = sp.csr_matrix((np.ones(faces * 4), (corners, face_of)), (vertices, faces))
    vertex_edges = sp.csr_matrix((np.ones(len(ends)), (both, ends)), (vertices, len(edges)))
    moved = _moved_vertices(vertex_faces, vertex_edges, face_points, midpoints, inner)
    operator = sp.vstack([moved, edge_points, face_points]).tocsr()
    edge_ids = edge_of.reshape(faces, 4) + vertices
    face_ids = np.arange(faces) + vertices + len(edges)
    corner_quads = [np.stack([quads[:, k], edge_ids[:, k], face_ids, edge_ids[:, k - 1]], 1) for k in range(4)]
    return operator, np.stack(corner_quads, 1).reshape(-1, 4)


def _moved_vertices(
    vertex_faces: Sparse, vertex_edges: Sparse, face_points: Sparse, midpoints: Sparse, inner: Array
) -> Sparse:
    """Return the rule for old vertices: (F + 2E + (n - 3)V) / n inside, the curve rule on a boundary."""
    faces, edges = _row_sums(vertex_faces), _row_sums(vertex_edges)
    boundary_edges = vertex_edges @ sp.diags(1 - inner)
    boundary = _row_sums(boundary_edges) > 0
    n = np.maximum(faces, 1)
    identity = sp.identity(len(faces), format="csr")
    inside = (
        sp.diags(1 / n**2) @ vertex_faces @ face_points
        + sp.diags(2 / (n * np.maximum(edges, 1))) @ vertex_edges @ midpoints
        + sp.diags((n - 3) / n) @ identity
    )
    halfway = sp.diags(0.5 / np.maximum(_row_sums(boundary_edges), 1))
    border = 0.5 * identity + halfway @ boundary_edges @ midpoints
    used = faces > 0
    return (
        sp.diags((used & ~boundary).astype(float)) @ inside
        + sp.diags((used & boundary).astype(float)) @ border
        + sp.diags((~used).astype(float)) @ identity
    )


def _row_sums(matrix: Sparse) -> Array:
    return np.asarray(matrix.sum(1)).ravel()


def neighbour_mean(quads: Array, vertices: int) -> Sparse:
    """Return the matrix that replaces each vertex's value by the mean of its neighbours'."""
    ahead = np.roll(quads, -1, 1).ravel()
    rows = np.concatenate([quads.ravel(), ahead])
    columns = np.concatenate([ahead, quads.ravel()])
    adjacency = sp.csr_matrix((np.ones(len(rows)), (rows, columns)), (vertices, vertices))
    adjacency.data[:] = 1
    return (sp.diags(1 / _row_sums(adjacency)) @ adjacency).tocsr()


def vertex_normals(points: Array, faces: Array) -> Array:
    """Return unit normals (n, 3) of triangles (F, 3) or quads (F, 4), weighted by area."""
    if faces.shape[1] == 3:
        normals = np.cross(points[faces[:, 1]] - points[faces[:, 0]], points[faces[:, 2]] - points[faces[:, 0]])
    else:
        normals = np.cross(points[faces[:, 2]] - points[faces[:, 0]], points[faces[:, 3]] - points[faces[:, 1]])
    total = np.zeros_like(points)
    for corner in range(faces.shape[1]):
        for axis in range(3):
            total[:, axis] += np.bincount(faces[:, corner], normals[:, axis], len(points))
    return unit(total)


def compact(faces: Array, rows: Sparse) -> tuple[Array, Sparse]:
    """Return the faces renumbered over the vertices that they use, and those vertices' rows."""
    used, renumbered = np.unique(faces, return_inverse=True)
    return renumbered.reshape(faces.shape), rows[used]


def identity(size: int) -> Sparse:
    return sp.identity(size, format="csr")


def cut(points: Array, quads: Array, field: Array, attributes: list[Array]) -> tuple[Array, Array, list[Array]]:
    """Keep the part of a mesh where `field` (n,) is positive, cutting through the quads at zero.

    Returns points, triangles and the attributes (n, k), interpolated along the cut.
    """
    triangles = split_quads(quads)
    inside = field[triangles] > 0
    count = inside.sum(1)
    added: list[tuple[int, int, float]] = []  # new vertices: the edge's ends and how far along
    crossing = (count == 1) | (count == 2)
    new = _cut_triangles(triangles[crossing], inside[crossing], field, added)
    faces = np.concatenate([triangles[count == 3], np.array(new, int).reshape(-1, 3)])

    def extended(values: Array) -> Array:
        if not added:
            return values
        start, end = (np.array([row[k] for row in added]) for k in (0, 1))
        along = np.array([row[2] for row in added])[:, None]
        return np.concatenate([values, values[start] * (1 - along) + values[end] * along])

    points = extended(points)
    attributes = [extended(values if values.ndim > 1 else values[:, None]) for values in attributes]
    used, renumbered = np.unique(faces, return_inverse=True)
    return points[used], renumbered.reshape(-1, 3), [values[used] for values in attributes]


def _cut_triangles(
    triangles: Array, inside: Array, field: Array, added: list[tuple[int, int, float]]
) -> list[tuple[int, int, int]]:
    """Return the inside parts of triangles that cross zero; the vertices that they need go to `added`."""
    known: dict[tuple[int, int], int] = {}

    def between(a: int, b: int) -> int:
        key = (min(a, b), max(a, b))
        if key not in known:
            known[key] = len(field) + len(added)
            added.append((a, b, field[a] / (field[a] - field[b])))
        return known[key]

    parts = []
    for corners, keep in zip(triangles, inside, strict=True):
        lone_inside = keep.sum() == 1
        first = int(np.argmax(keep) if lone_inside else np.argmin(keep))
        a, b, c = (corners[(first + k) % 3] for k in range(3))
        if lone_inside:
            parts.append((a, between(a, b), between(a, c)))
        else:
            x, y = between(b, a), between(c, a)
            parts += [(b, c, y), (b, y, x)]
    return parts
