"""The latents that the transformer learns from: each pair in two or three looks, augmented anew in every pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
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
        small = F.avg_pool2d(clean, vae.spatial_compression_ratio)
        colours.append(small.flatten(2).movedim(1, -1).flatten(0, 1))
    latents, rgb = torch.cat(means), torch.cat(colours)
    mean, std = latents.mean(0), latents.std(0)
    whitened = (latents - mean) / std
    columns = torch.cat([whitened, torch.ones_like(whitened[:, :1])], 1).double()
    preview = torch.linalg.solve(columns.T @ columns, columns.T @ rgb.double()).float()
    return Statistics(mean, std, preview)


class Cache(NamedTuple):
    """Normalised latents (R, N, K, C, h, w) of N pairs in K looks, R times, and where their eyes are (R, N, 1, h, w)."""

    latents: Tensor
    eyes: Tensor

    def to(self, device: torch.device) -> Cache:
        return Cache(self.latents.to(device), self.eyes.to(device))


@torch.inference_mode()
def latent_cache(
    pixels: Tensor, spots: Tensor, vae: AutoencoderKLQwenImage, repeats: int, half_way: bool = True
) -> Cache:
    """Encode uint8 pairs (N, 2, 3, H, W) with the spots of their eyes (N, 1, H, W) `repeats` times; bfloat16."""
    draw = torch.Generator().manual_seed(2)
    mean, std = normalisation(vae)
    passes, places = [], []
    for repeat in range(repeats):
        for chunk, eyes in zip(torch.split(pixels, CHUNK), torch.split(spots, CHUNK), strict=True):
            looks, eyes = looks_of(data.normalise(chunk), eyes, draw if repeat else None, half_way)
            found = (_encode(vae, looks.flatten(0, 1)) - mean) / std
            passes.append(found.bfloat16().view(*looks.shape[:2], *found.shape[1:]))
            places.append(F.avg_pool2d(eyes, vae.spatial_compression_ratio).bfloat16())
    size = (repeats, len(pixels))
    latents, eyes = torch.cat(passes), torch.cat(places)
    return Cache(latents.view(*size, *latents.shape[1:]), eyes.view(*size, *eyes.shape[1:]))


def normalisation(vae: AutoencoderKLQwenImage) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (C, 1, 1) of the latents, as stored with the VAE."""
    keys = ("latents_mean", "latents_std")
    mean, std = (torch.tensor(vae.config[key], device=vae.device).view(-1, 1, 1) for key in keys)
    return mean, std


def looks_of(
    pairs: Tensor, spots: Tensor, draw: torch.Generator | None, half_way: bool = True
) -> tuple[Tensor, Tensor]:
    """Return floats (N, 2 or 3, 3, H, W), drawing, photo, the look half-way, and spots (N, 1, H, W) as framed.

    Augmented where `draw` is given.
    """
    if draw is not None:
        maps = data.frames(len(pairs), draw)
        pairs = data.augment(pairs, draw, maps)
        spots = data.reframe(spots[:, None], maps)[:, 0].clamp(0, 1)
    drawing, photo = pairs.unbind(1)
    if draw is not None:
        drawing = data.restyle(drawing, draw)
    looks = [drawing, photo, data.half_way(drawing, photo)] if half_way else [drawing, photo]
    return torch.stack(looks, 1), spots


def _encode(vae: AutoencoderKLQwenImage, pixels: Tensor) -> Tensor:
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        return still_vae.encode(vae, pixels)[0].float()
