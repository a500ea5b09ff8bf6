"""The photo's skin: colour and roughness baked per vertex; only pores are left to the renderer."""

from __future__ import annotations

import math

import numpy as np
from scipy import ndimage

from tools.demo_base.render.character import Character
from tools.demo_base.render.human import Human
from tools.demo_base.render.masks import Masks
from tools.demo_base.render.maths import NOISE_SIDE, Array, noise_lattice, smoothstep
from tools.demo_base.render.palette import Palette

OCTAVE_GAIN = 0.55
BEARD_SHADE = {"none": 0.16, "stubble": 0.5, "beard": 0.7}  # how much beard colours the skin, of men
OLD_AGE = 0.35  # spots begin


class _Paint:
    """Linear albedo (n, 3) to which layers are applied in turn."""

    def __init__(self, rest: Array, skin: Array, rng: np.random.Generator) -> None:
        self.rest = rest
        self.skin = skin
        self.rng = rng
        self.colour: Array = np.tile(skin, (len(rest), 1))

    def noise(self, frequency: float, octaves: int = 2) -> Array:
        """Return smooth noise (n,), about normal with deviation 1; frequency is in waves a decimetre."""
        total, amplitude, power = np.zeros(len(self.rest)), 1.0, 0.0
        for octave in range(octaves):
            place = self.rest * frequency * 2**octave + self.rng.random(3) * NOISE_SIDE
            lattice = ndimage.map_coordinates(noise_lattice(), place.T, order=1, mode="grid-wrap")
            total += amplitude * lattice
            power += amplitude * amplitude
            amplitude *= OCTAVE_GAIN
        return total / math.sqrt(power)

    def lay(self, amount: Array, colour: Array) -> None:
        """Mix in a colour (3,) by an amount (n,), 0…1."""
        t = amount[:, None]
        self.colour = self.colour * (1 - t) + t * colour

    def tint(self, amount: Array, red: float, green: float, blue: float) -> None:
        """Mix in the skin's own colour, multiplied."""
        self.lay(amount, self.skin * (red, green, blue))


def paint(character: Character, human: Human, palette: Palette, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return albedo (n, 3), linear, and roughness (n,) over the bust's vertices."""
    masks, old = human.masks, character.person.old
    layers = _Paint(human.bust.rest, palette.skin, rng)
    coarse, middle, fine = layers.noise(1.6), layers.noise(5, 3), layers.noise(16, 2)
    _mottle(layers, coarse, middle, fine)
    blood = masks.red * (0.42 + 0.16 * np.clip(middle, -1.5, 1.5))
    dark = 0.12 * palette.dark_skin
    layers.tint(blood.clip(0, 0.8), 1.03, 0.60 + dark, 0.56 + dark)
    _make_up(layers, character, masks)
    if character.skin.freckles:
        spots = smoothstep(1.0, 1.5, layers.noise(22, 1))
        where = character.skin.freckles * np.clip(masks.red + masks.blush, 0.08, 1) * smoothstep(-1, 0.6, middle)
        layers.tint(spots * where, 0.55, 0.40, 0.30)
    if old > OLD_AGE:
        layers.tint(0.5 * old * smoothstep(1.6, 2.2, layers.noise(4, 2)), 0.62, 0.50, 0.42)
    shade = 0.0 if character.person.female and character.beard == "none" else BEARD_SHADE[character.beard]
    roots = 0.35 * palette.hair + palette.skin * (0.36, 0.38, 0.42)
    layers.lay(masks.beard * shade * np.clip(0.8 + 0.22 * fine, 0.3, 1), roots)
    lips = smoothstep(0.25, 0.7, masks.lips)
    layers.lay(lips * np.clip(0.86 + 0.1 * fine, 0.6, 1), palette.lips)
    layers.lay(masks.scalp * 0.88, palette.hair * 0.5 + 0.08 * palette.skin)
    rough = 0.41 - 0.10 * masks.t_zone - 0.12 * lips + 0.22 * masks.scalp
    rough = rough + 0.03 * np.clip(middle, -2, 2) + 0.06 * masks.beard
    return np.clip(layers.colour, 0.004, 0.95), rough


def _mottle(layers: _Paint, coarse: Array, middle: Array, fine: Array) -> None:
    layers.tint(0.40 * smoothstep(-0.8, 1.2, coarse), 0.94, 0.88, 0.84)
    layers.tint(0.42 * smoothstep(0, 1.8, middle), 1.02, 0.82, 0.79)
    layers.tint(0.32 * smoothstep(0.2, 1.8, fine), 0.86, 0.75, 0.70)
    pale = np.minimum(layers.skin * (1.08, 1.08, 1.08), 0.9)
    layers.lay(0.18 * smoothstep(0.2, 1.6, -fine), pale)


def _make_up(layers: _Paint, character: Character, masks: Masks) -> None:
    """Lay blush, the shadow under the eyes and eyeshadow."""
    skin = character.skin
    if skin.blush:
        layers.tint(masks.blush * skin.blush, 1.02, 0.55, 0.55)
    layers.tint(masks.under_eyes * (0.22 + 0.35 * character.person.old), 0.74, 0.62, 0.66)
    if skin.eyeshadow:
        layers.tint(masks.lids * skin.eyeshadow, 0.45, 0.34, 0.36)
