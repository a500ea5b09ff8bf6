"""From any pixel layout to 8 bits a channel without transparency: L, RGB, CMYK or LAB."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops

from realchar.images.decode import Decoded
from realchar.images.options import Note, note

_CONVERT = {"1": "L", "La": "LA", "RGBa": "RGBA", "PA": "RGBA"}
_KEPT = ("L", "LA", "RGB", "RGBA", "CMYK", "LAB")
STRIP_ROWS = 64


def flatten(decoded: Decoded) -> tuple[Image.Image, list[Note]]:
    """Return the picture as 8-bit L, RGB, CMYK or LAB, transparent parts on white, and what was done."""
    image = decoded.image
    notes: list[Note] = []
    clear = None if image.mode in ("P", "PA") else _clear_mask(decoded)
    if image.mode.startswith("I"):
        image, bits = _from_integers(decoded)
        notes.append(note("bits", f"{bits}-bit picture scaled to 8-bit", bits=bits))
    elif image.mode == "F":
        image, floats = _from_floats(decoded)
        notes.append(floats)
    elif ";16" in decoded.rawmode:  # Pillow keeps the high byte of each channel while it reads
        notes.append(note("bits", "16-bit picture scaled to 8-bit", bits=16))
    if image.mode == "P":
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    elif image.mode not in _KEPT:
        image = image.convert(_CONVERT.get(image.mode, "RGB"))
    if clear is not None:
        image = image.copy()
        image.paste(_white(image.mode), mask=clear)
    see_through = clear is not None
    if image.mode in ("LA", "RGBA"):
        image, see_through = _on_white(image)
    if see_through:
        notes.append(note("alpha", "Transparent areas were put on white"))
    return image, notes


def _on_white(image: Image.Image) -> tuple[Image.Image, bool]:
    """Composite an LA or RGBA picture on white; also tell whether any of it was transparent.

    It goes by strips that fit a processor's cache instead of three more pictures of full size.
    """
    mode = image.mode[:-1]
    if image.getchannel("A").getextrema()[0] == 255:
        return image.convert(mode), False
    flat = Image.new(mode, image.size)
    for top in range(0, image.height, STRIP_ROWS):
        strip = image.crop((0, top, image.width, min(top + STRIP_ROWS, image.height)))
        part = strip.convert(mode)
        part.paste(_white(mode), mask=ImageChops.invert(strip.getchannel("A")))
        flat.paste(part, (0, top))
    return flat, True


def _white(mode: str) -> int | tuple[int, ...]:
    return 255 if mode == "L" else (255, 255, 255)


def _clear_mask(decoded: Decoded) -> Image.Image | None:
    """Return the mask of the one colour that a PNG or GIF without alpha channel calls transparent."""
    key: Any = decoded.image.info.get("transparency")
    image = decoded.image
    if image.mode == "RGB" and isinstance(key, tuple) and len(key) == 3:
        wide = ";16" in decoded.rawmode
        color = [(value >> 8) if wide else value & 255 for value in key]
        mask = (np.asarray(image) == np.array(color, np.uint8)).all(axis=-1)
    elif (image.mode in ("L", "1") or image.mode.startswith("I")) and isinstance(key, int):
        key *= {"L;2": 85, "L;4": 17}.get(decoded.rawmode, 1)
        gray = image.convert("L") if image.mode == "1" else image
        mask = np.asarray(gray) == key
    else:
        return None
    return Image.fromarray(mask.astype(np.uint8) * 255) if mask.any() else None


def _from_integers(decoded: Decoded) -> tuple[Image.Image, int]:
    """Scale 16-bit values by their range; 32-bit ones by the range that their values show (8, 16 bits, their own)."""
    values = np.asarray(decoded.image)
    bits = 16 if ";16" in decoded.rawmode or decoded.image.mode != "I" or decoded.rawmode == "I" else 32
    if decoded.image.mode == "I":
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 65535:
            top = max(high - low, 1)
            values = values.astype(np.int64) - low
        elif bits == 16:
            top = 32767 if decoded.rawmode.endswith("S") else 65535
        else:
            top = 255 if high <= 255 else 65535
        gray = np.clip(np.rint(values * (255.0 / top)), 0, 255).astype(np.uint8)
    else:
        top = 4095 if decoded.rawmode == "I;12" else 65535
        table = np.clip((np.arange(65536) * 255 + top // 2) // top, 0, 255).astype(np.uint8)
        gray = table[values]
    return Image.fromarray(255 - gray if decoded.white_is_zero else gray), bits


def _from_floats(decoded: Decoded) -> tuple[Image.Image, Note]:
    """Scale floats from the range that they seem to use: 0..1 (some highlights above), 0..255, 0..65535, or their own.

    What is not a number becomes black.
    """
    values = np.asarray(decoded.image)
    finite = np.isfinite(values)
    missing = values.size - int(finite.sum())
    known = values[finite] if missing else values.ravel()
    low, high = _float_range(known)
    filled = np.where(np.isnan(values), low, values) if missing else values
    gray = np.clip((np.clip(filled, low, high).astype(np.float64) - low) / (high - low), 0, 1)
    text = "Floating point picture scaled to 8-bit"
    if missing:
        text += f", {missing} pixels without a value set to black"
    return Image.fromarray(np.rint(gray * 255).astype(np.uint8)), note(
        "float", text, low=low, high=high, missing=missing
    )


def _float_range(known: NDArray[Any]) -> tuple[float, float]:
    if known.size == 0:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    if low >= -0.01:
        if high <= 16 and np.percentile(known, 99) <= 1:
            return 0.0, 1.0
        for top in (255.0, 65535.0):
            if high <= top * 1.001:
                return 0.0, top
    return low, high if high > low else low + 1.0
