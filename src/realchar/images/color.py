"""Colour: to sRGB by the embedded profile, CMYK and Lab to RGB, gray pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms

from realchar.images.options import Note, note
from realchar.images.quiet import quiet

_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
_FLAGS = ImageCms.Flags.BLACKPOINTCOMPENSATION
_INTENT = ImageCms.Intent.RELATIVE_COLORIMETRIC
LOW_CONTRAST = 128  # levels between the darkest and the lightest thousandth of the pixels
FLAT = 16  # levels; below this there is nothing to enhance but noise
NEUTRAL = 2  # levels; channels this close are gray (lossy formats round each channel for itself)


def to_srgb(image: Image.Image, icc: bytes | None) -> tuple[Image.Image, list[Note]]:
    """Return an 8-bit L, RGB, CMYK or LAB picture as sRGB; a profile that can't be used is ignored, with a note."""
    notes: list[Note] = []
    if image.mode == "LAB":
        lab = ImageCms.createProfile("LAB")
        return _apply(image, ImageCms.ImageCmsProfile(lab)), [note("lab", "Lab colours converted to RGB")]
    if image.mode == "CMYK":
        notes.append(note("cmyk", "Print colours (CMYK) converted to RGB"))
    if not icc:
        return image.convert("RGB"), notes
    try:
        with quiet():
            profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
            space = profile.profile.xcolor_space.strip()
            if image.mode == "L" and space == "RGB":
                image = image.convert("RGB")  # editors put their RGB profile into gray pictures too
            if space != _SPACES[image.mode]:
                raise ValueError(f"a {space} profile does not fit a {image.mode} picture")
            converted = _apply(image, profile)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        notes.append(note("icc", "The embedded colour profile can't be used and was ignored", name=None))
        return image.convert("RGB"), notes
    plain = image.convert("RGB")
    if image.mode != "CMYK" and _max_difference(plain, converted) <= 2:
        return plain, notes  # it is sRGB by whatever name
    name = _profile_name(profile)
    return converted, [*notes, note("icc", f"Colours converted from {name} to sRGB", name=name)]


def _apply(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    srgb = ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(image, profile, srgb, _INTENT, "RGB", flags=_FLAGS)
    if converted is None:
        raise ValueError("no conversion")
    return converted


def _max_difference(a: Image.Image, b: Image.Image) -> int:
    return int(np.abs(np.asarray(a).astype(np.int16) - np.asarray(b).astype(np.int16)).max())


def _profile_name(profile: ImageCms.ImageCmsProfile) -> str:
    try:
        text = ImageCms.getProfileDescription(profile)
    except ImageCms.PyCMSError:
        text = ""
    return "".join(c for c in text if c.isprintable()).strip()[:60] or "an embedded profile"


def right_ink(image: Image.Image) -> Image.Image:
    """Return a CMYK JPEG that came without Adobe's marker with the likely polarity (0 = no ink).

    Pillow inverts all CMYK JPEGs, as Adobe does. No press takes more than about 340 % of ink, so a picture where that
    is common was not inverted in the file: what looks like heavy ink is its paper.
    """
    small: NDArray[Any] = np.asarray(
        image.resize((min(image.width, 128), min(image.height, 128)), Image.Resampling.BOX)
    )
    heavy = (small.sum(axis=-1, dtype=np.int32) > 3.4 * 255).mean()
    return ImageChops.invert(image) if heavy > 0.01 else image


def to_gray(image: Image.Image, known_gray: bool) -> Image.Image | None:
    """Return an RGB picture as L if it is gray (by its origin, or because its channels are equal), else None."""
    if known_gray:
        return image.convert("L")
    red, green, blue = image.split()
    for one, other in ((red, green), (green, blue), (red, blue)):
        low_high: Any = ImageChops.difference(one, other).getextrema()
        if low_high[1] > NEUTRAL:
            return None
    return image.convert("L")


def enhance_gray(gray: Image.Image, wanted: bool | None) -> tuple[Image.Image, list[Note]]:
    """Raise the contrast of an L picture by CLAHE; `wanted` None: only where it is low."""
    values = np.asarray(gray)
    dark, light = np.percentile(values, (0.1, 99.9))
    if wanted is False or light - dark < FLAT or (wanted is None and light - dark >= LOW_CONTRAST):
        return gray, []
    import cv2

    enhanced = cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(np.ascontiguousarray(values))
    return Image.fromarray(enhanced), [
        note("gray", "Gray picture, contrast gently raised", contrast=round(light - dark))
    ]
