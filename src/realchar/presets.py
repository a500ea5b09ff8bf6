"""Presets and prompt sets; their numbers are clamped to what a base can do."""

from __future__ import annotations

from dataclasses import dataclass

from realchar.errors import InvalidInput
from realchar.schema import SizePolicy
from realchar.settings import Strategy

PROMPTS = {
    "base": "Transform the image into a realistic photograph.",
    "enhanced": (
        "Transform the image into a realistic photograph of a real person. Keep the composition, framing, camera angle, "
        "pose, proportions, hairstyle, clothing and colours exactly; add, remove and move nothing. Natural skin with "
        "pores and fine hair, real fabric and materials, believable eyes, soft photographic light, shallow depth of field."
    ),
}
NEGATIVE = (
    "anime, manga, cartoon, illustration, drawing, painting, sketch, cel shading, flat colours, outlines, 3d render, "
    "doll, plastic skin, oily skin, oversaturated, blurry, low resolution, deformed, extra fingers, text, watermark, logo"
)
MAX_STEPS = 100
MAX_CFG = 20.0


@dataclass(frozen=True)
class Preset:
    """A named choice of settings. `small`: at `small_edge` of what the base can."""

    name: str
    title: str
    tip: str
    cfg: float
    steps: int
    size: SizePolicy = "safe"
    small: bool = False
    strategy: Strategy = Strategy.AUTO


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("draft", "Quick draft", "See the direction in a third of the time", cfg=5.0, steps=12, small=True),
        Preset("daily", "Daily", "Good for most pictures", cfg=7.0, steps=20),
        Preset("portrait", "Portrait", "Faces and skin first", cfg=9.0, steps=25, strategy=Strategy.QUALITY),
        Preset("batch", "Batch", "Many pictures, even look", cfg=6.0, steps=15, strategy=Strategy.BATCH),
        Preset("official", "Official", "The model makers' setting", cfg=4.0, steps=40, size="native"),
    )
}
DEFAULT_PRESET = "daily"
SMALL = 0.75  # of the base's long edge


def small_edge(long_edge: int) -> int:
    """Return the long edge of the small size, a multiple of 32 pixels: 768 of 1024."""
    return max(32, int(long_edge * SMALL) // 32 * 32)


def get_preset(name: str) -> Preset:
    try:
        return PRESETS[name]
    except KeyError:
        raise InvalidInput(
            "preset", f"Preset {name!r} is not known; choose one of {', '.join(PRESETS)}.", name=name
        ) from None
