"""Attention backends: which of them run here, how fast and how exact they are, and the one that is taken.

They are diffusers' own (`diffusers.models.attention_dispatch`). `auto` measures them on the shape that will run; it leaves
torch's own choice only for one that is as exact and clearly faster, and remembers, so that a seed keeps its picture.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _check_attention_backend_requirements,
    dispatch_attention_fn,
)
from torch import Tensor

from realchar.errors import InvalidInput
from realchar.machine import cache_folder, left_out
from realchar.settings import Attention

log = logging.getLogger("realchar.engine")

NAMES = {
    Attention.SDPA: "native",
    Attention.CUDNN: "_native_cudnn",
    Attention.FLASH: "_native_flash",
    Attention.XFORMERS: "xformers",
    Attention.FLASH_ATTN: "flash",
    Attention.FLASH_ATTN_3: "_flash_3",
    Attention.SAGE: "sage",
}
MEMORY = "attention.json"
NEEDS_CARD = "it needs a graphics card"
GAIN = 0.05  # of the time of torch's own choice, which `auto` wants for leaving it
AS_EXACT = 1.5  # times the error of torch's own choice, which is its rounding, that `auto` allows
WARM_UP, RUNS = 2, 7
PACKAGES = {  # of the backends that need one: as it is installed, and as it is imported
    Attention.XFORMERS: ("xformers", "xformers"),
    Attention.FLASH_ATTN: ("flash-attn", "flash_attn"),
    Attention.FLASH_ATTN_3: ("flash-attn-3", "flash_attn_interface"),
    Attention.SAGE: ("sageattention", "sageattention"),
}


@dataclass(frozen=True)
class Shape:
    """Of queries, keys and values (1, tokens, heads, head_dim)."""

    tokens: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class Measured:
    """What one backend did: milliseconds, and how far it is from exact attention; or the reason why it can't run.

    error: norm of the difference relative to the norm of what is exact; max_difference: its largest number.
    """

    name: Attention
    ms: float | None = None
    error: float | None = None
    max_difference: float | None = None
    reason: str = ""


def measure(shape: Shape, device: torch.device, dtype: torch.dtype) -> list[Measured]:
    """Time every backend that runs here on random input of this shape, and compare one head of it with exact attention."""
    generator = torch.Generator(device).manual_seed(0)
    size = (1, shape.tokens, shape.heads, shape.head_dim)
    inputs = [torch.randn(size, generator=generator, device=device, dtype=dtype) for _ in range(3)]
    with torch.inference_mode():
        exact = _exact(inputs)
        return [_measured(name, inputs, exact) for name in NAMES]


def refusals(device: torch.device, dtype: torch.dtype, head_dim: int = 128) -> dict[Attention, str]:
    """Return why each backend can't run here; an empty text for those that do."""
    return {name: _refusal(name, device, dtype, head_dim) for name in NAMES}


def chosen_before(device: torch.device, folder: Path | None = None) -> list[str]:
    """Return the backends that `auto` took on this card with these packages, each once."""
    card, versions = f"{torch.cuda.get_device_name(device)}, ", ", ".join(_versions())
    known = _read((folder or cache_folder()) / MEMORY)
    return sorted({name for key, name in known.items() if key.startswith(card) and key.endswith(versions)})


def choose(measured: Sequence[Measured]) -> Attention:
    """Return the fastest that is as exact as torch's own choice, which is left for a clear gain only. A pure function."""
    own = next(row for row in measured if row.name is Attention.SDPA)
    if own.ms is None or own.error is None:
        return Attention.SDPA
    good = [row for row in measured if row.error is not None and row.error <= AS_EXACT * own.error]
    best = min((row for row in good if row.ms is not None), key=lambda row: row.ms or 0.0, default=own)
    return best.name if (best.ms or 0.0) < own.ms * (1 - GAIN) else Attention.SDPA


