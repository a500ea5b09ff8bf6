"""What is given up, and in which order, where memory is short: the one place that answers an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import torch

from realchar.engine import tiling
from realchar.engine.blocks import Blocks, StreamedBlocks
from realchar.engine.devices import release
from realchar.engine.tiling import Tile
from realchar.schema import Degraded, Event

T = TypeVar("T")


def with_smaller_tiles(
    run: Callable[[Tile | None], T], size: Tile, tile: Tile | None, device: torch.device
) -> Generator[Degraded, None, T]:
    """Return `run(tile)` for a picture of `size` latents, with smaller tiles each time that memory is too short.

    Yields what was given up. Raises torch.OutOfMemoryError where the smallest tile is too large.
    """
    while True:
        try:
            with torch.inference_mode():  # left at each yield: it is per thread
                return run(tile)
        except torch.OutOfMemoryError:
            tile = tiling.smaller(size, tile)
            if tile is None:
                raise
        release(device)  # outside the `except`, which kept the tensors alive
        tiles = tiling.count(size, tile)
        yield Degraded("vae_tiles", {"tiles": tiles}, f"the picture is now done in {tiles} tiles")


def with_fewer_blocks(
    attempt: Callable[[], Generator[Event, None, T]], blocks: Blocks, device: torch.device
) -> Generator[Event, None, T]:
    """Return what `attempt` does, done again with half as many resident blocks each time that memory is too short.

    Yields its events and what was given up. Raises torch.OutOfMemoryError where none is left to give up.
    """
    while True:
        try:
            return (yield from attempt())
        except torch.OutOfMemoryError:
            if not isinstance(blocks, StreamedBlocks) or not blocks.num_resident:
                raise
        release(device)  # outside the `except`, which kept the tensors alive
        yield from keep_or_fewer(blocks, blocks.num_resident // 2, device, given_up=True)


def keep_or_fewer(
    blocks: StreamedBlocks, wanted: int, device: torch.device, *, given_up: bool = False
) -> Generator[Degraded, None, None]:
    """Let `wanted` blocks stay on the device, or fewer where memory is too short for them; yields what was given up."""
    while True:
        try:
            blocks.keep(wanted)
            break
        except torch.OutOfMemoryError:
            if not wanted:
                raise
        release(device)
        wanted, given_up = wanted // 2, True
    if given_up:
        what = f"{wanted} transformer blocks stay in memory, the others are streamed"
        yield Degraded("resident_blocks", {"resident": wanted}, what)
