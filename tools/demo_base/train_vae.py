"""Training of the miniature VAE: reconstruct both looks. Still pictures only, so all of it runs as 2-D convolutions."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from torch import Tensor, nn

from realchar.engine.still_vae import decode, encode
from tools.demo_base import pairs as data
from tools.demo_base.graphs import StepGraphs
from tools.demo_base.metrics import psnr

BATCH = 8  # pairs, so 2 * BATCH pictures a step
LEARNING_RATE = 1e-3
WARMUP = 200  # steps
EMA = 0.998
KL_WEIGHT = 1e-5
# Of the steps, the latents are halved and must decode to the halved picture. This keeps the latents smooth in scale,
# which makes them easier to predict (EQ-VAE, arXiv 2502.09509).
HALVED_SHARE = 0.2


def picture_loss(output: Tensor, target: Tensor) -> Tensor:
    """L1 and squares of pixels, L1 of their gradients, and L1 at a half, a quarter and an eighth of the size."""
    loss = F.l1_loss(output, target) + 5 * F.mse_loss(output, target)
    for axis in (-1, -2):
        loss = loss + F.l1_loss(output.diff(dim=axis), target.diff(dim=axis))
    for factor in (2, 4, 8):
        loss = loss + 0.5 * F.l1_loss(F.avg_pool2d(output, factor), F.avg_pool2d(target, factor))
    return loss


class VaeTrainer:
    """The state of one training: the model, its running average, and the picture buffer that the steps read."""

    def __init__(self, vae: AutoencoderKLQwenImage, pictures: Tensor) -> None:
        self.vae, self.pictures = vae, pictures
        self.ema = deepcopy(vae).eval().requires_grad_(False)
        cuda = pictures.is_cuda
        self.device_type = pictures.device.type
        self.rate = torch.tensor(0.0, device=pictures.device)
        self.optimizer = torch.optim.AdamW(
            vae.parameters(), lr=self.rate, betas=(0.9, 0.99), weight_decay=1e-4, fused=cuda, capturable=cuda
        )
        self.graphs = StepGraphs(pictures.device)

    def update(self, halved: bool) -> Tensor:
        """Take one optimizer step on the buffer; everything here can be recorded."""
        target = self.pictures
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.device_type == "cuda"):
            mean, log_variance = encode(self.vae, target)
            latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            if halved:
                latents, target = F.avg_pool2d(latents, 2), F.avg_pool2d(target, 2)
            output = decode(self.vae, latents)
        divergence = (mean.float() ** 2 + log_variance.float().exp() - 1 - log_variance.float()).mean()
        loss = picture_loss(output.float(), target) + KL_WEIGHT * divergence
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.vae.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def step(self, step: int, left: float, halved: bool) -> Tensor:
        """Take one step; `left` is the share of the time that is left."""
        self.rate.fill_(LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * (0.01 + 0.99 * left))
        loss = self.graphs.run(halved, lambda: self.update(halved))
        decay = min(EMA, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.parameters()), list(self.vae.parameters()), 1 - decay)
        return loss


def train(
    pixels: Tensor, vae: AutoencoderKLQwenImage, seconds: float, save: Callable[[AutoencoderKLQwenImage], None]
) -> None:
    """Train for `seconds` on uint8 pairs (N, 2, 3, H, W); saves the averaged model every two minutes and at the end."""
    draw = torch.Generator().manual_seed(1)
    buffer = torch.empty(2 * BATCH, 3, *pixels.shape[-2:], device=pixels.device)
    trainer = VaeTrainer(vae, buffer)
    began, saved, step = time.monotonic(), 0.0, 0
    while (past := time.monotonic() - began) < seconds:
        rows = torch.randint(len(pixels), (BATCH,), generator=draw)
        buffer.copy_(data.augment(data.normalise(pixels[rows.to(pixels.device)]), draw).flatten(0, 1))
        loss = trainer.step(step, 1 - past / seconds, halved=data.uniform(draw) < HALVED_SHARE)
        step += 1
        if step % 1000 == 0 or step in (1, 2, 10, 50, 100):
            print(f"vae step {step} {past:.0f} s loss {loss.item():.4f}", flush=True)
        if past - saved > 120:
            saved = past
            save(trainer.ema)
    print(f"vae steps {step}", flush=True)
    save(trainer.ema)


@torch.inference_mode()
def reconstruction_psnr(pixels: Tensor, vae: AutoencoderKLQwenImage) -> list[float]:
    """Return the mean PSNR in dB of drawings and of photos, over uint8 pairs (N, 2, 3, H, W)."""
    found = []
    for chunk in torch.split(pixels, 8):
        clean = data.normalise(chunk)
        output = decode(vae, encode(vae, clean.flatten(0, 1))[0]).clamp(-1, 1).view_as(clean)
        found.append(psnr(output, clean, span=2))
    means: list[float] = torch.cat(found).mean(0).tolist()
    return means
