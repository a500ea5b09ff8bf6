"""The pixels of rendered pairs (drawing, photo rendering of the same scene): reading and augmentation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tools.demo_base.pair_files import Eyes, photo_of

LUMA = (0.299, 0.587, 0.114)
WHOLE_SHARE = 0.4  # of the pairs that stay uncropped, as pictures are at the end
NARROWEST, WIDEST = 0.55, 1.35  # frame of the others, in sides of the picture; what lies beyond it is mirrored
TILT = 0.2  # radians, either way
EYE_REACH = 1.8  # of the eyeball's radius: what is drawn larger and the lids are inside
HUE = 0.35  # radians, either way
RESTYLED_SHARE = 0.3  # of the drawings that are redrawn in another style
# The half-way look that the base alone is to give: this much of the photo's light and colour, of the drawing's detail.
HALF_LIGHT, HALF_DETAIL, HALF_SIGMA = 0.5, 0.7, 4.0


def read(drawings: list[Path], side: int | None = None) -> Tensor:
    """Return the pairs as uint8 (N, 2, 3, H, W); enlarged, as the app enlarges small pictures, where a side is given."""

    def pixels(file: Path) -> Tensor:
        with Image.open(file) as image:
            picture = image.convert("RGB")
            if side is not None and picture.size != (side, side):
                picture = picture.resize((side, side), Image.Resampling.LANCZOS)
            return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        pairs = pool.map(lambda file: torch.stack([pixels(file), pixels(photo_of(file))]), drawings)
    return torch.stack(list(pairs))


def normalise(pixels: Tensor) -> Tensor:
    """Return uint8 pixels as floats in -1…1."""
    return pixels.float() / 127.5 - 1


def spots(eyes: list[Eyes], side: int) -> Tensor:
    """Return where the eyes with their lids are, (N, 1, side, side): 1 in the middle of each, 0 from its edge on."""
    places = (torch.arange(side) + 0.5) / side
    masks = torch.zeros(len(eyes), 1, side, side)
    for mask, found in zip(masks, eyes, strict=True):
        for x, y, radius in found:
            distance = torch.hypot(places - x, (places - y)[:, None]) / (radius * EYE_REACH)
            mask[0] = torch.maximum(mask[0], (2 * (1 - distance)).clamp(0, 1))
    return masks


def augment(pairs: Tensor, draw: torch.Generator, maps: Tensor | None = None) -> Tensor:
    """Flip, crop, tilt and recolour floats (N, K, 3, H, W): the same way for the K pictures of a pair.

    `maps` (N, 2, 3): how they are framed; drawn where there are none.
    """
    return recolour(reframe(pairs, frames(len(pairs), draw) if maps is None else maps), draw).clamp(-1, 1)


def reframe(pairs: Tensor, maps: Tensor) -> Tensor:
    """Flip, crop and tilt (N, K, C, H, W) by maps (N, 2, 3)."""
    grid = F.affine_grid(maps.to(pairs.device), list(pairs[:, 0].shape), align_corners=False)
    pictures, grids = pairs.flatten(0, 1), grid.repeat_interleave(pairs.shape[1], 0)
    framed = F.grid_sample(pictures, grids, mode="bicubic", padding_mode="reflection", align_corners=False)
    return framed.view_as(pairs)


def frames(n: int, draw: torch.Generator) -> Tensor:
    """Draw maps (N, 2, 3) from the new picture to the old one, both in -1…1."""
    cropped = (torch.rand(n, generator=draw) >= WHOLE_SHARE).float()
    side = 1 + cropped * (NARROWEST - 1 + torch.rand(n, generator=draw) * (WIDEST - NARROWEST))
    tilt = cropped * (torch.rand(n, generator=draw) * 2 - 1) * TILT
    mirror = torch.where(torch.rand(n, generator=draw) < 0.5, -1.0, 1.0)
    middle = (torch.rand(2, n, generator=draw) * 2 - 1) * (1 - side).abs()
    rows = [
        torch.stack([mirror * side * tilt.cos(), -side * tilt.sin(), middle[0]], -1),
        torch.stack([mirror * side * tilt.sin(), side * tilt.cos(), middle[1]], -1),
    ]
    return torch.stack(rows, 1)


def recolour(pairs: Tensor, draw: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and white balance a little, for each pair of the batch its own way."""
    n = len(pairs)

    def spread(amount: float, channels: int = 1) -> Tensor:
        values = (torch.rand(n, 1, channels, 1, 1, generator=draw) * 2 - 1) * amount
        changed = (torch.rand(n, 1, 1, 1, 1, generator=draw) < 0.6).float()
        return (values * changed).to(pairs.device)

    luma = torch.tensor(LUMA, device=pairs.device).view(3, 1, 1)
    grey = (pairs * luma).sum(2, keepdim=True)
    pairs = grey + turn_hue((pairs - grey) * (1 + spread(0.3)), spread(HUE).flatten())
    return pairs * (1 + spread(0.12)) * (1 + spread(0.08, 3)) + spread(0.08)