def settle(
    wanted: Attention, shape: Shape, device: torch.device, dtype: torch.dtype, folder: Path | None = None
) -> Attention:
    """Return the backend to take. Raises InvalidInput where the one that is asked for can't run here.

    folder: where `auto` remembers what it chose; default: the user's cache.
    """
    if wanted is not Attention.AUTO:
        if reason := _refusal(wanted, device, dtype, shape.head_dim):
            install = ", or install what fits this PyTorch" if wanted in PACKAGES and reason != NEEDS_CARD else ""
            message = f"Attention {wanted.value!r} can't run here ({reason}); choose auto or sdpa{install}."
            raise InvalidInput("attention", message, value=wanted.value)
        return wanted
    if device.type != "cuda":
        return Attention.SDPA
    file = (folder or cache_folder()) / MEMORY
    key = ", ".join(map(str, (torch.cuda.get_device_name(device), dtype, shape, *_versions())))
    known = _read(file)
    if known.get(key) in list(NAMES):
        return Attention(known[key])
    measured = measure(shape, device, dtype)
    chosen = choose(measured)
    for row in measured:
        log.info("Attention %s: %s", row.name, row.reason or f"{row.ms:.2f} ms, error {row.error:.1e}")
    log.info("Attention: %s is taken", chosen)
    with suppress(OSError):  # then it is measured again at the next start
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}")
        part.write_text(json.dumps(known | {key: chosen.value}, indent=1), encoding="utf-8")
        part.replace(file)
    return chosen


def use(name: Attention, blocks: Iterable[Any]) -> None:
    """Let all blocks of a transformer attend by a backend, which runs here."""
    for block in blocks:
        block.attn.processor._attention_backend = AttentionBackendName(NAMES[name])


def _refusal(name: Attention, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Return why a backend can't run here, or nothing."""
    tiny = [torch.zeros(1, 64, 2, head_dim, device=device, dtype=dtype)] * 3
    try:
        _run(name, tiny)
    except Exception as error:  # whatever a package that does not fit raises
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return ""


def _run(name: Attention, inputs: Sequence[Tensor]) -> Tensor:
    backend = AttentionBackendName(NAMES[name])
    if name in PACKAGES:
        _check_package(*PACKAGES[name])
    _check_attention_backend_requirements(backend)
    if backend.value not in ("native", "_native_math") and inputs[0].device.type != "cuda":
        raise RuntimeError(NEEDS_CARD)
    attended: Tensor = dispatch_attention_fn(*inputs, backend=backend)
    return attended


def _check_package(package: str, module: str) -> None:
    """Tell why a package is not there. Raises RuntimeError."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise RuntimeError(f"{package} is not installed") from None
    if module in left_out:
        raise RuntimeError(f"{package} {installed} does not fit PyTorch {torch.__version__}: {left_out[module]}")


def _measured(name: Attention, inputs: Sequence[Tensor], exact: Tensor) -> Measured:
    try:
        difference = _run(name, inputs)[:, :, :1].float() - exact
        error, largest = float(difference.norm() / exact.norm()), float(difference.abs().max())
        del difference
        return Measured(name, _milliseconds(lambda: _run(name, inputs), inputs[0].device), error, largest)
    except torch.OutOfMemoryError:
        return Measured(name, reason="memory is too short to measure it")
    except Exception as error:
        return Measured(name, reason=(str(error).strip().splitlines() or [type(error).__name__])[0])


def _exact(inputs: Sequence[Tensor]) -> Tensor:
    """Return attention of the first head (1, tokens, 1, head_dim) in float32, by its definition; rows in pieces."""
    query, key, value = (each[0, :, 0].float() for each in inputs)
    scale = query.shape[-1] ** -0.5
    rows = [F.softmax(piece @ key.t() * scale, dim=-1) @ value for piece in torch.split(query, 1024)]
    return torch.cat(rows)[None, :, None]


def _milliseconds(run: Callable[[], Any], device: torch.device) -> float:
    seconds = []
    for _ in range(WARM_UP + RUNS):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds[WARM_UP:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _versions() -> Iterator[str]:
    yield f"torch {torch.__version__}"
    yield f"diffusers {diffusers.__version__}"
    for package, _ in PACKAGES.values():
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _read(file: Path) -> dict[str, str]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in known.items()}
    except (OSError, ValueError, AttributeError):
        return {}
