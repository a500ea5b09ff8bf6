"""Sizes, margins and padding. Sizes are (width, height) in pixels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from realchar.images.options import MAX_RATIO, PrepareOptions

Size = tuple[int, int]
Box = tuple[int, int, int, int]

TOLERANCE = 8  # levels; JPEG and scans leave a margin this uneven
STEP = 32  # levels; a margin that ends in less, along a whole line, is part of a gradient


def is_elongated(size: Size) -> bool:
    """Tell whether a picture is wider than 2:1 or taller than 1:2."""
    return max(size) > 2 * min(size)


def target_size(size: Size, options: PrepareOptions) -> Size:
    """Return the size that a picture of `size` is resized to, aspect kept, no side below 1."""
    width, height = size
    if options.area is not None:
        scale = math.sqrt(options.area / (width * height))
    else:
        scale = min(1.0, options.long_edge / max(size))
    shortest = math.ceil(max(size) * scale / MAX_RATIO)  # rounding must not make 200:1 thinner than 200:1
    return max(shortest, round(width * scale)), max(shortest, round(height * scale))


def work_size(size: Size, options: PrepareOptions) -> Size:
    """Return the size at which the model works on a prepared picture: its own, or `work_edge` where that is larger."""
    scale = max(1.0, (options.work_edge or 0) / max(size))
    return round(size[0] * scale), round(size[1] * scale)


def find_margins(image: Image.Image) -> Box | None:
    """Return the box that is left after cutting uniform margins off the two far ends, or None to leave all.

    `image` is 8 bits a channel and wider than 2:1 or taller than 1:2. What is left is never thinner than 2:1 the other
    way. A picture whose lines across are all uniform (one colour, stripes, a gradient) has no margins.
    """
    wide = image.width > image.height
    pixels = np.asarray(image).reshape(image.height, image.width, -1)
    lines = pixels if wide else pixels.transpose(1, 0, 2)  # (across, along, channels)
    low, high = lines.min(axis=0).astype(np.int16), lines.max(axis=0).astype(np.int16)
    uniform = (high - low).max(axis=1) <= TOLERANCE
    if uniform.all():
        return None
    first = np.median(lines[:, 0], axis=0).round().astype(np.int16)
    last = np.median(lines[:, -1], axis=0).round().astype(np.int16)
    start = _margin(low, high, first)
    stop = len(low) - _margin(low[::-1], high[::-1], last)
    if start >= stop or (start == 0 and stop == len(low)):
        return None
    start, stop = _keep_shape(start, stop, len(low), lines.shape[0])
    return (start, 0, stop, image.height) if wide else (0, start, image.width, stop)


def _margin(low: NDArray[np.int16], high: NDArray[np.int16], color: NDArray[np.int16]) -> int:
    same = (np.abs(low - color).max(axis=1) <= TOLERANCE) & (np.abs(high - color).max(axis=1) <= TOLERANCE)
    count = int(np.argmin(same))  # 0 when no line differs, but then there is no content either
    if count == 0:
        return 0
    edge_uniform = (high[count] - low[count]).max() <= TOLERANCE
    edge_step = max(np.abs(low[count] - color).max(), np.abs(high[count] - color).max())
    return 0 if edge_uniform and edge_step <= STEP else count


def _keep_shape(start: int, stop: int, length: int, across: int) -> tuple[int, int]:
    """Give back as much margin, evenly, as keeps the cut picture within 2:1 the other way."""
    missing = -(-across // 2) - (stop - start)
    if missing <= 0:
        return start, stop
    before = min(start, max(missing // 2, missing - (length - stop)))
    return start - before, stop + missing - before


def pad(image: Image.Image, multiple: int) -> tuple[Image.Image, Box]:
    """Repeat the edges of an RGB picture up to multiples of `multiple`; return it and the picture's box in it.

    The picture sits in the middle, so that no side gets more than half of the repeated edge.
    """
    width, height = (-(-side // multiple) * multiple for side in image.size)
    left, top = (width - image.width) // 2, (height - image.height) // 2
    box = (left, top, left + image.width, top + image.height)
    if (width, height) == image.size:
        return image, box
    around = ((top, height - box[3]), (left, width - box[2]), (0, 0))
    return Image.fromarray(np.pad(np.asarray(image), around, mode="edge")), box
