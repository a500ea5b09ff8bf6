"""LoRA versions: files read and checked, and added to pristine weights, so that removing one is exact."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from realchar.engine.layout import ALIGN_BYTES
from realchar.engine.merge import Patch, Patches
from realchar.engine.weights import DTYPES, typed
from realchar.errors import ModelError
from realchar.headers import Row
from realchar.lora import Target, examine
from realchar.lora.pieces import Piece, plain
from realchar.lora.target import target_of

READERS = 8  # threads: one copies 5 to 10 GB/s from the page cache, which takes a file of 0.6 GB a tenth of a second
PIECE_BYTES = 32 * 2**20
BIASES = {"bias": "diff", "diff_b": "diff", "set_b": "set"}  # parts that go to a module's bias, and how
WEIGHTS = {"diff": "diff", "set": "set"}  # parts that are whole weights


def load_adapter(path: Path, target: Target, device: torch.device) -> dict[str, list[Patch]]:
    """Read and check a whole file before anything is touched. Raises ModelError with what does not fit.

    Returns what it adds to each of the transformer's parameters, by their names, at strength 1. Tensors wait on the host,
    in memory that is locked where a card copies from it, and never in the file itself: whoever replaces the file changes
    nothing. device: where the transformer runs, which checks values as fast as they arrive there.
    """
    before = _mark(path)
    report = examine(path, target, look=False)
    if report.action == "reject":
        raise ModelError(report.code, report.reason, file=path.name)
    rows = {key: report.rows[key] for piece in report.pieces for key in piece.keys.values()}
    try:
        tensors = _read(path, rows, locked=device.type == "cuda")
    except OSError as error:
        raise ModelError("lora_damaged", f"LoRA {path.name!r} can't be read ({error}); download it again.") from error
    if _mark(path) != before:
        raise ModelError("lora_changed", f"LoRA {path.name!r} was replaced while it was read; try again.")
    wrong = _not_finite(tensors, device)
    if wrong is not None:
        message = f"LoRA {path.name!r} holds values that are no numbers, in {wrong!r}; download it again."
        raise ModelError("lora_nan", message, file=path.name)
    patches: dict[str, list[Patch]] = {}
    for piece in report.pieces:
        for name, patch in _patches_of(piece, tensors):
            patches.setdefault(name, []).append(patch)
    return patches


def _patches_of(piece: Piece, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Patch]]:
    """Give what a piece adds to the module's weight and bias, by the parameter's name."""
    parts = {part: tensors[key] for part, key in piece.keys.items()}
    for part, kind in BIASES.items():
        if part in parts:
            yield f"{piece.module}.bias", Patch(kind, {"value": parts.pop(part)}, piece.scale, 1.0, None)
    if piece.kind != "full":
        yield f"{piece.module}.weight", Patch(piece.kind, parts, piece.scale, 1.0, None)
        return
    for part, kind in WEIGHTS.items():
        if part in parts:
            yield f"{piece.module}.weight", Patch(kind, {"value": parts[part]}, piece.scale, 1.0, None)


def _read(path: Path, rows: dict[str, Row], *, locked: bool) -> dict[str, Tensor]:
    """Read tensors from a file into one piece of host memory, by several threads. Raises OSError."""
    places: dict[str, int] = {}
    runs: list[tuple[int, int, int]] = []  # bytes of the file that are read in one go, and where they go
    end = 0
    for key, row in sorted(rows.items(), key=lambda item: item[1].start):
        if not runs or row.start != runs[-1][1]:
            end = -(-end // ALIGN_BYTES) * ALIGN_BYTES
            runs.append((row.start, row.start, end))
        places[key] = end
        end += row.stop - row.start
        runs[-1] = (runs[-1][0], row.stop, runs[-1][2])
    buffer = _buffer(end, locked=locked)
    view = memoryview(buffer.numpy().data)
    pieces = [
        (at, min(at + PIECE_BYTES, stop), to + at - start)
        for start, stop, to in runs
        for at in range(start, stop, PIECE_BYTES)
    ]
    with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1), thread_name_prefix="lora") as pool:
        for _ in pool.map(lambda piece: _fill(path, view, *piece), pieces):
            pass
    return {
        key: typed(buffer[places[key] : places[key] + row.stop - row.start], DTYPES[row.dtype]).view(plain(row.shape))
        for key, row in rows.items()
    }


def _fill(path: Path, view: memoryview, start: int, stop: int, to: int) -> None:
    """Read the bytes `start` to `stop` of a file to the place `to`."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop:
            number = file.readinto(view[to : to + stop - start])
            if not number:
                raise OSError(f"it ends {stop - start} bytes too soon")
            start, to = start + number, to + number


