"""Training of the miniature VAE: reconstruct both looks. Still pictures only, so all of it runs as 2-D convolutions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders import autoencoder_kl_qwenimage as stock
from torch import Tensor, nn

from tools.demo_base import pairs as data

BATCH = 8  # pairs, so 2 * BATCH pictures a step
LEARNING_RATE = 1e-3
WARMUP = 200  # steps
KL_WEIGHT = 1e-5
LATENT_REPEATS = 12  # passes over the pairs in the latent cache, all but the first augmented


def planar_conv(self: Any, x: Tensor, _cache: Tensor | None = None) -> Tensor:
    """For a single frame the causal padding leaves only the kernel's last tap in time."""
    rows, columns = self._padding[2], self._padding[0]
    weight = self.weight[:, :, -1].to(memory_format=torch.channels_last)
    stride = (self.stride[1], self.stride[2])
    return F.conv2d(x.squeeze(2), weight, self.bias, stride=stride, padding=(rows, columns)).unsqueeze(2)


def fused_norm(self: Any, x: Tensor) -> Tensor:
    """As the class's normalisation over channels, by the fused kernel."""
    last = x.movedim(1, -1)
    gamma = self.gamma.flatten().to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):  # the kernel computes in float32 by itself
        return F.rms_norm(last, (last.shape[-1],), gamma, 1e-12).movedim(-1, 1)


@contextmanager
def planar() -> Iterator[None]:
    """Run the stock classes on single frames without their third dimension: same numbers, a third of the work."""
    conv, norm = stock.QwenImageCausalConv3d, stock.QwenImageRMS_norm
    before = conv.forward, norm.forward
    conv.forward, norm.forward = planar_conv, fused_norm
    try:
        yield
    finally:
        conv.forward, norm.forward = before


def encode(vae: AutoencoderKLQwenImage, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log variance (N, C, h, w) of pixels (N, 3, H, W)."""
    pixels = pixels.to(memory_format=torch.channels_last)
    mean, log_variance = vae.quant_conv(vae.encoder(pixels.unsqueeze(2))).squeeze(2).chunk(2, 1)
    return mean, log_variance.clamp(-20, 5)


def decode(vae: AutoencoderKLQwenImage, latents: Tensor) -> Tensor:
    pixels: Tensor = vae.decoder(vae.post_quant_conv(latents.unsqueeze(2))).squeeze(2)
    return pixels


def picture_loss(output: Tensor, target: Tensor) -> Tensor:
    """L1 of pixels, of their gradients, and of both pictures at a half, a quarter and an eighth of the size."""
    loss = F.l1_loss(output, target)
    for axis in (-1, -2):
        loss = loss + F.l1_loss(output.diff(dim=axis), target.diff(dim=axis))
    for factor in (2, 4, 8):
        loss = loss + 0.5 * F.l1_loss(F.avg_pool2d(output, factor), F.avg_pool2d(target, factor))
    return loss


def train(pixels: Tensor, vae: AutoencoderKLQwenImage, seconds: float, save: Callable[[], None]) -> None:
    """Train for `seconds` on uint8 pairs (N, 2, 3, H, W); calls `save` every two minutes."""
    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(
        vae.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-4, fused=pixels.is_cuda
    )
    began, saved, step = time.monotonic(), 0.0, 0
    while (past := time.monotonic() - began) < seconds:
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * (0.02 + 0.98 * (1 - past / seconds))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = torch.randint(len(pixels), (BATCH,), generator=draw)
        target = data.augment(data.normalise(pixels[rows.to(pixels.device)]), draw).flatten(0, 1)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            mean, log_variance = encode(vae, target)
            output = decode(vae, mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        divergence = (mean.float() ** 2 + log_variance.float().exp() - 1 - log_variance.float()).mean()
        loss = picture_loss(output.float(), target) + KL_WEIGHT * divergence
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 250 == 0 or step in (1, 2, 10, 50, 100):
            print(f"vae step {step} {past:.0f} s loss {loss.item():.4f}", flush=True)
        if past - saved > 120:
            saved = past
            save()
    print(f"vae steps {step}", flush=True)


@torch.inference_mode()
def latent_cache(pixels: Tensor, vae: AutoencoderKLQwenImage, repeats: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised latents (repeats, N, 2, C, h, w) in bfloat16, and the mean and std (C,) they had."""
    draw = torch.Generator().manual_seed(2)
    passes = []
    for repeat in range(repeats):
        for chunk in torch.split(pixels, 64):
            clean = data.normalise(chunk)
            clean = clean if repeat == 0 else data.augment(clean, draw)
            with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
                mean = encode(vae, clean.flatten(0, 1))[0]
            passes.append(mean.float().view(*chunk.shape[:2], *mean.shape[1:]))
    latents = torch.cat(passes)
    mean, std = latents.mean((0, 1, 3, 4)), latents.std((0, 1, 3, 4))
    latents = (latents - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    return latents.bfloat16().view(repeats, len(pixels), *latents.shape[1:]), mean, std
