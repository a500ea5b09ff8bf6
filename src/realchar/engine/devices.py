"""The device that a run computes on: which one is meant, what is free there, and giving memory back."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import cache

import torch

from realchar.engine.fp8 import CAPABILITY
from realchar.errors import InvalidInput
from realchar.machine import GB, read_ram
from realchar.settings import Offload, Precision, Speed


def find_device(name: str) -> torch.device:
    """Return the device of this name, a card with its index; `auto` is a card where there is one. Raises InvalidInput."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    there = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
    if not there:
        raise InvalidInput("device", f"Device {name!r} is not usable here; choose auto, cpu or cuda.", name=name)
    if device.type == "cuda" and ":" not in name:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which the engine computes on a device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def label(device: torch.device) -> str:
    """Return how the log calls a device that weights move to."""
    return "GPU" if device.type == "cuda" else device.type.upper()


def free_bytes(device: torch.device, room: int | None = None) -> int:
    """Return how much memory a run can take on `device` now; what torch keeps cached counts as free.

    room: bytes that all tensors together may take on a card.
    """
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - held
        return free if room is None else max(0, min(free, room - held))
    reading = read_ram()
    return int((reading.total_gb - reading.used_gb) * GB)


def cap(device: torch.device, room: int | None) -> None:
    """Let torch take no more than `room` bytes on a card, cached memory included; None: all. What asks for more fails."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if room is None else min(1.0, max(0, room) / total)
        torch.cuda.set_per_process_memory_fraction(share, device)


def release(device: torch.device) -> None:
    """Give back what is cached, on a card and in RAM; what an exception holds is held until its `except` is left."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return what has the C library give back memory that it keeps for later, which else makes RAM look larger by some."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # another library than glibc
        return None
    return trim


def check_speed(speed: Speed, offload: Offload, device: torch.device) -> None:
    """Raise InvalidInput where what is asked for speed is not possible with this offload mode or on this device."""
    precision = speed.precision
    if speed.compiled and offload.needs_card:
        message = f"Blocks are not compiled in the offload mode {offload}; choose stream, or leave out --compile."
        raise InvalidInput("compile", message)
    if precision is Precision.BF16:
        return
    if offload is not Offload.STREAM:
        message = f"Precision {precision} is made while blocks are streamed, not in the mode {offload}; choose stream."
        raise InvalidInput("precision", message)
    if precision is Precision.FP8_FAST and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < CAPABILITY:
            name = torch.cuda.get_device_name(device)
            raise InvalidInput(
                "precision", f"{name} doesn't multiply in 8-bit floats; choose fp8 instead of {precision}."
            )
