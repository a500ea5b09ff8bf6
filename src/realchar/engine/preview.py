"""Step previews: a linear map from latent channels to RGB.

A base may bring its own, fitted over many pictures. Else it is fitted on the job itself: its reference latents and the
picture they came from are at hand, so 17 x 3 numbers by least squares suit any VAE and cost less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

RIDGE = 1e-3  # keeps pictures of one colour solvable


def stored_preview(rows: Sequence[Sequence[float]], latents: Tensor) -> Tensor | None:
    """Return a base's own matrix (C + 1, 3) on the device of `latents` (1, C, h, w); None if it has none that fits."""
    matrix = torch.tensor(rows, dtype=torch.float32, device=latents.device)
    return matrix if matrix.shape == (latents.shape[1] + 1, 3) else None


def fit_preview(latents: Tensor, picture: Tensor) -> Tensor:
    """Fit latents (1, C, h, w) to `picture` (1, 3, H, W) in -1…1; returns the matrix (C + 1, 3), float32."""
    small = F.adaptive_avg_pool2d(picture.float(), (latents.shape[-2], latents.shape[-1]))
    x = _with_ones(latents.float())
    y = small.flatten(2)[0].T
    gram = x.T @ x / len(x) + RIDGE * torch.eye(x.shape[1], device=x.device)
    matrix: Tensor = torch.linalg.solve(gram, x.T @ y / len(x))
    return matrix


def render_preview(latents: Tensor, matrix: Tensor) -> Image.Image:
    """Return latents (1, C, h, w) as an RGB picture of w x h pixels."""
    rgb = (_with_ones(latents.float()) @ matrix).clamp(-1, 1)
    pixels = ((rgb + 1) * 127.5).round().to(torch.uint8).reshape(*latents.shape[-2:], 3)
    return Image.fromarray(pixels.cpu().numpy(), "RGB")


def _with_ones(latents: Tensor) -> Tensor:
    columns = latents.flatten(2)[0].T
    return torch.cat([columns, torch.ones_like(columns[:, :1])], dim=1)
