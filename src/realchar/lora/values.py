"""The numbers in a LoRA file, looked at where they lie: alphas, values that are none, and factors of zeros. No torch.

Half-width and 8-bit floats, which numpy has not, are looked at as bits: without its sign, a float's bits grow with its
size, and infinity and what is no number come after all others.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from realchar.headers import Row

FLOATS = {  # bits as unsigned numbers: of all but the sign, and of the first size that is no finite float32
    "F64": ("<u8", 0x7FFF_FFFF_FFFF_FFFF, 0x47F0_0000_0000_0000),  # 2**128: sums are made in float32
    "F32": ("<u4", 0x7FFF_FFFF, 0x7F80_0000),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "BF16": ("<u2", 0x7FFF, 0x7F80),
    "F8_E4M3": ("u1", 0x7F, 0x7F),
    "F8_E5M2": ("u1", 0x7F, 0x7C),
}
INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1"}
PIECE = 1 << 20  # numbers that are looked at together: what lies between stays in the processor's cache


class Values:
    """The numbers of one file, mapped. Close it when done: what a row is asked of must be of this file."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        self._data.close()

    def largest(self, row: Row) -> int:
        """Return the largest of a tensor's floats as bits without a sign: 0 where all are zero, or there is none."""
        kind, mask, _ = FLOATS[row.dtype]
        largest = 0
        for start in range(row.start, row.stop, PIECE * np.dtype(kind).itemsize):
            stop = min(row.stop, start + PIECE * np.dtype(kind).itemsize)
            bits: NDArray[np.unsignedinteger] = np.frombuffer(self._data[start:stop], dtype=kind)
            largest = max(largest, int((bits & bits.dtype.type(mask)).max()))
        return largest

    def number(self, row: Row) -> float:
        """Return the number of a tensor of one, or of equal ones; NaN where it holds none, or different ones."""
        size = (row.stop - row.start) // max(1, _numel(row))
        data = self._data[row.start : row.stop]
        if not 0 < _numel(row) <= 64 or len({data[i : i + size] for i in range(0, len(data), size)}) > 1:
            return math.nan
        return _number(data[:size], row.dtype)


def is_finite(largest: int, dtype: str) -> bool:
    """Tell whether floats whose largest bits these are, are all finite numbers."""
    return largest < FLOATS[dtype][2]


def size_of(largest: int, dtype: str) -> float:
    """Return the number whose bits these are."""
    kind = np.dtype(FLOATS[dtype][0])
    return _number(largest.to_bytes(kind.itemsize, "little"), dtype)


def _numel(row: Row) -> int:
    numel = 1
    for side in row.shape:
        numel *= side
    return numel


def _number(data: bytes, dtype: str) -> float:
    if dtype in INTEGERS:
        return float(np.frombuffer(data, INTEGERS[dtype])[0])
    if dtype == "BF16":
        value: float = struct.unpack("<f", b"\0\0" + data)[0]
        return value
    if dtype in ("F64", "F32", "F16"):
        return float(np.frombuffer(data, f"<f{len(data)}")[0])
    if dtype == "F8_E5M2":
        return float(np.frombuffer(b"\0" + data, "<f2")[0])
    return _e4m3(data[0]) if dtype == "F8_E4M3" else math.nan


def _e4m3(code: int) -> float:
    """Return the number of four bits of exponent and three of fraction; it has no infinities."""
    exponent, fraction = code >> 3 & 15, code & 7
    size = math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9)
    return math.nan if code & 0x7F == 0x7F else math.copysign(size, -1 if code & 0x80 else 1)
