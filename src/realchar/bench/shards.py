"""Writes safetensors files of random bfloat16 numbers as bytes: as fast as the disk, in little memory. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np

from realchar.headers import LENGTH_BYTES

NUMBER_BYTES = 2  # of bfloat16
SHARD_BYTES = 4 * 10**9
BUFFER_NUMBERS = 2**26 - 5  # no multiple of a row's length, so that rows cut from the same buffer differ
STD = 0.02
ONE = 0x3F80  # the bits of 1.0

Shapes = Mapping[str, tuple[int, ...]]
Constant = Callable[[str, tuple[int, ...]], int | None]  # the bits that fill a tensor; None: random numbers


class RandomNumbers:
    """A ring of normally distributed bfloat16 numbers, drawn once; every tensor is cut from where the last one ended."""

    def __init__(self, numel: int, seed: int = 0) -> None:
        numel = max(1, min(numel, BUFFER_NUMBERS))
        drawn = np.random.default_rng(seed).standard_normal(numel, dtype=np.float32) * np.float32(STD)
        self._ring = (drawn.view(np.uint32) >> 16).astype("<u2")
        self._at = 0

    def cut(self, numel: int) -> Iterator[np.ndarray]:
        """Yield views of the ring, (n,) uint16, that hold `numel` numbers together."""
        while numel:
            piece = self._ring[self._at : self._at + numel]
            self._at = (self._at + len(piece)) % len(self._ring)
            numel -= len(piece)
            yield piece


def num_bytes(shapes: Shapes) -> int:
    """Return what tensors of these shapes take as bfloat16."""
    return sum(map(prod, shapes.values())) * NUMBER_BYTES


def write_shards(folder: Path, stem: str, shapes: Shapes, numbers: RandomNumbers, constant: Constant) -> None:
    """Write a component's weights: one file, or several of at most `SHARD_BYTES` and their index. Raises OSError."""
    parts = _parts(shapes)
    if len(parts) == 1:
        write_tensors(folder / f"{stem}.safetensors", shapes, numbers, constant)
        return
    names = [f"{stem}-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        write_tensors(folder / name, part, numbers, constant)
    where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    index = {"metadata": {"total_size": num_bytes(shapes)}, "weight_map": where}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _parts(shapes: Shapes) -> list[dict[str, tuple[int, ...]]]:
    parts: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes.items():
        if parts[-1] and num_bytes(parts[-1] | {name: shape}) > SHARD_BYTES:
            parts.append({})
        parts[-1][name] = shape
    return parts


def write_tensors(path: Path, shapes: Shapes, numbers: RandomNumbers, constant: Constant) -> None:
    """Write one file, its tensors sorted by name as the format's own library does. Raises OSError."""
    header, end = {}, 0
    for name in sorted(shapes):
        start, end = end, end + prod(shapes[name]) * NUMBER_BYTES
        header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of their size
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for name in sorted(shapes):
            numel, bits = prod(shapes[name]), constant(name, shapes[name])
            for piece in numbers.cut(numel) if bits is None else [np.full(numel, bits, "<u2")]:
                file.write(piece.data)
