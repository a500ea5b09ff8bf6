"""Where a component's weights lie on disk: mapped safetensors, one file or sharded, as views that nothing can write to."""

from __future__ import annotations

import mmap
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from realchar.errors import ModelError
from realchar.headers import read_rows, weight_files

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Entry:
    """A tensor's place: bytes `start` to `stop` of its file, counted from the file's beginning."""

    file: Path
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightSource:
    """The pristine weights of one component folder; the files stay mapped as long as this object or a view lives.

    The mapping is shared with the page cache and read-only: a write would end the process, never change a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mappings: dict[Path, Tensor] = {}

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Map every tensor name to its place. Raises ModelError when the files are missing or damaged."""
        try:
            found = {file: self._header(file) for file in weight_files(self.folder)}
            if not found:
                raise ValueError("no .safetensors file in it")
            return {name: entry for entries in found.values() for name, entry in entries.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.damaged(error) from error

    @property
    def num_bytes(self) -> int:
        """Return the size of the files on disk."""
        return sum(file.stat().st_size for file in {entry.file for entry in self.entries.values()})

    def entry(self, name: str, shape: tuple[int, ...] | None = None) -> Entry:
        """Return a tensor's place. Raises ModelError when there is none, or it is not of `shape`."""
        entry = self.entries.get(name)
        if entry is None:
            raise self.damaged(ValueError(f"{name!r} is missing"))
        if shape is not None and entry.shape != shape:
            raise self.damaged(ValueError(f"{name!r} is {entry.shape}, not {shape}"))
        return entry

    def mapping(self, file: Path) -> Tensor:
        """Return all bytes of a file, (n,) uint8, without a copy. Never write to it or to a view of it."""
        if file not in self._mappings:
            with file.open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given buffer is not writable")  # it is meant not to be
                self._mappings[file] = torch.frombuffer(mapped, dtype=torch.uint8)
        return self._mappings[file]

    def view(self, name: str) -> Tensor:
        """Return a tensor as stored, without a copy; of an unaligned one, which old writers left, a copy."""
        entry = self.entry(name)
        return typed(self.mapping(entry.file)[entry.start : entry.stop], entry.dtype).view(entry.shape)

    def tensor(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """Return a fresh copy of a tensor as stored."""
        return self.view(name).to(device, copy=True)

    def damaged(self, error: Exception) -> ModelError:
        """Return the sentence for weights that can't be read."""
        return ModelError(
            "weights_damaged",
            f"The weights in {str(self.folder)!r} can't be read ({error}); copy the folder again.",
            path=str(self.folder),
        )

    def _header(self, file: Path) -> dict[str, Entry]:
        rows, _ = read_rows(file)
        return {name: Entry(file, row.start, row.stop, DTYPES[row.dtype], row.shape) for name, row in rows.items()}


def typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes (n,) as numbers of `dtype`: a view where their place in memory allows it, else a copy."""
    if data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)
