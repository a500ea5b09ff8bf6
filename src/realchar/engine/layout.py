"""Where weights lie in a buffer on the device, and which pieces of their files fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from realchar.engine.fp8 import CODES
from realchar.engine.weights import WeightSource

ALIGN_BYTES = 64  # of a tensor's place in a buffer: what fast kernels ask for


@dataclass(frozen=True)
class Run:
    """Bytes that lie side by side in a file and, as numbers from `offset` on, in a slot: one copy."""

    file: Path
    start: int
    stop: int
    dtype: torch.dtype
    offset: int

    @property
    def numel(self) -> int:
        return (self.stop - self.start) // self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """A group's place in a slot: the copies that fill it, and offset and shape of each weight; counts are numbers."""

    runs: tuple[Run, ...]
    places: dict[str, tuple[int, torch.Size]]
    numel: int


def lay_out(source: WeightSource, shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> Layout:
    """Place weights in the order of their files, so that few copies fill a slot. Raises ModelError if one is amiss."""
    align = max(1, ALIGN_BYTES // dtype.itemsize)
    runs: list[Run] = []
    places: dict[str, tuple[int, torch.Size]] = {}
    end = 0
    entries = {name: source.entry(name, tuple(shape)) for name, shape in shapes.items()}
    for name, entry in sorted(entries.items(), key=lambda item: (str(item[1].file), item[1].start)):
        last = runs[-1] if runs else None
        joins = last is not None and (last.file, last.stop, last.dtype) == (entry.file, entry.start, entry.dtype)
        offset = end if joins and end % align == 0 else -(-end // align) * align
        if last is not None and joins and offset == end:
            runs[-1] = Run(last.file, last.start, entry.stop, last.dtype, last.offset)
        else:
            runs.append(Run(entry.file, entry.start, entry.stop, entry.dtype, offset))
        places[name] = (offset, shapes[name])
        end = offset + shapes[name].numel()
    return Layout(tuple(runs), places, end)


@dataclass(frozen=True)
class Place:
    """A tensor's place among packed bytes; `scales`: where those of a matrix of codes begin, one (float32) a row."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    scales: int | None = None

    def of(self, packed: Tensor) -> Tensor:
        """Return the tensor, a view."""
        stop = self.offset + self.shape.numel() * self.dtype.itemsize
        return packed[self.offset : stop].view(self.dtype).view(self.shape)

    def scales_of(self, packed: Tensor) -> Tensor:
        """Return the scales (rows,), a view."""
        assert self.scales is not None
        return packed[self.scales : self.scales + self.shape[0] * torch.float32.itemsize].view(torch.float32)


@dataclass(frozen=True)
class Packing:
    """A group's places where its matrices are codes, and the bytes of all."""

    places: dict[str, Place]
    num_bytes: int


def pack(layout: Layout, dtype: torch.dtype) -> Packing:
    """Place the weights of a layout with matrices as codes, and the others in `dtype`."""
    places: dict[str, Place] = {}
    end = 0
    for name, (_, shape) in layout.places.items():
        is_matrix = len(shape) == 2
        kind = CODES if is_matrix else dtype
        behind = end + _rounded(shape.numel() * kind.itemsize)
        places[name] = Place(end, shape, kind, behind if is_matrix else None)
        end = behind + (_rounded(shape[0] * torch.float32.itemsize) if is_matrix else 0)
    return Packing(places, end)


def aligned(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes on a shelf, where each begins at a multiple of `ALIGN_BYTES`."""
    return _rounded(tensor.nbytes)


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


class Shelf:
    """Copies of tensors side by side in one buffer of bytes (n,) uint8, which is given."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._end = 0

    def put(self, tensor: Tensor) -> Tensor:
        """Queue the copy of a tensor into the next free place, and return it there."""
        start, self._end = self._end, self._end + aligned(tensor)
        place = self._buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return place.copy_(tensor, non_blocking=True)
