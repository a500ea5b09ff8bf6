"""How near pictures are to others: the same measures for tensors in training and for files in `evaluate`."""

from __future__ import annotations

import torch
from torch import Tensor


def psnr(output: Tensor, target: Tensor, span: float) -> Tensor:
    """Return the PSNR in dB of each picture (…, 3, H, W), whose values lie `span` apart at most."""
    return 10 * torch.log10(span**2 / ((output - target) ** 2).mean((-1, -2, -3)))


def gradient_energy(pixels: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbours, across plus down, of each picture (…, 3, H, W)."""
    return pixels.diff(dim=-1).abs().mean((-1, -2, -3)) + pixels.diff(dim=-2).abs().mean((-1, -2, -3))
