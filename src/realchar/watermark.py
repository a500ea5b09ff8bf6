"""The visible parameter stamp in the bottom right corner."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from realchar.schema import EditRequest

MIN_FONT_PX = 10  # smaller is not legible, so the stamp is broken into lines instead, and left out at last


def stamp_text(request: EditRequest, version: str, size: tuple[int, int]) -> str:
    """Return e.g. `v3056 | CFG=5.0 | Steps=30 | 1024x576`."""
    return f"{version} | CFG={request.cfg:.1f} | Steps={request.steps} | {size[0]}x{size[1]}"


def stamp(image: Image.Image, text: str) -> Image.Image:
    """Return a copy with `text` on a dark pill, legible on any picture; unchanged where no legible text fits."""
    layout = _layout(image.size, text)
    if layout is None:
        return image.copy()
    lines, font, pad = layout
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.multiline_textbbox((0, 0), lines, font=font, spacing=pad)
    width, height = right - left + 2 * pad, bottom - top + 2 * pad
    pill = Image.new("RGBA", (round(width), round(height)), (0, 0, 0, 0))
    draw = ImageDraw.Draw(pill)
    draw.rounded_rectangle((0, 0, pill.width - 1, pill.height - 1), radius=pad, fill=(0, 0, 0, 150))
    draw.multiline_text((pad - left, pad - top), lines, font=font, fill=(255, 255, 255, 255), spacing=pad)
    stamped = image.copy()
    corner = (image.width - pill.width - pad, image.height - pill.height - pad)
    stamped.paste(pill, corner, pill)
    return stamped


def _layout(size: tuple[int, int], text: str) -> tuple[str, ImageFont.FreeTypeFont, int] | None:
    """Return the lines, the font and the padding that fit into the picture: one line if it can be, else one a part."""
    largest = max(MIN_FONT_PX, round(min(size) * 0.026), round(max(size) * 0.018))
    draw = ImageDraw.Draw(Image.new("L", (1, 1)))
    for lines in (text, text.replace(" | ", "\n")):
        for px in range(largest, MIN_FONT_PX - 1, -1):
            font = ImageFont.load_default(px)
            assert isinstance(font, ImageFont.FreeTypeFont)
            pad = max(2, px // 3)
            left, top, right, bottom = draw.multiline_textbbox((0, 0), lines, font=font, spacing=pad)
            if right - left + 4 * pad <= size[0] and bottom - top + 4 * pad <= size[1] / 2:
                return lines, font, pad
    return None
