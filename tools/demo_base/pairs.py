"""Rendered pairs (drawing, photo rendering of the same scene): reading, the held-out split, augmentation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

HELD_OUT = 64  # the last indices present; never trained on
LUMA = (0.299, 0.587, 0.114)


def drawings(folder: Path) -> list[Path]:
    """Return the drawings that have a photo rendering beside them, in order of their index."""
    return [file for file in sorted(folder.glob("*_toon.webp")) if photo_of(file).exists()]


def training(folder: Path) -> list[Path]:
    return drawings(folder)[:-HELD_OUT]


def held_out(folder: Path) -> list[Path]:
    return drawings(folder)[-HELD_OUT:]


def photo_of(drawing: Path) -> Path:
    return drawing.with_name(drawing.name.replace("_toon", "_real"))


def read(drawings: list[Path]) -> Tensor:
    """Return the pairs as uint8 (N, 2, 3, H, W)."""

    def pixels(file: Path) -> Tensor:
        with Image.open(file) as image:
            return torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        pairs = pool.map(lambda file: torch.stack([pixels(file), pixels(photo_of(file))]), drawings)
    return torch.stack(list(pairs))


def normalise(pixels: Tensor) -> Tensor:
    """Return uint8 pixels as floats in -1…1."""
    return pixels.float() / 127.5 - 1


def augment(pairs: Tensor, draw: torch.Generator) -> Tensor:
    """Flip, crop and recolour floats (N, K, 3, H, W): the same way for the K pictures of a pair, one crop a batch."""
    if uniform(draw) < 0.5:
        pairs = pairs.flip(-1)
    size = pairs.shape[-1]
    side = int(size * uniform(draw, 0.8, 1.0))
    top, left = (int(uniform(draw) * (size - side + 1)) for _ in range(2))
    crop = pairs[..., top : top + side, left : left + side].flatten(0, 1)
    crop = F.interpolate(crop, size=(size, size), mode="bicubic", antialias=True)
    return recolour(crop.view_as(pairs), draw).clamp(-1, 1)


def recolour(pairs: Tensor, draw: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and white balance a little, for each pair of the batch its own way."""
    n = len(pairs)

    def spread(amount: float, channels: int = 1) -> Tensor:
        values = (torch.rand(n, 1, channels, 1, 1, generator=draw) * 2 - 1) * amount
        return values.to(pairs.device)

    luma = torch.tensor(LUMA, device=pairs.device).view(3, 1, 1)
    grey = (pairs * luma).sum(2, keepdim=True)
    pairs = grey + (pairs - grey) * (1 + spread(0.25))
    return pairs * (1 + spread(0.12)) * (1 + spread(0.06, 3)) + spread(0.08)


def uniform(draw: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=draw))
