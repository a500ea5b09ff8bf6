"""What is given up, and in which order, where memory is short: the one place that answers an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import torch

from realchar.engine import tiling
from realchar.engine.devices import release
from realchar.engine.tiling import Tile
from realchar.schema import Degraded

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
