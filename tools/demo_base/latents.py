"""The latents that the transformer learns from: each pair in two or three looks, augmented anew in every pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from realchar.engine import still_vae
from tools.demo_base import pairs as data

DRAWING, PHOTO, HALF_WAY = range(3)
CHUNK = 64  # pairs encoded at once


class Statistics(NamedTuple):
    """Mean and standard deviation (C,) of the latents, and the map from normalised latents to RGB (C + 1, 3)."""

    mean: Tensor
    std: Tensor
    preview: Tensor


@torch.inference_mode()
def statistics(pixels: Tensor, vae: AutoencoderKLQwenImage) -> Statistics:
    """Measure the latents of both looks, and fit the preview matrix on them by least squares."""
    means, colours = [], []
    for chunk in torch.split(pixels, CHUNK):
        clean = data.normalise(chunk).flatten(0, 1)
        means.append(_encode(vae, clean).flatten(2).movedim(1, -1).flatten(0, 1))
        small = torch.nn.functional.avg_pool2d(clean, vae.spatial_compression_ratio)
        colours.append(small.flatten(2).movedim(1, -1).flatten(0, 1))
    latents, rgb = torch.cat(means), torch.cat(colours)
    mean, std = latents.mean(0), latents.std(0)
    whitened = (latents - mean) / std
    columns = torch.cat([whitened, torch.ones_like(whitened[:, :1])], 1).double()
    preview = torch.linalg.solve(columns.T @ columns, columns.T @ rgb.double()).float()
    return Statistics(mean, std, preview)


@torch.inference_mode()
def latent_cache(pixels: Tensor, vae: AutoencoderKLQwenImage, repeats: int, half_way: bool = True) -> Tensor:
    """Return normalised latents (repeats, N, K, C, h, w), bfloat16, of uint8 pairs (N, 2, 3, H, W), in K looks."""
    draw = torch.Generator().manual_seed(2)
    mean, std = normalisation(vae)
    passes = []
    for repeat in range(repeats):
        for chunk in torch.split(pixels, CHUNK):
            looks = looks_of(data.normalise(chunk), draw if repeat else None, half_way)
            found = (_encode(vae, looks.flatten(0, 1)) - mean) / std
            passes.append(found.bfloat16().view(*looks.shape[:2], *found.shape[1:]))
    latents = torch.cat(passes)
    return latents.view(repeats, len(pixels), *latents.shape[1:])


def normalisation(vae: AutoencoderKLQwenImage) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (C, 1, 1) of the latents, as stored with the VAE."""
    keys = ("latents_mean", "latents_std")
    mean, std = (torch.tensor(vae.config[key], device=vae.device).view(-1, 1, 1) for key in keys)
    return mean, std


def looks_of(pairs: Tensor, draw: torch.Generator | None, half_way: bool = True) -> Tensor:
    """Return floats (N, 2 or 3, 3, H, W): drawing, photo, the look half-way; augmented where `draw` is given."""
    if draw is not None:
        pairs = data.augment(pairs, draw)
    drawing, photo = pairs.unbind(1)
    if draw is not None:
        drawing = data.restyle(drawing, draw)
    looks = [drawing, photo, data.half_way(drawing, photo)] if half_way else [drawing, photo]
    return torch.stack(looks, 1)


def _encode(vae: AutoencoderKLQwenImage, pixels: Tensor) -> Tensor:
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        return still_vae.encode(vae, pixels)[0].float()
