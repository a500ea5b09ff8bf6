"""Turn the drawing's buffers into a cel-shaded picture."""

from __future__ import annotations

import numpy as np

from tools.demo_base.render import toon_layers, toon_lines, toon_paint
from tools.demo_base.render.character import Character
from tools.demo_base.render.exr import Channels
from tools.demo_base.render.maths import Array
from tools.demo_base.render.palette import Palette
from tools.demo_base.render.toon_plate import Plate


def draw(channels: Channels, character: Character, palette: Palette, key: Array, background: Array, size: int) -> Array:
    """Return the drawing (size, size, 3), sRGB 0…1.

    The channels (n, n) are a whole multiple of that size; `key` (3,) is the direction to the key light in Blender's
    axes; the background (m, m, 3) is the photo's, linear.
    """
    layers = toon_layers.read(channels)
    toon_layers.clean(layers)
    plate = Plate(layers, character, palette, key)
    image = toon_paint.background(plate, background)
    for paint in (toon_paint.skin, toon_paint.cloth, toon_paint.hair, toon_paint.face_hair, toon_paint.eyes):
        image = paint(plate, image)
    image = np.clip(toon_lines.draw(plate, image), 0, 1)
    per_pixel = len(image) // size
    drawing: Array = np.clip(image.reshape(size, per_pixel, size, per_pixel, 3).mean((1, 3)), 0, 1)
    return drawing
