"""LoRA versions: files read and checked, and added to pristine weights, so that removing one is exact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from realchar.engine.layout import ALIGN_BYTES, Shelf
from realchar.engine.lora_formats import parse
from realchar.engine.merge import Patch, Patches
from realchar.errors import ModelError


@dataclass(frozen=True)
class Adapter:
    """One LoRA file, checked: for each module its factors up (out, rank) and down (rank, in), scaled by alpha/rank.

    They wait on the host, in memory that is locked where a card copies from it, and never in the file itself: whoever
    replaces the file changes nothing.
    """

    path: Path
    layout: str
    factors: dict[str, tuple[Tensor, Tensor, float]]


def load_adapter(path: Path, transformer: nn.Module, device: torch.device | None = None) -> Adapter:
    """Read and check a whole file before anything is touched. Raises ModelError with what does not fit.

    device: where a card checks values as fast as they arrive; None: where the transformer is.
    """
    linears = {name: module for name, module in transformer.named_modules() if isinstance(module, nn.Linear)}
    device = device or next(transformer.parameters()).device
    try:
        with safe_open(path, framework="pt") as file:
            layout, found = parse(file.keys(), frozenset(linears), path.name)
            shelf = Shelf(_buffer(path.stat().st_size + ALIGN_BYTES * len(file.keys()), locked=device.type == "cuda"))
            tensors = {
                name: {factor: shelf.put(file.get_tensor(key)) for factor, key in keys.items()}
                for name, keys in found.items()
            }
    except (OSError, SafetensorError) as error:
        raise ModelError("lora_damaged", f"LoRA {path.name!r} can't be read ({error}); download it again.") from error
    factors = {name: _factors(path.name, name, linears[name], parts, device) for name, parts in tensors.items()}
    return Adapter(path, layout, factors)


def _buffer(num_bytes: int, *, locked: bool) -> Tensor:
    """Return bytes on the host, locked in one piece, which is quicker than in many; ordinary ones if that is refused."""
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=locked)
    except RuntimeError:  # a limit on locked memory: copies from ordinary memory are slower, and as right
        return torch.empty(num_bytes, dtype=torch.uint8)


def _factors(
    file: str, name: str, linear: nn.Linear, parts: dict[str, Tensor], device: torch.device
) -> tuple[Tensor, Tensor, float]:
    up, down = parts["up"], parts["down"]
    rank = down.shape[0]
    if up.shape != (linear.out_features, rank) or down.shape != (rank, linear.in_features):
        raise ModelError(
            "lora_base",
            f"LoRA {file!r} does not fit {name!r}: factors {tuple(up.shape)} and {tuple(down.shape)} on a weight of "
            f"{linear.out_features}x{linear.in_features}; choose one made for this base.",
            file=file,
        )
    scale = float(parts["alpha"].float().item()) / rank if "alpha" in parts else 1.0
    if not (_is_finite(up.to(device)) and _is_finite(down.to(device))):
        raise ModelError(
            "lora_nan", f"LoRA {file!r} holds values that are no numbers in {name!r}; download it again.", file=file
        )
    return up, down, scale


def _is_finite(x: Tensor) -> bool:
    """As `torch.isfinite(x).all()`, in a tenth of the time on a CPU: extremes are no numbers where any value is none."""
    return not x.numel() or bool(torch.stack(torch.aminmax(x)).isfinite().all())


class Patchable(Protocol):
    """Who holds the weights: makes all of them equal pristine + patches."""

    def patch(self, patches: Patches) -> None: ...


class AdapterSet:
    """What is added to a transformer's weights now. `use` changes it; the weights always equal pristine + sum."""

    def __init__(self, transformer: nn.Module, weights: Patchable, device: torch.device | None = None) -> None:
        """Add to a transformer that runs on `device`; None: where its weights are now."""
        self._transformer = transformer
        self._device = device
        self._weights = weights
        self._active: tuple[tuple[Path, int, float], ...] | None = ()  # None: not known, a change has failed

    def are(self, versions: list[tuple[Path, float]]) -> bool:
        """Tell whether exactly these files, as they are now, with their strengths, are effective."""
        return self._active == _identity(versions)

    @torch.no_grad()
    def use(self, versions: list[tuple[Path, float]]) -> None:
        """Make exactly these files, with their strengths, effective; does nothing when they are already."""
        wanted = _identity(versions)
        if wanted == self._active:
            return
        adapters = [load_adapter(path, self._transformer, self._device) for path, _ in versions]
        patches: dict[str, list[Patch]] = {}
        for adapter, origin in zip(adapters, wanted, strict=True):
            for name, (up, down, scale) in adapter.factors.items():
                patch = Patch(up, down, scale * origin[2], origin)
                patches.setdefault(f"{name}.weight", []).append(patch)
        self._active = None  # until all are refreshed, nothing may be taken for effective
        self._weights.patch(patches)
        self._active = wanted


def _identity(versions: list[tuple[Path, float]]) -> tuple[tuple[Path, int, float], ...]:
    return tuple((path, path.stat().st_mtime_ns, strength) for path, strength in versions)
