"""Hair: thousands of strands between the guides, with clumps, waves, curls, and ponytails and buns.

The order of the random draws is part of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from tools.demo_base.render import hair_guides
from tools.demo_base.render.character import Character
from tools.demo_base.render.figure import Figure, Head
from tools.demo_base.render.hair_guides import POINTS, ROOT_DEPTH, NearestPoint
from tools.demo_base.render.hair_styles import HANGING, TIED, Roots, Salon, Style, comb
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, smoothstep, unit
from tools.demo_base.render.regions import Regions

GUIDES = 300
STRANDS = {"crop": 7500, "afro": 8000, "long": 5600, "longbang": 5600, "wavy": 5600, "bob": 6000, "bobbang": 6000}
OTHER_STRANDS = 6500
PONYTAIL_STRANDS, BUN_STRANDS = 1500, 1400
EXTRA_GROUPS = 40  # locks of a ponytail or bun
HEAD_HEIGHT = 7.5  # decimetres at the skull's centre, for heights of a cut
# half the width of the face that hair leaves free, in decimetres
FACE_FREE = {"long": 0.60, "wavy": 0.60, "longbang": 0.60, "bob": 0.58, "bobbang": 0.58, "curtain": 0.40}


@dataclass(frozen=True)
class Strands:
    points: Array  # (n, POINTS, 3) decimetres
    guide: Array  # (n,) which lock each belongs to

    @property
    def along(self) -> Array:
        """Return 0 at the root … 1 at the tip, (n, POINTS)."""
        return np.linspace(0, 1, POINTS)[None].repeat(len(self.points), 0)


def build(character: Character, human: Human, regions: Regions, figure: Figure, body: NearestPoint) -> Strands:
    """Return the strands; `body` is the posed bust with its clothes."""
    hair, head = character.hair, figure.head
    rng = np.random.default_rng(hair.seed)
    place = human.bust.at(regions.scalp, figure.photo.points)
    normal = unit(human.bust.at(regions.scalp, figure.photo.normals))
    roots = Roots.build(regions.scalp_rest, place, normal, hair.parting)
    order = rng.permutation(len(roots.rest))
    guides = order[:GUIDES]
    children = order[GUIDES : GUIDES + STRANDS.get(hair.style, OTHER_STRANDS)]
    salon = Salon(hair, character.person.female, head, roots, guides, rng)
    style = comb(salon)
    strands, lock = _between(salon, children, hair_guides.grow(salon, style, body), style)
    shortest = 1 - 0.18 * rng.random((len(children), 1)) ** 2 * (hair.style not in TIED)
    strands = shorten(strands, shortest)
    if style.tie is not None:
        extra = (_ponytail if hair.style == "ponytail" else _bun)(salon, style.tie)
        strands = np.concatenate([strands, extra])
        lock = np.concatenate([lock, GUIDES + rng.integers(0, EXTRA_GROUPS, len(extra))])
    if hair.style in FACE_FREE:
        bang = roots.bang[children] if hair.bangs else np.zeros(len(children), bool)
        strands = _off_face(strands, head, roots.side[children][:, None], bang[:, None], FACE_FREE[hair.style])
    if style.cut_height is not None:
        strands = _blunt_cut(strands, head, style.cut_height, rng)
    return Strands(strands, lock)


def shorten(strands: Array, share: Array) -> Array:
    """Return strands (n, m, 3) resampled to the first share (n, 1) of their length, with as many points."""
    n, m, _ = strands.shape
    position = np.linspace(0, 1, m)[None] * share * (m - 1)
    before = np.minimum(position.astype(int), m - 2)
    beyond = (position - before)[..., None]
    rows = np.arange(n)[:, None]
    shortened: Array = strands[rows, before] * (1 - beyond) + strands[rows, before + 1] * beyond
    return shortened


def _between(salon: Salon, children: Array, guides: Array, style: Style) -> tuple[Array, Array]:
    """Return strands (n, POINTS, 3) that follow their three nearest guides, and the nearest one of each (n,)."""
    roots, rng = salon.roots, salon.rng
    key = _likeness(salon)
    distance, near = cKDTree(key[salon.guides]).query(key[children], k=3)
    weight = 1 / (distance + 0.02) ** 2
    weight /= weight.sum(1, keepdims=True)
    relative = guides - guides[:, :1]
    start = roots.place[children][:, None] - roots.normal[children][:, None] * ROOT_DEPTH
    strands = start + (relative[near] * weight[..., None, None]).sum(1)
    lock = near[:, 0]
    t = np.linspace(0, 1, POINTS)[None, :, None]
    clump = style.clump * t**1.2 * (0.7 + 0.6 * rng.random((len(children), 1, 1)))
    own_place = guides[lock] + 0.25 * (strands[:, :1] - guides[lock][:, :1])
    strands = strands * (1 - clump) + own_place * clump
    if style.wave > 0:
        arc = t * style.length[salon.guides][lock][:, None, None]
        strands = strands + _waves(salon, lock, arc, style.wave)
    if style.curl > 0:
        strands = strands + _curls(rng, roots.normal[children], t, style.curl)
    frizz = rng.normal(size=(len(children), 3))[:, None] * style.frizz * 2 * t
    frizz = frizz + np.cumsum(rng.normal(size=(len(children), POINTS, 3)) * style.frizz * 0.35, 1) * t
    return strands + frizz, lock


def _likeness(salon: Salon) -> Array:
    """Return coordinates in which hairs that part ways are far from each other."""
    roots = salon.roots
    parted = salon.hair.style in (*HANGING, "curtain")
    key = np.column_stack([roots.rest, roots.side * 0.6 if parted else roots.side * 0])
    return np.column_stack([key, roots.bang * 0.8]) if salon.hair.bangs else key


def _waves(salon: Salon, lock: Array, arc: Array, radius: float) -> Array:
    """Return spirals along arc lengths (n, POINTS, 1), alike within a lock."""
    rng, guides = salon.rng, len(salon.guides)
    phase = rng.random(guides)[lock][:, None, None] * 6.28 + rng.normal(0, 0.25, (len(lock), 1, 1))
    frequency = 2.2 + 1.5 * rng.random(guides)[lock][:, None, None]
    first = unit(rng.normal(size=(guides, 3)))[lock][:, None]
    second = np.cross(first, [0, 1, 0])
    angle = arc * frequency * 2.2 + phase
    spiral: Array = radius * np.minimum(1, arc / 0.8) * (np.sin(angle) * first + np.cos(angle) * second)
    return spiral


def _curls(rng: np.random.Generator, normal: Array, t: Array, radius: float) -> Array:
    """Return coils about the normals (n, 3)."""
    n = len(normal)
    phase = rng.random((n, 1, 1)) * 6.28
    any_way = unit(rng.normal(size=(n, 1, 3)))
    second = unit(np.cross(any_way, normal[:, None]))
    first = np.cross(normal[:, None], second)
    coil: Array = radius * np.minimum(1, t * 4) * (np.sin(t * 16 + phase) * first + np.cos(t * 16 + phase) * second)
    return coil


def _ponytail(salon: Salon, tie: Array) -> Array:
    head, rng, n = salon.head, salon.rng, PONYTAIL_STRANDS
    backwards = unit(-0.8 * head.forward + 0.15 * head.up)
    t = np.linspace(0, 1, POINTS)[None, :, None]
    length = 2.4 * salon.hair.length
    inside = unit(rng.normal(size=(n, 1, 3))) * rng.random((n, 1, 1)) ** 0.5
    thickness = 0.06 + 0.22 * np.sin(np.pi * np.clip(t * 0.85 + 0.08, 0, 1))
    middle = tie + backwards * (1 - np.exp(-t * 3)) * 0.55 + salon.down * length * t**1.3
    wander = np.cumsum(rng.normal(size=(n, POINTS, 3)) * 0.006, 1)
    tail: Array = middle + inside * thickness + wander
    return tail


def _bun(salon: Salon, tie: Array) -> Array:
    head, rng, n = salon.head, salon.rng, BUN_STRANDS
    centre = tie + unit(-0.5 * head.forward + 0.35 * head.up) * 0.22
    theta = rng.random((n, 1)) * 6.28 + np.linspace(0, 3.5, POINTS)[None]
    phi = rng.normal(0, 0.9, (n, 1)) + 0.3 * np.linspace(-1, 1, POINTS)[None]
    axis = -0.6 * head.forward + 0.5 * head.up
    second, axis = unit(np.cross(axis, head.right)), unit(axis)
    radius = 0.36 * (0.9 + 0.1 * rng.random((n, 1, 1)))
    ring = np.cos(theta)[..., None] * head.right * np.cos(phi)[..., None]
    ring = ring + np.sin(theta)[..., None] * second * np.cos(phi)[..., None]
    bun: Array = centre + radius * (ring + np.sin(phi)[..., None] * axis * 0.9)
    return bun


def _off_face(strands: Array, head: Head, side: Array, bang: Array, width: float) -> Array:
    """Push hair that hangs in front of the face to its side of it, softly."""
    local = (strands - head.centre) @ head.rotation
    x, y, z = (local[..., k] for k in range(3))
    free = width * smoothstep(0.50, 0.02, y) * smoothstep(0.35, 0.75, z) * smoothstep(-2.0, -1.3, y) * ~bang
    past = np.clip((side * x - free) / 0.06, -30, 30)
    local[..., 0] = np.where(free > 0.01, side * (free + np.log1p(np.exp(past)) * 0.06), x)
    pushed: Array = local @ head.rotation.T + head.centre
    return pushed


def _blunt_cut(strands: Array, head: Head, height: float, rng: np.random.Generator) -> Array:
    """Cut every strand where it first falls below the height."""
    level = ((strands - head.centre) @ head.up) + HEAD_HEIGHT
    below = level < height + 0.05 * rng.normal(size=(len(strands), 1))
    last = POINTS - 1
    first = np.where(below.any(1), below.argmax(1), last)
    return shorten(strands, np.maximum(first / last, 0.15)[:, None])