def _buffer(num_bytes: int, *, locked: bool) -> Tensor:
    """Return bytes on the host, locked in one piece, which is quicker than in many; ordinary ones if that is refused."""
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=locked)
    except RuntimeError:  # a limit on locked memory: copies from ordinary memory are slower, and as right
        return torch.empty(num_bytes, dtype=torch.uint8)


def _not_finite(tensors: dict[str, Tensor], device: torch.device) -> str | None:
    """Return the name of the first tensor with a value that is no number. Waits for the device once if there is none."""
    extremes = [_extremes(tensor, device) for tensor in tensors.values()]
    if bool(torch.stack(extremes).isfinite().all()):
        return None
    return next(key for key, both in zip(tensors, extremes, strict=True) if not bool(both.isfinite().all()))


def _extremes(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the least and the greatest (2,), which are no numbers where any value is none; quicker than `isfinite`."""
    there = tensor.to(device, non_blocking=True)
    return torch.stack(torch.aminmax(there.float() if there.dtype.itemsize == 1 else there)).float()


class Patchable(Protocol):
    """Who holds the weights: makes all of them equal pristine + patches."""

    def patch(self, patches: Patches) -> None: ...


Version = tuple[Path, float]  # a file and its strength
Mark = tuple[int, int, int]


class AdapterSet:
    """What is added to a transformer's weights now. `use` changes it; the weights always equal pristine + sum."""

    def __init__(self, transformer: nn.Module, weights: Patchable, device: torch.device | None = None) -> None:
        """Add to a transformer that runs on `device`; None: where its weights are now."""
        self._target = target_of(transformer.config)  # type: ignore[arg-type]
        self._device = device or next(transformer.parameters()).device
        self._weights = weights
        self._active: tuple[tuple[Path, Mark, float], ...] | None = ()  # None: not known, a change has failed

    def are(self, versions: Iterable[Version]) -> bool:
        """Tell whether exactly these files, as they are now, with their strengths, are effective."""
        return self._active == _identity(versions)

    @torch.no_grad()
    def use(self, versions: list[Version]) -> bool:
        """Make exactly these files, with their strengths, effective; does nothing, and says so, when they are already."""
        wanted = _identity(versions)
        if wanted == self._active:
            return False
        adapters = [load_adapter(path, self._target, self._device) for path, _ in versions]
        patches: dict[str, list[Patch]] = {}
        for adapter, origin in zip(adapters, wanted, strict=True):
            for name, added in adapter.items():
                patches.setdefault(name, []).extend(
                    replace(patch, strength=origin[2], origin=origin) for patch in added
                )
        self._active = None  # until all are refreshed, nothing may be taken for effective
        self._weights.patch(patches)
        self._active = wanted
        return True


def _identity(versions: Iterable[Version]) -> tuple[tuple[Path, Mark, float], ...]:
    return tuple((path, _mark(path), strength) for path, strength in versions)


def _mark(path: Path) -> Mark:
    """Return what tells a file from another that took its place. Raises ModelError where it is gone."""
    try:
        stat = path.stat()
    except OSError as error:
        message = f"LoRA {path.name!r} is not there any more; choose another version."
        raise ModelError("lora_gone", message, file=path.name) from error
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
