"""The drawing's buffers as rendered, and their clean-up: whole silhouettes without specks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy import ndimage

from tools.demo_base.render.exr import Channels
from tools.demo_base.render.maths import Array

REFERENCE_SIZE = 768  # widths and radii are given in pixels of a picture of this size
FAR = 50  # metres, the background's depth
SPECK = 500  # pixels of hair below which a patch is dropped


class Region(IntEnum):
    BACKGROUND = 0
    SKIN = 1
    CLOTH = 2
    EYE = 3
    HAIR = 4
    BROW = 5
    MOUTH = 6
    BEARD = 7


@dataclass(frozen=True)
class Layers:
    """What every pixel (n, n, …) of the drawing knows; what `aux` and `aux2` hold differs by region, see `staging`."""

    shading: Array  # (n, n, 3) normal for light and shadow, Blender's axes
    normal: Array  # (n, n, 3) of the surface
    aux: Array  # (n, n, 3)
    aux2: Array  # (n, n, 3)
    depth: Array  # (n, n) metres
    region: Array  # (n, n)

    @property
    def scale(self) -> float:
        return len(self.region) / REFERENCE_SIZE

    def is_in(self, region: Region) -> Array:
        mask: Array = self.region == region
        return mask

    def fill(self, target: Array, source: Array) -> None:
        """Give the pixels of the target mask everything that the nearest pixel of the source mask has."""
        if not target.any() or not source.any():
            return
        nearest = ndimage.distance_transform_edt(~source, return_distances=False, return_indices=True)
        y, x = nearest[0][target], nearest[1][target]
        for values in (self.shading, self.aux, self.aux2, self.depth, self.region, self.normal):
            values[target] = values[y, x]


def read(channels: Channels) -> Layers:
    """Pick the passes out of the EXR's channels, which Blender names Layer.Pass.Component."""

    def channel(ending: str) -> Array:
        return next(values for name, values in channels.items() if name.endswith(f".{ending}"))

    def vector(name: str, components: str = "RGB") -> Array:
        return np.stack([channel(f"{name}.{component}") for component in components], -1)

    aux = vector("aux")
    region = np.rint(aux[..., 0]).astype(int)
    depth = np.where(region == Region.BACKGROUND, FAR, channel("Depth.Z"))
    return Layers(vector("tn"), vector("Normal", "XYZ"), aux, vector("aux2"), depth, region)


def clean(layers: Layers) -> None:
    """Smooth the outlines of hair, brows and beard in place, and close the mouth."""
    _drop_specks(layers)
    k, hair = layers.scale, layers.is_in(Region.HAIR)
    smooth = ndimage.gaussian_filter(hair.astype(np.float32), 2.4 * k) > 0.46
    added = smooth & ~hair & ~layers.is_in(Region.EYE)
    removed = hair & ~smooth
    layers.fill(added, hair & smooth)
    layers.fill(removed, ~hair & ~removed)
    for region, sigma in ((Region.BROW, 2.2), (Region.BEARD, 4)):
        before = layers.is_in(region)
        if before.any():
            smooth = ndimage.gaussian_filter(before.astype(np.float32), sigma * k) > 0.42
            after = smooth & (layers.is_in(Region.SKIN) | before)
            layers.fill(after & ~before, before)
            layers.fill(before & ~after, layers.is_in(Region.SKIN))
    mouth = layers.is_in(Region.MOUTH)
    layers.fill(mouth, ~mouth & ~layers.is_in(Region.BACKGROUND))


def _drop_specks(layers: Layers) -> None:
    """Remove small patches of hair apart from the rest."""
    hair = layers.is_in(Region.HAIR)
    patches, count = ndimage.label(hair)
    if count > 1:
        sizes = np.bincount(patches.ravel())
        limit = SPECK * layers.scale * layers.scale
        layers.fill((sizes[patches] < limit) & (patches > 0), ~hair)
