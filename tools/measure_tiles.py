"""Measures what tiles cost and save: the VAE of a base decodes and encodes one picture whole and in tiles.

    python -m tools.measure_tiles --base weights/demo --size 1024

Prints, for each tile, the seconds, the memory above the weights and the largest difference to the whole picture, whose
values lie in -1…1. On a graphics card memory is the allocator's peak, on the CPU the tensors that live at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from realchar.engine import still_vae, tiling
from realchar.engine.tiling import Tile
from tools.live_memory import LiveMemory


def measured(run: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float, float]:
    """Return the result, seconds and peak GB of the second of two runs (the CPU's memory: of the first)."""
    if device.type == "cpu":
        with LiveMemory() as memory:
            run()
        began = time.perf_counter()
        return run(), time.perf_counter() - began, memory.peak / 1e9
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, began = torch.cuda.memory_allocated(), time.perf_counter()
    output = run()
    torch.cuda.synchronize()
    return output, time.perf_counter() - began, (torch.cuda.max_memory_allocated() - before) / 1e9


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--size", type=int, default=1024, help="pixels of a side")
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 256, 128], help="pixels of their sides")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    vae = AutoencoderKLQwenImage.from_pretrained(options.base / "vae", torch_dtype=dtype).to(device).eval()
    side, ratio = options.size, vae.spatial_compression_ratio
    draw = torch.Generator().manual_seed(0)
    pixels = (torch.rand(1, 3, side, side, generator=draw) * 2 - 1).to(device, dtype)
    with still_vae.planar():
        latents = still_vae.encode(vae, pixels)[0]
        table("decode", lambda tile: still_vae.decode(vae, latents, tile), options, ratio, device)
        table("encode", lambda tile: still_vae.encode(vae, pixels, tile)[0], options, ratio, device)


def table(
    name: str, run: Callable[[Tile | None], Tensor], options: argparse.Namespace, ratio: int, device: torch.device
) -> None:
    """Print the rows of one direction, the whole picture first."""
    side = options.size
    print(f"| {name} {side}x{side} | tiles | s | GB | largest difference |\n| --- | --- | --- | --- | --- |")
    whole: Tensor | None = None
    for tile in (None, *((pixels // ratio, pixels // ratio) for pixels in options.tiles)):
        output, seconds, peak = measured(partial(run, tile), device)
        whole = output if whole is None else whole
        count = tiling.count((side // ratio, side // ratio), tile)
        label = "whole" if tile is None else f"{tile[0] * ratio} pixels"
        difference = float((output - whole).abs().max())
        print(f"| {label} | {count} | {seconds:.2f} | {peak:.2f} | {difference:.1g} |", flush=True)


if __name__ == "__main__":
    main()
