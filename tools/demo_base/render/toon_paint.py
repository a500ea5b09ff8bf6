"""Cel shading: each region in a base colour and one or two shadow colours with hard edges. Pictures (n, n, 3), sRGB."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from tools.demo_base.render.colours import adjust, to_srgb
from tools.demo_base.render.maths import Array, smoothstep, unit
from tools.demo_base.render.toon_layers import Region
from tools.demo_base.render.toon_plate import Plate

BEARD_SHADE = {"none": 0, "stubble": 0.12, "beard": 0.45}
IRIS_RADIUS = 0.61  # of the drawn eyeball's
IN_SHADOW = 0.18  # of the light below which skin is


def _where(mask: Array, yes: Array, no: Array) -> Array:
    """Choose colours by a mask (n, n)."""
    return np.where(mask[..., None], yes, no)


def background(plate: Plate, picture: Array) -> Array:
    """Return the photo's background (m, m, 3), linear, as a smooth, saturated, light colour field; float32."""
    n = len(plate.layers.region)
    sigma = picture.shape[0] * 0.11
    soft = ndimage.gaussian_filter(picture, (sigma, sigma, 0), mode="nearest")
    colours = to_srgb(np.clip(soft, 0, 1))
    colours = ndimage.zoom(colours, (n / colours.shape[0],) * 2 + (1,), order=1)
    grey = colours.mean(-1, keepdims=True)
    colours = np.clip(grey + (colours - grey) * 1.7, 0, 1) * 0.85 + 0.13
    background: Array = np.clip(colours, 0, 1).astype(np.float32)
    return background


def skin(plate: Plate, image: Array) -> Array:
    layers, tones = plate.layers, plate.skin_tones
    female = plate.character.person.female
    shade = _skin_shade(plate)
    colour = _where(shade, tones.shadow, tones.base)
    colour = _where(plate.skin_light < -0.22, tones.deep, colour)
    blush = plate.smooth(np.where(plate.skin, layers.aux[..., 2], 0), 3)[..., None] * (0.42 if female else 0.2)
    colour = colour * (1 - blush) + blush * np.clip(tones.base * np.array([1.05, 0.62, 0.62]), 0, 1)
    lips = plate.smooth(np.where(plate.skin, layers.aux[..., 1], 0), 1.0) > 0.5
    colour = _lips(plate, colour, lips, shade)
    stubble = BEARD_SHADE[plate.character.beard]
    if stubble:
        beard = plate.smooth(np.where(plate.skin, layers.aux2[..., 1], 0), 7)
        amount = smoothstep(0.1, 0.9, beard)[..., None] * ~lips[..., None] * stubble
        colour = colour * (1 - amount) + amount * tones.base * np.array([0.55, 0.52, 0.58])
    return _where(plate.skin, colour, image)


def _skin_shade(plate: Plate) -> Array:
    """Return where skin lies in shadow: away from the light, under hair, nose and chin."""
    layers = plate.layers
    under_hair = plate.shifted(plate.hair, 13, 9)
    nose = layers.aux2[..., 2] * (layers.normal[..., 2] < -0.22) * plate.skin
    neck = plate.skin & (layers.aux2[..., 0] < 0.5) & (layers.shading[..., 2] < -0.35)
    shade: Array = plate.skin_light < IN_SHADOW
    shade = shade | (under_hair & plate.skin & (layers.depth > 0)) | (plate.smooth(nose, 1.2) > 0.35)
    return shade | (plate.smooth(neck.astype(float), 1.5) > 0.5)


def _lips(plate: Plate, colour: Array, lips: Array, shade: Array) -> Array:
    tone = adjust(to_srgb(plate.palette.lips), 1.15, 1.12)
    bare = 0.42 if plate.character.person.female else 0.25
    amount = bare if plate.character.skin.lip_colour is None else 0.85
    painted = colour * (1 - amount) + amount * _where(shade, tone * 0.85, tone)
    return _where(lips, painted, colour)


