"""What this machine has: graphics cards through NVML, RAM (of the container, where one limits it), and disk space.

All sizes are GB of 10**9 bytes. Nothing here imports torch or holds a CUDA context, so readings cost no VRAM.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

GB = 10**9
CGROUP = Path("/sys/fs/cgroup")


# Threads of the CPU's matrix library spin while they wait, which on a busy machine costs others, and at last itself, more
# than the waiting: 18.6 s against 8.6 s for one conversion beside other work on two cores.
# Segments that can grow keep torch's allocator from running out of memory that is free, but in pieces.
ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "GOMP_SPINCOUNT": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


# Packages that may compute attention, with the module that is imported of each.
ATTENTION_MODULES = {
    "xformers": "xformers.ops",
    "flash_attn": "flash_attn",
    "flash_attn_interface": "flash_attn_interface",
    "sageattention": "sageattention",
}
left_out: dict[str, str] = {}  # those of them that are installed but don't fit, with what importing them said


def prepare_engine_process() -> None:
    """Set what torch and its libraries read when they are imported; the user's own values in the environment win."""
    for name, value in ENGINE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Not torch's own place, which is temporary: compiled blocks are to be there at the next start.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    _load_cuda_12()
    _leave_out_what_does_not_fit()


def _leave_out_what_does_not_fit() -> None:
    """Hide installed attention packages that can't be imported: diffusers imports what it finds, and fails with it."""
    logging.getLogger("xformers").setLevel(logging.ERROR)  # its warning of many lines: a refusal is told in a sentence
    for package, module in ATTENTION_MODULES.items():
        if importlib.util.find_spec(package) is None:
            continue
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a build for another PyTorch raises
            left_out[package] = (str(error).strip().splitlines() or [type(error).__name__])[0]
            for name in [name for name in sys.modules if name.split(".")[0] == package]:
                del sys.modules[name]
            sys.modules[package] = None  # type: ignore[assignment]  # as if it were not installed


def _load_cuda_12() -> None:
    """Load the CUDA 12 runtime where it lies beside xformers, which is built for it and finds it only when it is there."""
    if importlib.util.find_spec("xformers") is None:
        return
    with suppress(ImportError, OSError):
        spec = importlib.util.find_spec("nvidia.cuda_runtime")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for library in Path(folder, "lib").glob("libcudart.so.12*"):
                ctypes.CDLL(str(library))


def cache_folder() -> Path:
    """Return where this user's programs keep what can be made again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"), "realchar", "cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "realchar")


@dataclass(frozen=True)
class MemoryReading:
    """Memory in use and in all, in GB: of a graphics card, or of RAM."""

    kind: Literal["gpu", "ram"]
    used_gb: float
    total_gb: float
    name: str


@dataclass(frozen=True)
class Gpu:
    """A graphics card that CUDA may use. `index` counts as CUDA does, after `CUDA_VISIBLE_DEVICES`; sizes in GB."""

    index: int
    name: str
    total_gb: float
    free_gb: float
    driver: str


def read_memory(device: str = "auto") -> MemoryReading:
    """Read the memory of `device` (`cuda:1`, `auto`: the first card); of RAM for `cpu` and where no such card is."""
    cards = gpus() if device == "auto" or device.startswith("cuda") else []
    index = _index(device)
    if index < len(cards):
        card = cards[index]
        return MemoryReading("gpu", card.total_gb - card.free_gb, card.total_gb, card.name)
    return read_ram()


def _index(device: str) -> int:
    number = device.partition(":")[2]
    return int(number) if number.isdigit() else 0


def process_gb(device: str) -> float | None:
    """Return what this process takes on a card, its CUDA context included; None where the driver doesn't tell.

    It doesn't on Windows and WSL, nor in a container with process numbers of its own.
    """
    nvml = _nvml()
    if nvml is None or not device.startswith("cuda"):
        return None
    try:
        cards = list(_visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
        running = (
            nvml.nvmlDeviceGetComputeRunningProcesses(cards[_index(device)]) if _index(device) < len(cards) else []
        )
    except nvml.NVMLError:
        return None
    used = next((each.usedGpuMemory for each in running if each.pid == os.getpid()), None)
    return None if used is None else float(used) / GB


def has_card(device: str = "auto") -> bool:
    """Tell whether `device` means a graphics card that is there, without asking torch."""
    return read_memory(device).kind == "gpu"


def read_ram() -> MemoryReading:
    """Read the RAM of the machine, or of the container where its limit is lower."""
    import psutil

    memory = psutil.virtual_memory()
    total, used = int(memory.total), int(memory.total - memory.available)
    limit = cgroup_memory(CGROUP)
    if limit is not None and limit[1] < total:
        used, total = limit
    return MemoryReading("ram", used / GB, total / GB, "RAM")


def cgroup_memory(root: Path) -> tuple[int, int] | None:
    """Return the container's memory in use (less droppable file cache) and its limit, in bytes, or None."""
    for folder, limit, usage, cache_key in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            total, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if total.isdigit():  # version 2 says "max" where there is no limit, version 1 a number beyond any RAM
            return max(0, used - int(stat.get(cache_key, 0))), int(total)
    return None


def disk_free(path: Path) -> float:
    """Return the GB that are free where `path` is, or will be."""
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free / GB


def gpus() -> list[Gpu]:
    """List the NVIDIA cards that CUDA may use; empty where there is no card or no driver that answers."""
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = list(_visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
        return [_gpu(nvml, index, handle, driver) for index, handle in enumerate(handles)]
    except nvml.NVMLError:
        return []


def _gpu(nvml: Any, index: int, handle: Any, driver: str) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(index, _text(nvml.nvmlDeviceGetName(handle)), memory.total / GB, memory.free / GB, driver)


def _visible(nvml: Any, variable: str | None) -> Iterator[Any]:
    """Yield the handles that CUDA would see; as in CUDA, the first entry that names no card ends the list."""
    if variable is None:
        yield from (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        return
    for entry in map(str.strip, variable.split(",")):
        try:
            if entry.isdigit():
                yield nvml.nvmlDeviceGetHandleByIndex(int(entry))
            elif entry.startswith(("GPU-", "MIG-")):
                yield _by_uuid(nvml, entry)
            else:
                return
        except nvml.NVMLError:
            return


def _by_uuid(nvml: Any, entry: str) -> Any:
    """CUDA takes any unambiguous beginning of a card's id, NVML only the whole."""
    if entry.startswith("GPU-"):
        handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        for handle in handles:
            if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry):
                return handle
    return nvml.nvmlDeviceGetHandleByUUID(entry)


@cache
def _nvml() -> Any:
    """Return NVML, started once, or None where it cannot be."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:  # old NVML bindings return bytes
    return value.decode() if isinstance(value, bytes) else value
