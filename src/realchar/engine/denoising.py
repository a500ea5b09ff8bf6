"""One run's denoising: its schedule and latents, and what each step asks and makes of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from realchar.engine.denoise import Branch, guided
from realchar.engine.families.base import ModelFamily, Reference
from realchar.engine.preview import fit_preview, render_preview, stored_preview
from realchar.engine.together import Ask
from realchar.errors import ResultError
from realchar.schema import EditRequest


@dataclass
class Denoising:
    """What a run holds on the device between its steps."""

    family: ModelFamily
    request: EditRequest
    prompt_embeds: list[Tensor]
    reference: Reference
    scheduler: FlowMatchEulerDiscreteScheduler
    latents: Tensor
    preview_map: Tensor
    velocity: Tensor | None = None
    table: object = None  # keeps what was computed for the schedule

    @classmethod
    @torch.inference_mode()
    def start(
        cls,
        family: ModelFamily,
        request: EditRequest,
        embeds: list[Tensor],
        reference: Reference,
        preview: Sequence[Sequence[float]],
    ) -> Denoising:
        """Draw the noise and set the schedule; `preview` is the base's own map to colours, where it has one."""
        latents = family.noise(reference.shape, request.seed)
        scheduler = family.scheduler(request.steps, latents.shape[1])
        matrix = stored_preview(preview, reference.latents)
        if matrix is None:
            matrix = fit_preview(reference.latents, reference.pixels)
        return cls(family, request, embeds, reference, scheduler, latents, matrix)

    @property
    def timesteps(self) -> Tensor:
        """Return the schedule as the transformer takes it: (steps,), 1 to 0."""
        timesteps: Tensor = self.scheduler.timesteps
        return timesteps.to(self.latents.dtype) / 1000

    @torch.inference_mode()
    def ask(self, i: int) -> Ask:
        """Return what step `i` needs."""
        timestep, shape = self.timesteps[i : i + 1], self.reference.shape
        return Ask(
            [
                Branch(self.latents, self.reference.tokens, embeds, timestep, (shape, shape))
                for embeds in self.prompt_embeds
            ]
        )

    @torch.inference_mode()
    def take(self, i: int, velocities: list[Tensor]) -> None:
        """Take Euler step `i` along the velocities of its branches."""
        velocity = velocities[0]
        if len(velocities) == 2:
            velocity = guided(velocities[0], velocities[1], self.request.cfg)
        self.velocity = velocity
        timestep = self.scheduler.timesteps[i]
        self.latents = self.scheduler.step(velocity, timestep, self.latents, return_dict=False)[0]

    @torch.inference_mode()
    def preview(self, i: int) -> Image.Image:
        """Show where the run is heading: the picture that the last velocity predicts."""
        assert self.velocity is not None
        clean = self.latents - self.scheduler.sigmas[i + 1] * self.velocity
        return render_preview(self.family.unpack(clean, self.reference.shape), self.preview_map)

    def result(self) -> Tensor:
        """Return the final latents (1, C, h, w). Raises ResultError for numbers that are none."""
        if not torch.isfinite(self.latents).all():
            raise ResultError(
                "nan",
                "The result came out empty: numbers overflowed while denoising; choose another LoRA version or CFG.",
            )
        self.velocity = None  # no longer needed, and decoding is where memory is shortest
        return self.family.unpack(self.latents, self.reference.shape)