def turn_hue(colours: Tensor, angles: Tensor) -> Tensor:
    """Turn colours less their grey (N, K, 3, H, W) about the grey axis, by an angle (N,) in radians each."""
    cos, sin, third = angles.cos(), angles.sin() / 3**0.5, (1 - angles.cos()) / 3
    rows = [[cos + third, third - sin, third + sin], [third + sin, cos + third, third - sin]]
    rows.append([third - sin, third + sin, cos + third])
    turn = torch.stack([torch.stack(row, -1) for row in rows], -2)
    return torch.einsum("nij,nkjhw->nkihw", turn, colours)


def restyle(drawings: Tensor, draw: torch.Generator) -> Tensor:
    """Redraw some of the drawings (N, 3, H, W), each in one style, so that the model meets more than one hand."""
    styles = list(STYLES.values())
    chosen = torch.randint(len(styles), (len(drawings),), generator=draw)
    chosen[torch.rand(len(drawings), generator=draw) >= RESTYLED_SHARE] = -1
    output = drawings.clone()
    for index, style in enumerate(styles):
        rows = torch.nonzero(chosen == index).flatten().to(drawings.device)
        if len(rows):
            output[rows] = style(drawings[rows]).clamp(-1, 1)
    return output


def half_way(drawings: Tensor, photos: Tensor) -> Tensor:
    """Return the half-way look of pictures (N, 3, H, W): the photo's light comes in, the drawing's lines get softer."""
    low, photo_low = blur(drawings, HALF_SIGMA), blur(photos, HALF_SIGMA)
    return (low + HALF_LIGHT * (photo_low - low) + HALF_DETAIL * (drawings - low)).clamp(-1, 1)


def blur(pictures: Tensor, sigma: float) -> Tensor:
    """Blur (N, C, H, W) by a Gaussian of `sigma` pixels."""
    radius = int(3 * sigma + 0.5)
    x = torch.arange(-radius, radius + 1, device=pictures.device, dtype=pictures.dtype)
    kernel = torch.exp(-((x / sigma) ** 2) / 2)
    kernel = (kernel / kernel.sum()).repeat(pictures.shape[1], 1, 1, 1)
    padded = F.pad(pictures, (radius,) * 4, mode="reflect")
    rows = F.conv2d(padded, kernel, groups=pictures.shape[1])
    return F.conv2d(rows, kernel.transpose(-1, -2), groups=pictures.shape[1])


def _grey(pictures: Tensor) -> Tensor:
    luma = torch.tensor(LUMA, device=pictures.device).view(3, 1, 1)
    return (pictures * luma).sum(1, keepdim=True)


def _flat(pictures: Tensor) -> Tensor:
    """Few tones: an edge-keeping median of each 5x5 window, then eight levels."""
    windows = F.unfold(F.pad(pictures, (2,) * 4, mode="reflect").flatten(0, 1)[:, None], 5)
    median = windows.median(1).values.view_as(pictures)
    return ((median + 1) * 4).round() / 4 - 1


STYLES: dict[str, Callable[[Tensor], Tensor]] = {
    "bold lines": lambda x: -F.max_pool2d(-x, 3, stride=1, padding=1),
    "thin lines": lambda x: F.max_pool2d(x, 3, stride=1, padding=1) * 0.6 + x * 0.4,
    "vivid": lambda x: _grey(x) + (x - _grey(x)) * 1.7,
    "pale": lambda x: (_grey(x) + (x - _grey(x)) * 0.5) * 0.75 + 0.2,
    "soft": lambda x: blur(x, 1.2),
    "flat": _flat,
    "contrast": lambda x: x * 1.3,
}


def uniform(draw: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=draw))
