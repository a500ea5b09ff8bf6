"""The files of rendered pairs: drawing and photo rendering of one scene, the held-out split, where the eyes are."""

from __future__ import annotations

import json
from pathlib import Path

HELD_OUT = 64  # the last indices present; never trained on
EYES = "eyes.json"  # written by render.landmarks

Eyes = list[list[float]]  # [x, y, radius] each, in shares of the picture's side, from the top left


def drawings(folder: Path) -> list[Path]:
    """Return the drawings that have a photo rendering beside them, in order of their index."""
    found = [file for file in sorted(folder.glob("*_toon.webp")) if photo_of(file).exists()]
    if not found:
        raise SystemExit(f"No pairs in {str(folder)!r}; it needs files like 00000_toon.webp with 00000_real.webp.")
    return found


def training(folder: Path, more: Path | None = None) -> list[Path]:
    """Return the drawings to train on: all of `more`, which must be of other characters, and `folder`'s but the last."""
    return drawings(folder)[:-HELD_OUT] + (drawings(more) if more else [])


def held_out(folder: Path) -> list[Path]:
    return drawings(folder)[-HELD_OUT:]


def photo_of(drawing: Path) -> Path:
    return drawing.with_name(drawing.name.replace("_toon", "_real"))


def index_of(drawing: Path) -> str:
    return drawing.name.partition("_")[0]


def eyes(drawings: list[Path]) -> list[Eyes]:
    """Return the eyes of each pair; none where its folder says nothing of them."""
    known: dict[Path, dict[str, Eyes]] = {}
    for folder in {drawing.parent for drawing in drawings}:
        file = folder / EYES
        known[folder] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return [known[drawing.parent].get(index_of(drawing), []) for drawing in drawings]
