"""Four area lights: key, fill, rim and one from above for the hair. Needs bpy."""

from __future__ import annotations

import math

import numpy as np

from tools.demo_base.render.character import Shot
from tools.demo_base.render.maths import Array, smoothstep, unit
from tools.demo_base.render.palette import Palette
from tools.demo_base.render.stage import AreaLight, Stage


def key_direction(shot: Shot) -> Array:
    """Return the direction (3,) from the face to the key light."""
    azimuth, elevation = math.radians(shot.key_azimuth), math.radians(shot.key_elevation)
    across = math.cos(elevation)
    return np.array([math.sin(azimuth) * across, math.sin(elevation), math.cos(azimuth) * across])


def light(stage: Stage, shot: Shot, palette: Palette, face: Array) -> None:
    """Set the lights around the face (3,); dark skin and hair get more."""
    key = key_direction(shot)
    warmth = np.array([1 + 0.06 * shot.key_warmth, 1, 1 - 0.10 * shot.key_warmth])
    boost = 0.84 + 0.80 * palette.dark_skin
    dark_hair = 1 - float(smoothstep(0.02, 0.2, palette.hair.max()))
    fill, rim, top = np.array([-key[0], 0.15, 0.9]), np.array([-key[0] * 1.1, 0.55, -0.9]), np.array([0.1, 1, -0.1])

    def area(name: str, direction: Array, distance: float, size: float, watts: float, colour: Array) -> None:
        place = face + direction * distance
        stage.set_light(name, AreaLight(place, face, size, float(watts), tuple(float(c) for c in colour)))

    area("key", key, 13, shot.key_size, 27 * shot.key * boost, warmth)
    area("fill", unit(fill), 15, 1.4, 9 * shot.fill * shot.key * boost, 2 - warmth)
    area("rim", unit(rim), 13, 0.5, 13 * shot.rim, np.array([1, 0.97, 0.93]))
    area("hair", unit(top), 12, 0.9, 3.5 + 3.5 * dark_hair, np.ones(3))
