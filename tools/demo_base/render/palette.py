"""The colours of one character that drawing and photo share, linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.character import Character
from tools.demo_base.render.colours import adjust, to_linear
from tools.demo_base.render.maths import Array, smoothstep

DYED_BROWS = (0.03, 0.02, 0.015)
BLACKEST = 0.007  # of hair


@dataclass(frozen=True)
class Palette:
    skin: Array  # (3,)
    dark_skin: float  # 0…1
    lips: Array
    hair: Array  # as drawn at random: scalp and stubble
    fibre: Array  # of a strand in the photo
    brows: Array  # and the beard


def mix(character: Character) -> Palette:
    skin = to_linear(character.skin.tone)
    dark = float(1 - smoothstep(0.15, 0.5, skin[1]))
    lips = skin * (0.80, 0.45, 0.46)
    if character.skin.lip_colour is not None:
        amount = character.skin.lip_amount
        lips = lips * (1 - amount) + to_linear(character.skin.lip_colour) * amount
    hair = to_linear(character.hair.rgb)
    return Palette(skin, dark, lips, hair, _fibre(character, hair), _brows(character, skin, hair))


def _fibre(character: Character, hair: Array) -> Array:
    """Return a strand's own colour: light hair paler, brown hair lighter, as light comes through many strands."""
    if not character.hair.dyed:
        brightness = max(character.hair.rgb)
        hair = to_linear(adjust(character.hair.rgb, 1 - 0.32 * float(smoothstep(0.25, 0.75, brightness)), 1.0))
    brown = smoothstep(0.005, 0.03, hair.max()) * (1 - smoothstep(0.10, 0.35, hair.max()))
    fibre: Array = np.maximum(hair, BLACKEST) * (1 + 0.9 * float(brown))
    return fibre


def _brows(character: Character, skin: Array, hair: Array) -> Array:
    if character.hair.dyed:
        return np.array(DYED_BROWS)
    darker = 0.55 if hair.max() > 0.12 else 0.8
    brows: Array = 0.8 * hair * darker + 0.10 * skin * (0.5, 0.4, 0.35)
    return brows
