"""Short hair on the face: brows, lashes, beard. The order of the random draws is part of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.figure import Head, Look
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, unit
from tools.demo_base.render.mesh import Samples
from tools.demo_base.render.regions import Brows, Lash, Regions

DEPTH = 0.006  # decimetres of a root below the skin
POINTS = 5
BEARD_POINTS = 4


@dataclass(frozen=True)
class Fur:
    """Hairs of the face before they are placed on a look."""

    roots: Samples
    directions: Array  # (n, 3) posed
    lengths: Array  # (n,) decimetres
    bend: float  # how far they stand off the skin
    points: int
    kept: Array  # (n,) bool

    def on(self, human: Human, look: Look) -> Array:
        """Return the hairs (kept, points, 3)."""
        place = human.bust.at(self.roots, look.points)
        normal = unit(human.bust.at(self.roots, look.normals))
        flat = unit(self.directions - normal * (self.directions * normal).sum(1, keepdims=True))
        t = np.linspace(0, 1, self.points)[None, :, None]
        start = place[:, None] - normal[:, None] * DEPTH
        rise = flat[:, None] + normal[:, None] * self.bend * (1 - 0.6 * t)
        hairs: Array = start + self.lengths[:, None, None] * t * rise
        return hairs[self.kept]


def along(hairs: Array) -> Array:
    """Return 0 at the root … 1 at the tip for each point (n, m) of hairs (n, m, 3)."""
    n, m, _ = hairs.shape
    return np.linspace(0, 1, m)[None].repeat(n, 0)


def brows(places: Brows, head: Head, female: bool, rng: np.random.Generator) -> Fur:
    t, v, n = places.along, places.across, len(places.along)
    sway = rng.normal(0, 0.16, n)
    kept = rng.random(n) < (0.75 if female else 0.95)
    kept &= np.abs(v) < (0.62 if female else 1.0)
    outwards = places.side * (0.35 + 0.75 * t)
    directions = np.stack([outwards, 0.95 - 1.35 * t - 0.35 * v, -0.15 * t], 1)
    directions[:, 0] += sway * 0.5
    lengths = (0.060 + 0.045 * rng.random(n)) * (1 - 0.35 * t) * (1 if female else 1.15)
    return Fur(places.roots, unit(directions) @ head.rotation.T, lengths, 0.16, POINTS, kept)


def lashes(places: list[Lash], cage: Array, head: Head, female: bool, rng: np.random.Generator) -> Array:
    """Return lashes (n, POINTS, 3) over the posed base mesh (N, 3)."""
    t = np.linspace(0, 1, POINTS)[:, None]
    hairs = []
    for lash in places:
        (a, b), (tip_a, tip_b) = lash.root, lash.tip
        for _ in range((5 if female else 3) if lash.upper else 2):
            u = rng.random()
            root = cage[a] * (1 - u) + cage[b] * u
            tip = cage[tip_a] * (1 - u) + cage[tip_b] * u
            length = (1.0 if female else 0.7) * (1 if lash.upper else 0.6) * rng.uniform(0.8, 1.2)
            curve = head.up * (0.02 if lash.upper else -0.008) * t**2
            hairs.append(root + (tip - root) * length * t + curve + rng.normal(0, 0.006, 3) * t)
    return np.array(hairs)


def beard(human: Human, regions: Regions, head: Head, rng: np.random.Generator) -> Fur:
    n = len(regions.beard.triangle)
    x = human.bust.at(regions.beard, human.bust.rest)[:, 0]
    sideways = np.sign(x) * 0.25 + rng.normal(0, 0.35, n)
    down = -0.9 + rng.normal(0, 0.25, n)
    forward = 0.3 + rng.normal(0, 0.3, n)
    directions = np.stack([sideways, down, forward], 1) @ head.rotation.T
    lengths = rng.uniform(0.06, 0.15, n)
    return Fur(regions.beard, directions, lengths, 0.45, BEARD_POINTS, np.ones(n, bool))
