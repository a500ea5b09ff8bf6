"""The VAE on one picture: whole, in exact tiles, and as diffusers does it, with and without its own tiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from realchar.bench.live_memory import LiveMemory
from realchar.engine import still_vae, tiling
from realchar.engine.tiling import Tile
from realchar.machine import GB


@dataclass(frozen=True)
class VaeRow:
    """One way for one direction. gb: memory above the weights; max_difference: to the whole, whose values lie in -1…1."""

    direction: str
    way: str
    tiles: int | None  # None: as diffusers cuts
    s: float
    gb: float
    max_difference: float


def measured(run: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float, float]:
    """Return the result, seconds and peak GB of the second of two runs.

    On a card memory is the allocator's peak, on the CPU the tensors that live at once, counted in the first run.
    """
    if device.type == "cpu":
        with LiveMemory() as memory:
            run()
        began = time.perf_counter()
        return run(), time.perf_counter() - began, memory.peak / GB
    run()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before, began = torch.cuda.memory_allocated(device), time.perf_counter()
    output = run()
    torch.cuda.synchronize(device)
    return output, time.perf_counter() - began, (torch.cuda.max_memory_allocated(device) - before) / GB


@torch.no_grad()
def measure_vae(
    folder: Path, size: tuple[int, int], tiles: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Iterator[VaeRow]:
    """Yield the rows of decoding, then of encoding, a picture of noise of `size` (width, height), tiles in pixels."""
    vae = AutoencoderKLQwenImage.from_pretrained(folder, torch_dtype=dtype, local_files_only=True).to(device).eval()
    ratio = vae.spatial_compression_ratio
    draw = torch.Generator().manual_seed(0)
    pixels = (torch.rand(1, 3, size[1], size[0], generator=draw) * 2 - 1).to(device, dtype)
    with still_vae.planar():
        latents = still_vae.encode(vae, pixels)[0]
    inner = (size[1] // ratio, size[0] // ratio)

    def decode(tile: Tile | None) -> Tensor:
        return still_vae.decode(vae, latents, tile).clamp(-1, 1)

    def encode(tile: Tile | None) -> Tensor:
        return still_vae.encode(vae, pixels, tile)[0]

    def stock_decode() -> Tensor:
        output: Tensor = vae.decode(latents.unsqueeze(2)).sample[:, :, 0]
        return output

    def stock_encode() -> Tensor:
        output: Tensor = vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0]
        return output

    for direction, ours, stock in (("decode", decode, stock_decode), ("encode", encode, stock_encode)):
        ways = _ways(vae, ours, stock, tiles, inner, ratio)
        yield from _compared(direction, ways, device)


Way = tuple[str, int | None, Callable[[], Tensor], AbstractContextManager[Any]]


def _ways(
    vae: Any,
    ours: Callable[[Tile | None], Tensor],
    stock: Callable[[], Tensor],
    tiles: tuple[int, ...],
    size: Tile,
    ratio: int,
) -> Iterator[Way]:
    """Yield name, number of tiles, computation and what it is to run in; the whole comes first."""
    for tile in (None, *((side // ratio, side // ratio) for side in tiles)):
        name = "whole" if tile is None else f"{tile[0] * ratio} pixels"
        yield name, tiling.count(size, tile), partial(ours, tile), still_vae.planar()
    yield "diffusers", 1, stock, nullcontext()
    vae.enable_tiling()
    yield "diffusers enable_tiling()", None, stock, nullcontext()
    vae.disable_tiling()


def _compared(direction: str, ways: Iterator[Way], device: torch.device) -> Iterator[VaeRow]:
    whole: Tensor | None = None
    for name, tiles, run, within in ways:
        with within:
            output, seconds, peak = measured(run, device)
        whole = output if whole is None else whole
        yield VaeRow(direction, name, tiles, seconds, peak, float((output.float() - whole.float()).abs().max()))
