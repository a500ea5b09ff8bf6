"""The drawing's lines: outlines, nose, locks of hair, mouth, lashes and lid creases. Pictures (n, n, 3), sRGB."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy import ndimage

from tools.demo_base.render.maths import Array
from tools.demo_base.render.toon_plate import Plate

GROUPS = [0, 1, 2, 3, 4, 1, 1, 1]  # by Region: brows, mouth and beard have no line between them and the skin
DEPTH_STEP = 0.011  # relative, that draws a line
HAIR_DEPTH_STEP = 0.05  # the same within hair, which is rough
LOCK_DEPTH_STEP = 0.0035
LOCK_LENGTH = 22  # pixels of the reference size, below which a line between locks is dropped
OUTLINE = 0.92  # opacity
LASH = np.array([0.10, 0.06, 0.08])


def draw(plate: Plate, image: Array) -> Array:
    """Return the picture with all lines."""
    tones = plate.skin_tones
    edges, nose = _edges(plate)
    image = _outline(plate, image, edges)
    image = _ink(image, plate.smooth(nose, 1.0)[..., None] * 0.8, tones.deep, 0.8)
    image = _ink(image, plate.smooth(_locks(plate).astype(float), 0.9)[..., None] * 0.75, plate.hair_tones.shadow, 0.6)
    mouth = np.clip(plate.smooth(_mouth(plate).astype(float), 0.8), 0, 1)[..., None] * 0.85
    image = _ink(image, mouth, tones.base * np.array([0.42, 0.22, 0.24]))
    return _lashes(plate, image) if plate.eye.any() else image


def _ink(image: Array, amount: Array, colour: Array, darken: float = 1.0) -> Array:
    """Mix in a colour (3,), darkened, by an amount (n, n, 1)."""
    mixed: Array = image * (1 - amount) + amount * colour * darken
    return mixed


def _padded(steps: Array, axis: int) -> Array:
    """Give differences along an axis the picture's size again."""
    return np.pad(steps, [(0, 1) if a == axis else (0, 0) for a in (0, 1)])


def _edges(plate: Plate) -> tuple[Array, Array]:
    """Return where regions or depths meet (n, n): the outlines, and the nose's, which is drawn lighter."""
    layers, hair, k = plate.layers, plate.hair, plate.scale
    group = np.choose(layers.region, GROUPS)
    depth = np.log(layers.depth)
    edge = np.zeros(group.shape, bool)
    for axis in (0, 1):
        step = np.abs(np.diff(depth, axis=axis))
        in_hair = (hair[1:] & hair[:-1]) if axis == 0 else (hair[:, 1:] & hair[:, :-1])
        here = (np.diff(group, axis=axis) != 0) | ((step > DEPTH_STEP) & ~in_hair) | (step > HAIR_DEPTH_STEP)
        edge |= _padded(here, axis)
    around_nose = ndimage.binary_dilation(layers.aux2[..., 2] > 0.05, iterations=int(10 * k))
    around_nose &= plate.smooth(hair, 3) < 0.05
    nose = edge & around_nose & ndimage.binary_erosion(group == 1, iterations=3)
    edge &= ~nose
    edge &= ~ndimage.binary_dilation(plate.eye, iterations=int(3 * k) + 1)  # lash lines go there
    return edge, nose


def _locks(plate: Plate) -> Array:
    """Return where locks of hair meet at different depths, in lines long enough."""
    layers, hair, k = plate.layers, plate.hair, plate.scale
    lock = ndimage.median_filter(layers.aux2[..., 0], int(5 * k) | 1)
    depth = plate.within(np.log(layers.depth), hair, 1.2)
    lines = np.zeros(hair.shape, bool)
    for axis in (0, 1):
        other = np.abs(np.diff(lock, axis=axis)) > 0.5
        lines |= _padded(other & (np.abs(np.diff(depth, axis=axis)) > LOCK_DEPTH_STEP), axis)
    lines &= ndimage.binary_erosion(hair, iterations=2)
    labels, count = ndimage.label(ndimage.binary_dilation(lines, iterations=1))
    if count:
        lengths = ndimage.sum(lines, labels, np.arange(1, count + 1))
        lines &= np.isin(labels, 1 + np.where(lengths > LOCK_LENGTH * k)[0])
    return lines


def _mouth(plate: Plate) -> Array:
    """Return the crease between the lips: lip that faces down steeply."""
    layers = plate.layers
    lips = plate.skin & (plate.smooth(np.where(plate.skin, layers.aux[..., 1], 0), 2) > 0.25)
    down = plate.within(layers.normal[..., 2], lips, 1.0) < -0.62
    crease: Array = lips & (down | (layers.aux[..., 1] > 0.3) & (layers.normal[..., 2] < -0.72))
    return crease


def _outline(plate: Plate, image: Array, edges: Array) -> Array:
    """Draw the outlines in a dark shade of what they border."""
    k = plate.scale
    line = plate.smooth(ndimage.binary_dilation(edges, iterations=max(1, int(1.2 * k))).astype(float), 1.0)
    colour = ndimage.minimum_filter(image, (int(5 * k) | 1,) * 2 + (1,)) * np.array([0.30, 0.26, 0.32])
    strength = np.clip(line * 1.15, 0, 1)[..., None]
    drawn: Array = image * (1 - strength * OUTLINE) + colour * strength * OUTLINE
    return drawn


def _moved(mask: Array, rows: float) -> Array:
    """Return the mask moved down by pixels."""
    moved: Array = ndimage.shift(mask.astype(np.uint8), (rows, 0), order=0).astype(bool)
    return moved


def _smeared(mask: Array, rows: Iterable[int]) -> Array:
    """Return the union of the mask moved down by each number of pixels."""
    out = np.zeros_like(mask)
    for row in rows:
        out |= _moved(mask, row)
    return out


def _lashes(plate: Plate, image: Array) -> Array:
    """Draw a thick line along the upper lid, a thin one along the lower, and the upper lid's crease."""
    k, tones, visible = plate.scale, plate.skin_tones, ~plate.hair
    eye = ndimage.binary_closing(plate.eye, iterations=2)
    thickness = int(8 * k) + 1
    above = _smeared(eye, range(-1, -thickness, -1))
    below = _smeared(eye, range(1, int(3 * k) + 1))
    inner = _upper_edge(eye, int(4 * k))
    upper = plate.smooth((((above & ~eye) | inner) & visible).astype(float), 1.1)[..., None]
    lower = plate.smooth((below & ~eye & visible & ~above).astype(float), 1.0)[..., None] * 0.55
    image = _ink(image, lower, LASH * 0.5 + 0.5 * tones.shadow * 0.5)
    image = _ink(image, upper, LASH)
    crease = _moved(eye, -(thickness + 5 * k)) & ~_moved(eye, -(thickness + 3 * k)) & ~eye & plate.skin
    return _ink(image, plate.smooth(crease.astype(float), 0.8)[..., None] * 0.5, tones.deep, 0.75)


def _upper_edge(mask: Array, rows: int) -> Array:
    """Return the mask's upper edge, this many pixels thick."""
    edge = np.zeros_like(mask)
    for row in range(1, rows + 1):
        edge |= ~_moved(mask, row) & mask
    return edge
