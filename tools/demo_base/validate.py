"""Watch a training: flow loss and sampled pictures of held-out pairs, beside those of training pairs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from realchar.engine import still_vae
from realchar.presets import PROMPTS
from tools.demo_base import architecture
from tools.demo_base import pairs as data
from tools.demo_base.latents import DRAWING, normalisation
from tools.demo_base.metrics import gradient_energy, psnr
from tools.demo_base.train_transformer import Trainer, pack, unpack

STEPS = 20


class Watched(NamedTuple):
    """Pairs to watch: latents (N, 3, C, h, w), float32, photos (N, 3, H, W) in -1…1, spots of the eyes (N, 1, H, W)."""

    name: str
    latents: Tensor
    photos: Tensor
    spots: Tensor


class Validation:
    """Samples without guidance, all pairs at once; the engine's own figures come from `evaluate`."""

    def __init__(self, vae: AutoencoderKLQwenImage, watched: list[Watched]) -> None:
        self.vae, self.watched = vae, watched
        self.mean, self.std = normalisation(vae)

    @torch.inference_mode()
    def report(self, trainer: Trainer, sheet: Path | None = None) -> float:
        """Print the flow loss, PSNR in dB (all, eyes) and the gradient energy over the photo's, for each set; returns the first PSNR.

        `sheet` is a file for some pictures of the first set: drawing, sample and photo in rows.
        """
        found = []
        with trainer.averaged(), still_vae.planar(), torch.compiler.set_stance("force_eager"):
            for watched in self.watched:
                loss = self._flow_loss(trainer, watched)
                pixels = self._sample(trainer, watched.latents[:, DRAWING])
                found.append(float(psnr(pixels, watched.photos, span=2).mean()))
                eyes = psnr(pixels, watched.photos, span=2, weight=watched.spots)
                ratio = gradient_energy(pixels) / gradient_energy(watched.photos)
                print(
                    f"  {watched.name}: flow {loss:.4f} PSNR {found[-1]:.2f} eyes {eyes.mean():.2f} gradient ratio {ratio.mean():.3f}",
                    flush=True,
                )
                if sheet and watched is self.watched[0]:
                    self._sheet(watched, pixels).save(sheet)
        return found[0]

    def _flow_loss(self, trainer: Trainer, watched: Watched) -> float:
        """Return the loss at fixed noise, over the whole schedule."""
        n = len(watched.latents)
        source, target = watched.latents[:, DRAWING], watched.latents[:, trainer.lesson.look]
        draw = torch.Generator().manual_seed(5)
        noise = torch.randn(target.shape, generator=draw).to(target.device)
        sigma = ((torch.arange(n) + 0.5) / n).to(target.device)
        s = sigma.view(-1, 1, 1, 1)
        velocity = trainer.predict((1 - s) * target + s * noise, source, sigma, self._embeds(trainer, n))
        return float(((velocity - pack(noise - target)) ** 2).mean())

    def _sample(self, trainer: Trainer, source: Tensor) -> Tensor:
        scheduler = FlowMatchEulerDiscreteScheduler(**architecture.SCHEDULER)
        even = torch.linspace(1, 1 / STEPS, STEPS).tolist()
        scheduler.set_timesteps(sigmas=even, mu=architecture.SCHEDULER["base_shift"])
        steps = scheduler.sigmas.tolist()
        latents = torch.randn(source.shape, generator=torch.Generator().manual_seed(6)).to(source.device)
        embeds = self._embeds(trainer, len(source))
        for sigma, after in itertools.pairwise(steps):
            level = torch.full((len(source),), sigma, device=source.device)
            velocity = unpack(trainer.predict(latents, source, level, embeds), source)
            latents = latents + (after - sigma) * velocity
        chunks = torch.split(latents * self.std + self.mean, 16)
        return torch.cat([still_vae.decode(self.vae, chunk) for chunk in chunks]).clamp(-1, 1)

    def _sheet(self, watched: Watched, pixels: Tensor) -> Image.Image:
        some = torch.arange(0, len(pixels), max(1, len(pixels) // 12))
        drawings = still_vae.decode(self.vae, watched.latents[some, DRAWING] * self.std + self.mean)
        rows = [torch.cat(list(row), -1) for row in (drawings, pixels[some], watched.photos[some])]
        whole = ((torch.cat(rows, -2).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return Image.fromarray(whole.permute(1, 2, 0).cpu().numpy(), "RGB")

    def _embeds(self, trainer: Trainer, count: int) -> Tensor:
        embeds = trainer.embeds[PROMPTS["base"]]
        return embeds[torch.arange(count, device=embeds.device) % len(embeds)]


def watch(name: str, pixels: Tensor, spots: Tensor, latents: Tensor) -> Watched:
    """Watch uint8 pairs (N, 2, 3, H, W), spots of their eyes (N, 1, H, W), with their clean latents (N, 3, C, h, w)."""
    return Watched(name, latents.float(), data.normalise(pixels[:, 1]), spots)
