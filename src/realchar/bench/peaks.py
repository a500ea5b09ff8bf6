"""What this process takes at its peak: on a card the allocator's peak and the CUDA context, on the CPU the RAM."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import torch

from realchar.engine.devices import find_device
from realchar.machine import GB, gpus

STATUS = Path("/proc/self/status")


class ProcessMemory:
    """The memory of this process on one device, in GB; to be made before anything else touches the device."""

    def __init__(self, device: str) -> None:
        self.device = find_device(device)
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu:  # not every call of torch's takes a card without its number
            self.device = torch.device("cuda", self.device.index or 0)
        self._others = self._context = self._reserved = 0.0
        if self.on_gpu:
            self._others = self._used(before=True)
            weight = torch.ones(64, 64, device=self.device, dtype=torch.bfloat16)
            (weight @ weight).sum().item()  # the context, and with it the matrix library's part
            self.context_gb()

    def context_gb(self) -> float:
        """Return what the process takes on the card beside the allocator: the most that was seen; it grows with kernels.

        Memory that other processes take or give back meanwhile is counted as this one's.
        """
        if self.on_gpu:
            now = self._used() - self._others - torch.cuda.memory_reserved(self.device) / GB
            self._context = max(self._context, now)
        return self._context

    def stage_peak_gb(self) -> float | None:
        """Return the allocator's peak of live tensors since the last call; None on the CPU, which doesn't tell."""
        if not self.on_gpu:
            return None
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved(self.device) / GB)
        peak = torch.cuda.max_memory_allocated(self.device) / GB
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def peak_gb(self) -> float:
        """Return the peak of the whole process up to now, or since `restart` on a card."""
        if not self.on_gpu:
            return peak_ram_bytes() / GB
        self.stage_peak_gb()
        return self._reserved + self.context_gb()

    def restart(self) -> None:
        """Forget the peak on the card; the one in RAM is the process's own and stays."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._reserved = 0.0

    def sync(self) -> None:
        """Wait for the computation; copies for the next step, on a line of their own, go on."""
        if self.on_gpu:
            torch.cuda.current_stream(self.device).synchronize()

    def _used(self, *, before: bool = False) -> float:
        """Return what all processes take on the card. Without NVML it can't be told `before` there is a context."""
        cards, index = gpus(), self.device.index or 0
        if index < len(cards):
            return cards[index].total_gb - cards[index].free_gb
        if before:
            return 0.0
        free, total = torch.cuda.mem_get_info(self.device)
        return (total - free) / GB


def peak_ram_bytes() -> int:
    """Return the most RAM that this process held, pages of mapped files included, which the system takes back at need."""
    if STATUS.exists():  # `getrusage` would count what the parent held when it started this process
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def own_ram_bytes() -> int | None:
    """Return the RAM that this process holds now without mapped files; None where the system doesn't tell."""
    info = psutil.Process().memory_info()
    return int(info.rss - info.shared) if hasattr(info, "shared") else None
