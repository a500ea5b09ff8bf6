"""A LoRA file of random factors for the linear layers of every block, as trainers make them. No torch."""

from __future__ import annotations

from math import prod
from pathlib import Path

from realchar.bench.shards import RandomNumbers, Shapes, write_tensors
from realchar.errors import ModelError, storage_error
from realchar.headers import read_header, weight_files

BLOCKS = "transformer_blocks."
MODULATION = "_mod."  # left out, as by most trainers: it is a third of the weights, and outside of the blocks' own pass


def write_lora(path: Path, base: Path, rank: int, seed: int) -> Path:
    """Write factors for attention and MLP of every block of a base, in PEFT's layout. Raises ModelError, StorageError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (out, into) in _linears(base).items():
        shapes |= {f"{name}.lora_A.weight": (rank, into), f"{name}.lora_B.weight": (out, rank)}
    try:
        write_tensors(path, shapes, RandomNumbers(sum(map(prod, shapes.values())), seed), lambda _name, _shape: None)
    except OSError as error:
        raise storage_error(error, repr(path.name)) from error
    return path


def _linears(base: Path) -> Shapes:
    """Return the shapes (out, in) of the blocks' linear layers, modulation left out, by the names of the layers."""
    folder = base / "transformer"
    try:
        headers = [read_header(file)[0] for file in weight_files(folder)]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("base_damaged", f"The weights in {str(folder)!r} can't be read ({error}).") from error
    rows = {name: tuple(row["shape"]) for header in headers for name, row in header.items()}
    return {
        name.removesuffix(".weight"): shape
        for name, shape in rows.items()
        if name.startswith(BLOCKS) and MODULATION not in name and name.endswith(".weight") and len(shape) == 2
    }
