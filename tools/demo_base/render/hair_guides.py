"""Guide hairs: a few hundred, grown step by step along the comb's direction without entering head or clothes."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tools.demo_base.render.figure import Head
from tools.demo_base.render.hair_styles import DRAPED, HUG, Salon, Style
from tools.demo_base.render.maths import Array, smoothstep, unit

POINTS = 15  # on every hair
ROOT_DEPTH = 0.01  # decimetres below the skin


class NearestPoint(Protocol):
    def nearest(self, point: Array) -> tuple[Array, Array]: ...


def grow(salon: Salon, style: Style, body: NearestPoint) -> Array:
    """Return the guides (guides, POINTS, 3), slightly smoothed."""
    guides = np.zeros((len(salon.guides), POINTS, 3))
    for k, root in enumerate(salon.guides):
        if style.tie is None:
            guides[k] = _Hair(salon, style, body, root).grow()
        else:
            guides[k] = _to_tie(salon, style, body, root, style.tie)
    for _ in range(2):
        guides[:, 1:-1] = 0.5 * guides[:, 1:-1] + 0.25 * (guides[:, :-2] + guides[:, 2:])
    return guides


def _to_tie(salon: Salon, style: Style, body: NearestPoint, root: int, tie: Array) -> list[Array]:
    """Follow the skull from the root to where the hair is tied."""
    centre = salon.head.centre
    start = salon.roots.place[root] - salon.roots.normal[root] * ROOT_DEPTH
    points = [start]
    for s in np.linspace(0, 1, POINTS)[1:]:
        point = start * (1 - s) + tie * s
        radius = np.linalg.norm(start - centre) * (1 - s) + np.linalg.norm(tie - centre) * s
        point = centre + unit(point - centre) * radius
        surface, normal = body.nearest(point)
        gap = (point - surface) @ normal
        off = 0.02 + style.lift[root] * min(1, s * 3)
        if gap < off:
            point = point + normal * (off - gap)
        points.append(point)
    return points


class _Hair:
    """One free hair while it grows."""

    def __init__(self, salon: Salon, style: Style, body: NearestPoint, root: int) -> None:
        self.name = salon.hair.style
        self.head: Head = salon.head
        self.body = body
        self.down = salon.down
        self.combed = style.combed[root]
        self.lift = style.lift[root]
        self.stiffness = style.stiffness[root]
        self.gravity = style.gravity[root]
        self.step = style.length[root] / (POINTS - 1)
        self.forward = 1.0 if salon.roots.rest[root, 2] > 0.35 else -1.0  # over which side of the shoulder it falls
        self.surface, self.normal = salon.roots.place[root], salon.roots.normal[root]
        self.point = self.surface - self.normal * ROOT_DEPTH
        out = 1.0 if self.name in ("crop", "afro") else 0.9
        self.direction = unit(self.normal * out + self.combed * (0.5 if self.name == "crop" else 0.6))

    def grow(self) -> list[Array]:
        points = [self.point]
        for s in range(1, POINTS):
            travelled = s * self.step
            wanted = self._wanted(travelled)
            self.direction = unit(self.direction * self.stiffness + wanted * (1 - self.stiffness))
            self.point = self.point + self.direction * self.step
            self._keep_out(travelled)
            points.append(self.point)
        return points

    def _wanted(self, travelled: float) -> Array:
        """Return the direction that comb, gravity and the body would give it."""
        normal = self.normal
        gap = (self.point - self.surface) @ normal
        combed = self.combed
        if self.name != "afro":  # not into the skin
            combed = combed - normal * (combed @ normal) * smoothstep(0.4, 0.1, gap)
        wanted: Array = unit(combed) * max(0, 1 - smoothstep(0.3, 1.3, travelled))
        wanted = wanted + self.down * self.gravity * (0.25 + 1.2 * smoothstep(0.2, 1.4, travelled))
        if self.name in DRAPED:
            wanted = self._draped(wanted, gap)
        hug = HUG.get(self.name, 0.0)
        if hug and gap > self.lift * 1.3:
            wanted = wanted - normal * min(1.2, (gap - self.lift * 1.3) * 4) * hug
        return wanted

    def _draped(self, wanted: Array, gap: float) -> Array:
        """Lead hair below the chin to the side of the neck, and over the shoulder to the front or back."""
        matrix = self.head.rotation
        local = (self.point - self.head.centre) @ matrix
        low = smoothstep(-0.3, -1.1, local[1])
        if low > 0:
            aside = np.clip((np.sign(local[0]) * 0.95 - local[0]) * 1.1, -0.9, 0.9)
            ahead = 0.75 * self.forward if gap < 0.3 else 0.15 * self.forward
            wanted = wanted + low * (matrix[:, 0] * aside + matrix[:, 2] * ahead)
        return wanted

    def _keep_out(self, travelled: float) -> None:
        """Push the tip off the surface that it is about to enter."""
        self.surface, self.normal = self.body.nearest(self.point)
        normal = self.normal
        gap = (self.point - self.surface) @ normal
        off = 0.02 if self.name == "afro" else min(self.lift, 0.02 + travelled * 0.5)
        if gap < off:
            self.point = self.point + normal * (off - gap) * (1.0 if gap < 0.01 else 0.6)
            along = self.direction - normal * min(0, self.direction @ normal) * 0.9
            self.direction = unit(along)
