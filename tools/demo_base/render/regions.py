"""Where hair grows: roots on the scalp, the beard, the brows and the lashes, the same for all characters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial import cKDTree

from tools.demo_base.render.human import Human
from tools.demo_base.render.masks import above_hairline
from tools.demo_base.render.maths import Array
from tools.demo_base.render.mesh import Samples

SEED = 7
SCALP_ROOTS = 26000
BEARD_HAIRS = 9000
BROW_HAIRS = 760  # a side
LASH_MIN_SLOPE = 0.018  # decimetres: quads of the lash strip that stand off the lid by less are its ends


class FrontRays(Protocol):
    def from_front(self, x: float, y: float, z: float) -> tuple[int, Array] | None: ...


@dataclass(frozen=True)
class Brows:
    roots: Samples
    along: Array  # (n,) 0 at the nose … 1
    across: Array  # (n,) -1 below … 1 above
    side: Array  # (n,) 1 left, -1 right


@dataclass(frozen=True)
class Lash:
    """A quad of MakeHuman's lash strip, by the base mesh's vertices: the edge at the lid and the one at the tips."""

    upper: bool
    root: tuple[int, int]
    tip: tuple[int, int]  # tip[0] lies over root[0]


@dataclass(frozen=True)
class Regions:
    scalp: Samples
    scalp_rest: Array  # (n, 3)
    beard: Samples
    brows: Brows
    lashes: list[Lash]


def find(human: Human, rays: FrontRays) -> Regions:
    """Return the regions; the rays are those of the bust at rest, by its triangles."""
    rng = np.random.default_rng(SEED)
    scalp = human.bust.sample((human.masks.scalp > 0.02).astype(float), SCALP_ROOTS, rng)
    rest = human.bust.at(scalp, human.bust.rest)
    kept = above_hairline(rest) + rng.normal(0, 0.012, len(rest)) > 0
    scalp = Samples(scalp.triangle[kept], scalp.weights[kept])
    beard = human.bust.sample(human.masks.beard**1.5, BEARD_HAIRS, rng)
    return Regions(scalp, rest[kept], beard, _brows(human, rays, rng), _lashes(human))


def _brows(human: Human, rays: FrontRays, rng: np.random.Generator) -> Brows:
    """Draw hairs in the outline of a brow and project them from the front onto the face."""
    triangles, weights, rows = [], [], []
    for side in (1, -1):
        for _ in range(BROW_HAIRS):
            t = rng.random() ** 0.9
            v = float(np.clip(rng.normal(0, 0.55), -1, 1))
            x = 0.115 + 0.46 * t
            arch = 0.070 * math.sin(min(1, t / 0.70) * math.pi / 2)
            y = 7.410 + arch - 0.085 * max(0, t - 0.66) / 0.34
            half_width = 0.052 * (1 - 0.65 * max(0, t - 0.40) / 0.60) * min(1, 0.55 + t * 2.5)
            hit = rays.from_front(side * x, y + v * half_width, 4)
            if hit is None:
                continue
            triangles.append(hit[0])
            weights.append(_barycentric(human.bust.rest[human.bust.triangles[hit[0]]], hit[1]))
            rows.append((t, v, side))
    along, across, sides = (np.array(column) for column in zip(*rows, strict=True))
    return Brows(Samples(np.array(triangles), np.array(weights)), along, across, sides)


def _barycentric(triangle: Array, point: Array) -> tuple[float, float, float]:
    edges = np.column_stack([triangle[1] - triangle[0], triangle[2] - triangle[0]])
    u, v = np.linalg.lstsq(edges, point - triangle[0], rcond=None)[0]
    return 1 - (u + v), u, v


def _lashes(human: Human) -> list[Lash]:
    """Find in each quad of the lash strip the edge that lies on the body."""
    vertices, groups = human.base.vertices, human.base.groups
    body = cKDTree(vertices[np.unique(groups["body"])])
    lashes = []
    for side in "lr":
        for row in "12":
            for quad in groups[f"helper-{side}-eyelashes-{row}"]:
                gap = body.query(vertices[quad])[0]
                edges = [gap[k] + gap[(k + 1) % 4] for k in range(4)]
                k = int(np.argmin(edges))
                if edges[(k + 2) % 4] - edges[k] > LASH_MIN_SLOPE:
                    a, b, c, d = (int(quad[(k + step) % 4]) for step in range(4))
                    lashes.append(Lash(row == "2", (a, b), (d, c)))
    return lashes
