"""How near pictures are to others: the same measures for tensors in training and for files in `evaluate`."""

from __future__ import annotations

import torch
from torch import Tensor


def psnr(output: Tensor, target: Tensor, span: float, weight: Tensor | None = None) -> Tensor:
    """Return the PSNR in dB of each picture (…, 3, H, W), whose values lie `span` apart at most.

    `weight` (…, 1, H, W) says how much each pixel counts; without any, a picture's is NaN.
    """
    error = ((output - target) ** 2).mean(-3, keepdim=True)
    mean = error.mean((-1, -2, -3)) if weight is None else (error * weight).sum((-1, -2, -3)) / weight.sum((-1, -2, -3))
    return 10 * torch.log10(span**2 / mean)


def gradient_energy(pixels: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbours, across plus down, of each picture (…, 3, H, W)."""
    return pixels.diff(dim=-1).abs().mean((-1, -2, -3)) + pixels.diff(dim=-2).abs().mean((-1, -2, -3))
