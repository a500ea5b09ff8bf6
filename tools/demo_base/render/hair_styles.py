"""Hair styles: for every root how long, how stiff and in which direction its hair is combed.

Lengths are decimetres. The order of the random draws is part of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from tools.demo_base.render.character import Hair
from tools.demo_base.render.figure import Head
from tools.demo_base.render.masks import azimuth
from tools.demo_base.render.maths import Array, smoothstep, unit

HANGING = ("long", "wavy", "longbang", "bob", "bobbang")
DRAPED = ("long", "wavy", "longbang")  # falls over the shoulders
TIED = ("ponytail", "bun")
HUG = {  # how strongly hair is drawn back to the head where it stands off
    "sideswept": 1.2,
    "slick": 1.0,
    "pixie": 1.0,
    "messy": 0.6,
    "curtain": 0.7,
    "crop": 0.5,
    "long": 0.45,
    "wavy": 0.3,
    "longbang": 0.45,
    "bob": 0.5,
    "bobbang": 0.5,
}


@dataclass(frozen=True)
class Roots:
    """All places where hair can grow, (n, …)."""

    rest: Array  # (n, 3)
    place: Array  # (n, 3) posed
    normal: Array  # (n, 3)
    azimuth: Array  # radians from the front
    top: Array  # 0…1
    front: Array  # 0…1
    side: Array  # 1 right of the parting as seen from the front, else -1
    bang: Array  # whether a fringe starts here

    @classmethod
    def build(cls, rest: Array, place: Array, normal: Array, parting: float) -> Roots:
        x, y, z = rest.T
        angle = azimuth(rest)
        return cls(
            rest=rest,
            place=place,
            normal=normal,
            azimuth=angle,
            top=smoothstep(7.55, 8.05, y),
            front=smoothstep(0.95, 0.45, angle) * smoothstep(7.7, 7.95, y),
            side=np.where(x > parting, 1.0, -1.0),
            bang=(angle < 0.62) & (y > 7.78) & (z > 0.42),
        )


@dataclass
class Style:
    """What a style function fills in; arrays are per root."""

    length: Array
    lift: Array  # how far hair stays off the surface
    combed: Array  # (n, 3) directions
    stiffness: Array  # 0…1, how much a hair keeps its direction
    gravity: Array
    clump: float = 0.45  # how much hairs gather at their guide
    wave: float = 0.0
    curl: float = 0.0
    frizz: float = 0.010
    cut_height: float | None = None  # of a blunt cut, see hair.HEAD_HEIGHT
    tie: Array | None = None  # (3,) where a ponytail or bun is


@dataclass(frozen=True)
class Salon:
    """What the style functions read."""

    hair: Hair
    female: bool
    head: Head
    roots: Roots
    guides: Array  # indices of the roots of guide hairs
    rng: np.random.Generator

    def random(self) -> Array:
        return self.rng.random(len(self.roots.rest))

    @property
    def right(self) -> Array:
        """Directions away from the parting (n, 3)."""
        return self.roots.side[:, None] * self.head.right

    @property
    def down(self) -> Array:
        return unit(-0.75 * np.array([0, 1.0, 0]) - 0.25 * self.head.up)


def comb(salon: Salon) -> Style:
    """Return the style of a character's hair."""
    n = len(salon.roots.rest)
    style = Style(np.full(n, 1.0), np.full(n, 0.03), np.zeros((n, 3)), np.full(n, 0.5), np.full(n, 0.5))
    STYLES[salon.hair.style](salon, style)
    style.combed = unit(style.combed + 1e-6)
    return style


def _hanging(salon: Salon, style: Style) -> None:
    hair, head, roots = salon.hair, salon.head, salon.roots
    away = 0.60 * salon.right + 0.9 * salon.down
    style.combed = away - 0.45 * head.forward * (1 - 0.3 * roots.front[:, None])
    longest = {"long": 3.6, "wavy": 3.4, "longbang": 3.6, "bob": 2.3, "bobbang": 2.2}
    style.length[:] = longest[hair.style] * hair.length
    style.stiffness[:] = 0.72
    style.gravity[:] = 1.0
    style.lift[:] = 0.05 + 0.10 * salon.random() + 0.05 * roots.top
    waves = {"wavy": 0.09, "bob": 0.02, "bobbang": 0.015}
    style.wave = waves.get(hair.style, 0.03 * hair.wave)
    if hair.style.startswith("bob"):
        style.cut_height = 6.35 - 0.25 * (hair.length - 1) * 4
    if hair.bangs:
        _bangs(salon, style)


def _bangs(salon: Salon, style: Style) -> None:
    roots, bang, head = salon.roots, salon.roots.bang, salon.head
    x, _, z = roots.rest.T
    fan = (x / 0.6)[:, None] * head.right
    style.combed[bang] = (0.10 * fan + 1.0 * head.forward + 0.15 * salon.down)[bang]
    to_brows = (7.9 - 7.47) + np.clip((z - 0.9) * -0.9, 0, 1) + 0.12
    uneven = 0.06 * salon.rng.normal(size=len(x))
    style.length[bang] = (to_brows + 0.10 + uneven + 0.35 * np.clip(np.abs(x) - 0.3, 0, 1))[bang]
    style.lift[bang] = 0.09 + 0.03 * salon.rng.random(bang.sum())
    style.gravity[bang] = 1.1
    style.stiffness[bang] = 0.55


