"""Exact tiles: a network of local operations runs over parts of a picture, and gives what it gives on the whole.

Outside of the attention in its middle, every output pixel of the VAE depends on a finite neighbourhood: convolutions of
3x3, and norms over the channels of one pixel. So a tile that is read with that neighbourhood around it, its halo, and
then cropped, equals the same part of the whole up to rounding. No overlap is blended, and there are no seams.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # front ends plan with the numbers below, without torch
    from torch import Tensor

Tile = tuple[int, int]  # rows and columns of latents, of a tile without its halo or of the whole
SMALLEST = 8  # latents of a tile's side


class Reach(NamedTuple):
    """How many rows and columns of its input an output depends on, before (above, left) and after it (below, right)."""

    before: int
    after: int


class Span(NamedTuple):
    """Along one axis of the input: what a tile gives, from `start` to `stop`, and what it reads, from `first` to `last`."""

    start: int
    stop: int
    first: int
    last: int


def spans(size: int, tile: int, reach: Reach, step: int = 1) -> list[Span]:
    """Cut `size` rows into parts of about `tile` or fewer, evenly; all edges but the last lie on multiples of `step`."""
    units = math.ceil(size / step)
    parts = max(1, math.ceil(size / max(tile, step)))
    edges = [min(size, units * part // parts * step) for part in range(parts)] + [size]
    before, after = (math.ceil(length / step) * step for length in reach)
    return [
        Span(start, stop, max(0, start - before), min(size, stop + after))
        for start, stop in itertools.pairwise(edges)
        if stop > start
    ]


def run_tiled(
    function: Callable[[Tensor], Tensor], x: Tensor, tile: Tile, reach: Reach, enlarge: int = 1, shrink: int = 1
) -> Tensor:
    """Return `function(x)` for x (…, H, W), tile by tile; the output is `enlarge` / `shrink` times as large.

    `tile` and `reach` count in x's rows and columns. Only the output and one tile are held at a time.
    """
    output: Tensor | None = None
    height, width = (side * enlarge // shrink for side in x.shape[-2:])
    for rows, columns in _grid(x, tile, reach, shrink):
        part = function(x[..., rows.first : rows.last, columns.first : columns.last])
        if output is None:
            output = part.new_empty((*part.shape[:-2], height, width))
        inner = [
            slice((span.start - span.first) * enlarge // shrink, (span.stop - span.first) * enlarge // shrink)
            for span in (rows, columns)
        ]
        place = [slice(span.start * enlarge // shrink, span.stop * enlarge // shrink) for span in (rows, columns)]
        output[..., place[0], place[1]] = part[..., inner[0], inner[1]]
    assert output is not None
    return output


def _grid(x: Tensor, tile: Tile, reach: Reach, step: int) -> Iterator[tuple[Span, Span]]:
    for rows in spans(x.shape[-2], tile[0], reach, step):
        for columns in spans(x.shape[-1], tile[1], reach, step):
            yield rows, columns


def count(size: Tile, tile: Tile | None) -> int:
    """Return into how many tiles a picture of `size` latents is cut."""
    return 1 if tile is None else math.ceil(size[0] / tile[0]) * math.ceil(size[1] / tile[1])


def choose(size: Tile, most: int, halo: int) -> Tile | None:
    """Return the tile with the least work that reads at most `most` latents, its halo included; None: the whole.

    Where not even the smallest fits, the smallest is returned. A pure function of numbers.
    """
    rows, columns = size
    if rows * columns <= most:
        return None
    best: tuple[int, Tile] | None = None
    for down in range(1, math.ceil(rows / SMALLEST) + 1):
        for across in range(1, math.ceil(columns / SMALLEST) + 1):
            tile = (math.ceil(rows / down), math.ceil(columns / across))
            read = min(rows, tile[0] + 2 * halo) * min(columns, tile[1] + 2 * halo)
            if read <= most and (best is None or down * across * read < best[0]):
                best = (down * across * read, tile)
    return best[1] if best else (min(rows, SMALLEST), min(columns, SMALLEST))


def smaller(size: Tile, tile: Tile | None) -> Tile | None:
    """Return the next smaller tile, halved along its longer side, or None where it can't be any smaller."""
    height, width = tile or size
    if max(height, width) <= SMALLEST:
        return None
    if height >= width:
        return max(SMALLEST, math.ceil(height / 2)), width
    return height, max(SMALLEST, math.ceil(width / 2))
