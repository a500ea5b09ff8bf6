"""What every step of the drawing reads: cleaned layers, masks, light, and the character's drawn colours, sRGB."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage

from tools.demo_base.render.character import Character
from tools.demo_base.render.colours import adjust, to_srgb
from tools.demo_base.render.maths import Array, unit
from tools.demo_base.render.palette import Palette
from tools.demo_base.render.toon_layers import Layers, Region

FLUFFY = ("crop", "afro", "pixie")


@dataclass(frozen=True)
class SkinTones:
    base: Array
    shadow: Array
    deep: Array


@dataclass(frozen=True)
class HairTones:
    base: Array
    shadow: Array
    shine: Array


@dataclass(frozen=True)
class Plate:
    layers: Layers
    character: Character
    palette: Palette
    key: Array  # (3,) direction to the key light, Blender's axes

    def mask(self, *regions: Region) -> Array:
        mask: Array = np.isin(self.layers.region, regions)
        return mask

    @cached_property
    def hair(self) -> Array:
        return self.mask(Region.HAIR)

    @cached_property
    def skin(self) -> Array:
        return self.mask(Region.SKIN)

    @cached_property
    def eye(self) -> Array:
        return self.mask(Region.EYE)

    @property
    def scale(self) -> float:
        return self.layers.scale

    @property
    def key_side(self) -> float:
        """Return -1 or 1: on which side of the picture the key light is."""
        return float(np.sign(self.key[0]))

    @cached_property
    def light(self) -> Array:
        """Return how much each pixel (n, n) faces the key light, which the drawing never has behind or below."""
        key = unit(np.array([self.key[0] * 1.0, min(self.key[1], -0.35), max(self.key[2], 0.35)]))
        light: Array = (self.layers.shading * key).sum(-1)
        return light

    @cached_property
    def skin_light(self) -> Array:
        return self.within(self.light, self.mask(Region.SKIN, Region.BEARD, Region.BROW), 2.0)

    def smooth(self, values: ArrayLike, sigma: float) -> Array:
        """Blur (n, n) values; sigma in pixels of the reference size."""
        blurred: Array = ndimage.gaussian_filter(np.asarray(values, np.float32), sigma * self.scale, truncate=3)
        return blurred

    def within(self, values: Array, mask: Array, sigma: float) -> Array:
        """Blur values inside a mask without what lies outside of it."""
        weight = self.smooth(mask.astype(float), sigma)
        blurred: Array = self.smooth(np.where(mask, values, 0.0), sigma) / np.maximum(weight, 1e-4)
        return blurred

    def shifted(self, mask: Array, down: float, towards_light: float) -> Array:
        """Return the shadow that a mask casts."""
        offset = (down * self.scale, -towards_light * self.scale * self.key_side)
        shadow: Array = ndimage.shift(mask.astype(float), offset, order=0) > 0.5
        return shadow

    @property
    def fluffy(self) -> bool:
        return self.character.hair.style in FLUFFY

    @cached_property
    def skin_tones(self) -> SkinTones:
        tone = np.array(self.character.skin.tone)
        brightness = tone.max()
        base = adjust(tone, 1.08 if brightness > 0.65 else 1.2, 1)
        lift = 0.42 if brightness > 0.6 else 0.18
        base = np.clip(base + (1 - base) * lift * np.array([1.15, 0.95, 0.85]), 0, 1)
        return SkinTones(base, base * np.array([0.86, 0.68, 0.67]), base * np.array([0.72, 0.52, 0.55]))

    @cached_property
    def hair_tones(self) -> HairTones:
        tone = np.array(self.character.hair.rgb)
        brightness = tone.max()
        dark = brightness < 0.5
        base = adjust(tone, 1.3 if dark else 1.12, 1.0)
        lift = np.array([0.055, 0.05, 0.085]) if brightness < 0.2 else 0.03
        base = np.clip(base * (1.12 if dark else 1.06) + lift, 0, 0.96)
        shine = np.clip(base * 1.10 + (0.17 if brightness > 0.2 else 0.15), 0, 1)
        return HairTones(base, base * np.array([0.66, 0.62, 0.74]), shine)

    @cached_property
    def brow_tone(self) -> Array:
        return to_srgb(self.palette.brows)
