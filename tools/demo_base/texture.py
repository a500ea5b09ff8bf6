"""Teach the VAE's decoder the strength of texture: pores, strands and grain that no latent can hold are still there.

A decoder that minimises its error gives the mean of what the latents leave open, and so two thirds of a photo's detail.
Here its last block learns to give blocks of 8 pixels as much detail as the picture has, beside staying near to it. The
encoder and the rest stay as they are, so transformers and LoRA versions trained on the latents stay valid.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from torch import Tensor, nn

from realchar.engine import still_vae
from tools.demo_base import pairs as data
from tools.demo_base.metrics import gradient_energy, psnr

PAIRS = 80  # of the training pairs; one block learns no picture by heart
TEST_STRIDE = 8  # of the held-out pairs, for the figures printed before and after
BATCH = 2  # whole pictures: the edges of crops would be learnt as edges of pictures
LEARNING_RATE, WARMUP = 4e-4, 20
TEXTURE_WEIGHT = 3.0
BLOCK = 8  # pixels, over which detail is compared
LATENT_NOISE = 0.02  # what sampled latents have and encoded ones have not


def last_block(vae: AutoencoderKLQwenImage) -> nn.Sequential:
    """Return the decoder's end, from the features of the last block on."""
    decoder = vae.decoder
    return nn.Sequential(decoder.up_blocks[-1], decoder.norm_out, decoder.nonlinearity, decoder.conv_out)


@torch.no_grad()
def features(vae: AutoencoderKLQwenImage, pictures: Tensor) -> Tensor:
    """Return what the last block is given (N, C, H, W), for pictures (N, 3, H, W) in -1…1."""
    found: list[Tensor] = []
    hook = vae.decoder.up_blocks[-1].register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0]))
    try:
        mean = still_vae.encode(vae, pictures)[0]
        still_vae.decode(vae, mean + LATENT_NOISE * mean.std() * torch.randn_like(mean))
    finally:
        hook.remove()
    return found[0].squeeze(2)


def detail(pictures: Tensor) -> list[Tensor]:
    """Return the mean step between neighbours in each block, across and down, at the full and at half the size."""
    scales = (pictures, F.avg_pool2d(pictures, 2))
    return [F.avg_pool2d(scaled.diff(dim=axis).abs(), BLOCK) for scaled in scales for axis in (-1, -2)]


def texture_loss(output: Tensor, target: Tensor) -> Tensor:
    near = F.l1_loss(output, target) + 5 * F.mse_loss(output, target)
    strength = [F.l1_loss(ours, theirs) for ours, theirs in zip(detail(output), detail(target), strict=True)]
    return near + TEXTURE_WEIGHT * torch.stack(strength).sum()


def train(pixels: Tensor, vae: AutoencoderKLQwenImage, seconds: float) -> None:
    """Train for `seconds` on uint8 pairs (N, 2, 3, H, W): their photos, and the drawings of every second one."""
    pictures = torch.cat([data.normalise(pixels[:, 1]), data.normalise(pixels[::2, 0])])
    draw = torch.Generator().manual_seed(4)
    with still_vae.planar():
        given = torch.cat([features(vae, chunk) for chunk in torch.split(pictures, 8)])
        end = last_block(vae).requires_grad_(True)
        optimizer = torch.optim.Adam(end.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
        began, step = time.monotonic(), 0
        while (past := time.monotonic() - began) < seconds:
            rows = torch.randint(len(pictures), (BATCH,), generator=draw).to(pictures.device)
            rate = LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * (0.02 + 0.98 * (1 - past / seconds))
            optimizer.param_groups[0]["lr"] = rate
            loss = texture_loss(end(given[rows].unsqueeze(2)).squeeze(2), pictures[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"texture step {step} {past:.0f} s loss {float(loss.detach()):.4f}", flush=True)
    vae.requires_grad_(False)


@torch.inference_mode()
def figures(pixels: Tensor, vae: AutoencoderKLQwenImage) -> str:
    """Return how near the VAE gives back uint8 pairs (N, 2, 3, H, W), and how much of their detail it keeps."""
    found = []
    for name, look in zip(("drawings", "photos"), data.normalise(pixels).unbind(1), strict=True):
        with still_vae.planar():
            output = still_vae.decode(vae, still_vae.encode(vae, look)[0]).clamp(-1, 1)
        kept = (gradient_energy(output) / gradient_energy(look)).mean()
        found.append(f"{name} {psnr(output, look, span=2).mean():.2f} dB, {kept:.3f} of the detail")
    return "; ".join(found)