def _tied(salon: Salon, style: Style) -> None:
    high = salon.hair.length - 0.8
    style.tie = salon.head.centre + salon.head.turned(0, 0.75 + 0.6 * high, -0.85 + 0.5 * high)
    style.stiffness[:] = 0.35
    style.gravity[:] = 0
    style.lift[:] = 0.06 + 0.05 * salon.random() + 0.05 * salon.roots.top
    style.clump = 0.25
    style.frizz = 0.006


def _pixie(salon: Salon, style: Style) -> None:
    roots, forward = salon.roots, salon.head.forward
    style.combed = 0.6 * salon.right + 0.45 * forward * (roots.front + 0.3)[:, None] + 0.5 * salon.down
    style.length = 0.45 + 0.45 * roots.top + 0.1 * salon.random()
    style.stiffness[:] = 0.6
    style.gravity[:] = 0.35
    style.lift[:] = 0.06 + 0.05 * salon.random()
    style.length *= salon.hair.length * (1 - 0.42 * roots.front)
    style.clump = 0.55


def _crop(salon: Salon, style: Style) -> None:
    style.length = (0.10 + 0.13 * salon.roots.top + 0.04 * salon.random()) * salon.hair.length
    style.combed = 0.25 * salon.right + 0.6 * salon.head.forward + 0.25 * salon.roots.normal
    style.stiffness[:] = 0.7
    style.gravity[:] = 0.1
    style.lift[:] = 0.3
    style.clump = 0.15
    style.frizz = 0.006


def _sideswept(salon: Salon, style: Style) -> None:
    head, roots = salon.head, salon.roots
    top, front = roots.top, roots.front
    sign = 1.0 if salon.hair.parting > 0 else -1.0
    across = -sign * 0.75 * head.right * top[:, None] - 0.45 * head.forward
    style.combed = across + 0.55 * salon.down * (1 - top[:, None]) + 0.45 * head.forward * front[:, None]
    style.length = (0.16 + 0.75 * top**1.5 + 0.06 * salon.random()) * salon.hair.length
    style.stiffness[:] = 0.6
    style.gravity[:] = 0.25
    style.lift[:] = 0.05 + 0.14 * top * (0.5 + salon.random()) + 0.08 * front
    style.clump = 0.5


def _slick(salon: Salon, style: Style) -> None:
    top = salon.roots.top
    style.combed = -0.95 * salon.head.forward + 0.25 * salon.right + 0.2 * salon.down
    style.length = (0.25 + 0.85 * top + 0.08 * salon.random()) * salon.hair.length
    style.stiffness[:] = 0.6
    style.gravity[:] = 0.2
    style.lift[:] = 0.05 + 0.09 * top + 0.04 * salon.random()
    style.clump = 0.5


def _curtain(salon: Salon, style: Style) -> None:
    forward, roots = salon.head.forward, salon.roots
    aside = 0.85 * salon.right + 0.35 * forward * roots.front[:, None]
    style.combed = aside + 0.55 * salon.down - 0.2 * forward
    style.length = (0.5 + 0.85 * roots.top + 0.1 * salon.random()) * salon.hair.length
    style.stiffness[:] = 0.6
    style.gravity[:] = 1.2
    style.lift[:] = 0.08 + 0.07 * salon.random() + 0.04 * roots.top
    style.clump = 0.5
    style.wave = 0.02


def _messy(salon: Salon, style: Style) -> None:
    roots, guides = salon.roots, salon.guides
    own_way = salon.rng.normal(size=(len(roots.rest), 3))
    nearest = cKDTree(roots.rest[guides]).query(roots.rest)[1]
    own_way = own_way[guides][nearest]  # tufts: hairs go the way of their guide
    front = 0.45 * salon.head.forward * (0.3 + roots.front)[:, None]
    style.combed = front + 0.35 * salon.right + 0.35 * salon.down + 0.45 * own_way
    length = (0.28 + 0.45 * roots.top + 0.1 * salon.random()) * salon.hair.length
    style.length = length * (1 - 0.25 * roots.front)
    style.stiffness[:] = 0.75
    style.gravity[:] = 0.25
    style.lift[:] = 0.1 + 0.1 * salon.random()
    style.clump = 0.65


def _afro(salon: Salon, style: Style) -> None:
    back = smoothstep(1.6, 2.6, salon.roots.azimuth)
    length = 0.22 + 0.38 * salon.rng.random() + 0.05 * salon.random()
    length = length * np.where(salon.female, 1.25, 0.7)
    style.length = length * (0.55 + 0.45 * salon.roots.top + 0.25 * back)
    style.combed = 1.0 * salon.roots.normal
    style.stiffness[:] = 0.9
    style.gravity[:] = 0.08
    style.lift[:] = 2
    style.curl = 0.045
    style.clump = 0.2
    style.frizz = 0.03


STYLES: dict[str, Callable[[Salon, Style], None]] = {
    **dict.fromkeys(HANGING, _hanging),
    **dict.fromkeys(TIED, _tied),
    "pixie": _pixie,
    "crop": _crop,
    "sideswept": _sideswept,
    "slick": _slick,
    "curtain": _curtain,
    "messy": _messy,
    "afro": _afro,
}
