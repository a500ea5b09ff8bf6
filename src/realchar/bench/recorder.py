"""Keeps what one step was given and gave, and the final latents, for comparison with other rows."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realchar.engine.denoise import Branch, Wanted
from realchar.engine.families.base import ModelFamily
from realchar.engine.tiling import Tile

STEP = "step.pt"  # of the first engine row that came through


class Recorder:
    """Stands between an engine and two calls of its family, which it passes on as they are."""

    def __init__(self, family: ModelFamily) -> None:
        self.latents: Tensor | None = None
        self.step: dict[str, Any] = {}
        self._velocities, self._decode = family.velocities, family.decode
        family.velocities = self.velocities  # type: ignore[method-assign,assignment]
        family.decode = self.decode  # type: ignore[method-assign]

    def velocities(self, branches: list[Branch], wanted: Wanted) -> Generator[None, None, list[Tensor | None]]:
        output = yield from self._velocities(branches, wanted)
        if not self.step:
            fields = ("latents", "reference", "prompt_embeds", "timestep")
            inputs = [{name: getattr(branch, name).cpu() for name in fields} for branch in branches]
            shapes = [[list(shape) for shape in branch.shapes] for branch in branches]
            self.step = {
                "inputs": inputs,
                "shapes": shapes,
                "velocities": [velocity.cpu() for velocity in output if velocity is not None],
            }
        return output

    def decode(self, latents: Tensor, tile: Tile | None = None) -> Tensor:
        self.latents = latents
        return self._decode(latents, tile)

    def save(self, work: Path, slug: str) -> None:
        """Write the latents of the last run, and the step unless another row has: all rows get the same inputs."""
        assert self.latents is not None
        np.save(work / f"{slug}.latents.npy", self.latents.float().cpu().numpy())
        if not (work / STEP).exists():
            torch.save(self.step, work / STEP)
