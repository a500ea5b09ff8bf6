"""What the pipeline asks of a model family. A second family is one more module with these names."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL.Image import Image
from torch import Tensor

from realchar.engine.blocks import Blocks
from realchar.engine.denoise import Branch, ImageShape, Wanted
from realchar.engine.lora import AdapterSet
from realchar.engine.tiling import Tile
from realchar.settings import Attention


@dataclass(frozen=True)
class Reference:
    """An encoded reference picture: its tokens (1, R, C), latents (1, C, h, w) normalised, pixels (1, 3, H, W)."""

    tokens: Tensor
    latents: Tensor
    pixels: Tensor
    shape: ImageShape


class ModelFamily(Protocol):
    """Components on one device, and the steps between picture, prompt and latents."""

    device: torch.device
    dtype: torch.dtype
    adapters: AdapterSet
    blocks: Blocks
    attention: Attention  # the backend in effect

    def attend(self, wanted: Attention, tokens: int) -> None:
        """Choose the attention backend for so many tokens, or raise InvalidInput where the one asked for can't run."""

    @property
    def num_blocks(self) -> int: ...
    def encode_prompts(self, picture: Image, prompts: Sequence[str]) -> Generator[None, None, list[Tensor]]: ...
    @property
    def halo(self) -> int: ...
    def encode_image(self, picture: Image, tile: Tile | None = None) -> Reference: ...
    def scheduler(self, steps: int, num_tokens: int) -> FlowMatchEulerDiscreteScheduler: ...
    def noise(self, shape: ImageShape, seed: int) -> Tensor: ...
    def velocities(
        self, branches: list[Branch], wanted: Wanted = ...
    ) -> Generator[None, None, list[Tensor | None]]: ...
    def unpack(self, tokens: Tensor, shape: ImageShape) -> Tensor: ...
    def decode(self, latents: Tensor, tile: Tile | None = None) -> Tensor: ...
    def rest(self) -> None:
        """Leave on the device only what stays there between runs."""
