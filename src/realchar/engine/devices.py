"""The device that a run computes on: which one is meant, what is free there, and giving memory back."""

from __future__ import annotations

import gc

import torch

from realchar.errors import InvalidInput
from realchar.machine import GB, read_ram


def find_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is the graphics card where there is one. Raises InvalidInput."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    there = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
    if not there:
        raise InvalidInput("device", f"Device {name!r} is not usable here; choose auto, cpu or cuda.", name=name)
    return device


def free_bytes(device: torch.device) -> int:
    """Return how much memory a run can take on `device` now; what torch keeps cached counts as free."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    reading = read_ram()
    return int((reading.total_gb - reading.used_gb) * GB)


def release(device: torch.device) -> None:
    """Give back what is cached; what an exception holds is held until its `except` is left."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
