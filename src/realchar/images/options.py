"""What can be asked of the preprocessing, what it gives, and the words of its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL.Image import Image, Resampling

from realchar.errors import InvalidInput, RealCharError

NATIVE_AREA = 1024 * 1024  # the base's training area in pixels: the size policy "native"
MAX_RATIO = 200  # the vision encoder refuses what is thinner

Note = dict[str, Any]


@dataclass(frozen=True)
class PrepareOptions:
    """How a picture is prepared. Lengths are pixels of the picture as it is seen (after the camera's orientation)."""

    long_edge: int = 1024  # longest side of the result; a smaller picture is never enlarged
    area: int | None = None  # target area in pixels, aspect kept, enlarging allowed; overrides long_edge
    work_edge: int | None = None  # what is smaller is enlarged for the model to this long edge; the result is not
    multiple: int = 32  # both sides of the padded picture are multiples of this
    enhance_gray: bool | None = None  # CLAHE on gray pictures: None = only where contrast is low
    trim: bool = True  # cut uniform margins off pictures wider than 2:1 or taller than 1:2
    max_megapixels: int = 180  # larger pictures are refused from their header

    def __post_init__(self) -> None:
        for name in ("long_edge", "area", "work_edge", "multiple", "max_megapixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput("option", f"{name} is {value!r}, but must be 1 or more.", name=name, value=value)


@dataclass(frozen=True)
class PreparedPicture:
    """The prepared picture, with and without padding, and the report on how it came about."""

    picture: Image  # RGB, without any metadata
    padded: Image  # RGB, maybe enlarged, edges repeated up to multiples of `PrepareOptions.multiple`: what the VAE sees
    box: tuple[int, int, int, int]  # (left, top, right, bottom) of `picture`, enlarged, in `padded`
    report: dict[str, Any]

    def returned(self, image: Image) -> Image:
        """Return the result, cut out of `padded` by `box`, at the picture's own size."""
        return image if image.size == self.picture.size else image.resize(self.picture.size, Resampling.LANCZOS)


def note(code: str, text: str, **numbers: Any) -> Note:
    return {"code": code, "text": text, **numbers}


def accepted(source: dict[str, Any], prepared: tuple[int, int], padded: tuple[int, int], notes: list[Note]) -> Note:
    return {
        "action": "accept",
        "reason": None,
        "source": source,
        "prepared": {"mode": "RGB", "size": list(prepared)},
        "padded": list(padded),
        "notes": notes,
    }


def rejection(error: RealCharError) -> dict[str, Any]:
    """Return the report of a refused picture, with what was known of the source when it was refused."""
    return {
        "action": "reject",
        "reason": error.message,
        "code": error.code,
        "source": error.args_.get("source"),
        "prepared": None,
        "padded": None,
        "notes": [],
    }
