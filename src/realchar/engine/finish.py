"""From decoded pixels to a picture, or to the reason why they are none."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from realchar.errors import ResultError

FLAT_RANGE = 2  # of 255: a picture whose channels all vary less than this shows nothing


@torch.inference_mode()
def picture_of(pixels: Tensor) -> Image.Image:
    """Return pixels (1, 3, H, W) in -1…1 as a picture, or raise ResultError where they are none."""
    if not torch.isfinite(pixels).all():
        raise ResultError("nan", "The result came out empty: numbers overflowed in the VAE; try another seed.")
    array = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)[0].permute(1, 2, 0).cpu().numpy()
    spread = (array.max(axis=(0, 1)).astype(int) - array.min(axis=(0, 1))).max()
    if spread < FLAT_RANGE:
        raise ResultError("flat", "The result has a single colour; lower CFG or the LoRA's strength and try again.")
    return Image.fromarray(array, "RGB")