def cloth(plate: Plate, image: Array) -> Array:
    layers, worn = plate.layers, plate.character.cloth
    mask = plate.mask(Region.CLOTH)
    first, second = (adjust(rgb, 1.12, 1.03) * 0.93 + 0.05 for rgb in (worn.rgb, worn.second_rgb))
    trim = (layers.aux[..., 1] < 0.12) & mask
    stripes = (np.sin(layers.aux[..., 2] * 16) > 0) & (worn.stripe > 0)
    colour = _where(trim | stripes, second, first)
    shade = (plate.within(plate.light, mask, 1.5) < 0.15) | plate.shifted(plate.hair | plate.skin, 8, 7)
    return _where(mask, _where(shade, colour * np.array([0.72, 0.70, 0.80]), colour), image)


def hair(plate: Plate, image: Array) -> Array:
    """Paint locks in light and shadow, and a band of shine."""
    layers, tones, mask = plate.layers, plate.hair_tones, plate.hair
    uneven = ndimage.median_filter(layers.aux[..., 1], int(5 * plate.scale) | 1) - 0.5
    uneven = plate.within(uneven, mask, 7 if plate.fluffy else 1.2)
    light = plate.within(plate.light, mask, 3) + 0.34 * uneven
    above = unit(np.array([plate.key[0] * 0.6, plate.key[1] * 0.4 - 0.4, 0.9]))
    shine = plate.within((layers.shading * above).sum(-1), mask, 4)
    width = 0.030 + 0.05 * np.clip(uneven, -0.3, 0.5)
    band = (np.abs(shine + 0.10 * uneven - 0.90) < width) & mask
    if plate.fluffy:
        band = _tidy(band, max(1, int(3 * plate.scale)))
    colour = _where(_tidy(light < 0.22, 1), tones.shadow, tones.base)
    colour = _where(light < -0.18, tones.shadow * 0.78, colour)
    colour = _where(band & (light > 0.15), tones.shine, colour)
    return _where(mask, colour, image)


def _tidy(mask: Array, iterations: int) -> Array:
    closed = ndimage.binary_closing(mask, iterations=iterations)
    opened: Array = ndimage.binary_opening(closed, iterations=iterations)
    return opened


def face_hair(plate: Plate, image: Array) -> Array:
    """Paint beard and brows."""
    beard = plate.mask(Region.BEARD)
    if beard.any():
        dyed = plate.character.hair.dyed
        tone = np.clip(plate.brow_tone + 0.03, 0, 1) if dyed else plate.hair_tones.base
        shaded = _where(plate.skin_light < IN_SHADOW, tone * np.array([0.57, 0.54, 0.64]), tone * 0.85)
        image = _where(beard, shaded, image)
    return _where(plate.mask(Region.BROW), np.clip(plate.brow_tone * 0.85 + 0.02, 0, 1), image)


def eyes(plate: Plate, image: Array) -> Array:
    """Paint white, iris, pupil and highlights by where on the eyeball a pixel is."""
    if not plate.eye.any():
        return image
    x, y = plate.layers.aux[..., 1], plate.layers.aux[..., 2]  # -1…1 from the pupil, x to the right, y up
    radius = np.hypot(x / 0.93, y / 1.06)
    white = _where(y > 0.30, np.array([0.80, 0.80, 0.87]), np.array([0.985, 0.985, 0.99]))
    eye = _where(radius < IRIS_RADIUS, _iris(plate, x, y, radius), white)
    side = plate.key_side
    large = np.hypot(x - 0.20 * side, y - 0.24) < 0.145
    small = np.hypot(x + 0.20 * side, y + 0.26) < 0.075
    return _where(plate.eye, _where(large | small, np.ones(3), eye), image)


def _iris(plate: Plate, x: Array, y: Array, radius: Array) -> Array:
    tone = np.array(plate.character.eye_rgb)
    colour = np.clip(adjust(tone, 1.3, 1.0), 0, 1)
    colour = colour / max(colour.max(), 0.01) * min(0.85, 0.28 + 0.70 * tone.max())
    height = np.clip((y + IRIS_RADIUS) / (2 * IRIS_RADIUS), 0, 1)[..., None]
    iris = np.clip((colour * 1.35 + 0.12), 0, 1) * (1 - height) + colour * 0.42 * height
    iris = _where(radius > IRIS_RADIUS - 0.07, colour * 0.28, iris)
    iris = _where(np.hypot(x / 0.85, y) < 0.23, colour * 0.12, iris)
    glow = (np.hypot(x / 1.3, (y + 0.30) / 0.75) < 0.20) & (radius < IRIS_RADIUS - 0.09)
    return _where(glow, np.clip(colour * 1.6 + 0.22, 0, 1), iris)
