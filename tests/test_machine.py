"""Readings of GPU memory (through a scripted NVML), RAM under a container's limit, and disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from realchar import machine
from realchar.machine import GB


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """Two cards; every call after `broken = True` fails as NVML does when a card falls off the bus."""

    NVMLError = NVMLError
    broken = False
    cards = (("GPU-aaaa-1", b"RTX 4090", 24 * GB, 20 * GB), ("GPU-bbbb-2", "RTX 3060", 12 * GB, 3 * GB))

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        if self.broken:
            raise NVMLError
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.cards):
            raise NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        raise NVMLError

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.cards[handle][0]

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return self.cards[handle][1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        if self.broken:
            raise NVMLError
        used = {os.getpid(): (3 * GB, None)[handle], 1: 5 * GB}
        return [SimpleNamespace(pid=pid, usedGpuMemory=each) for pid, each in used.items()]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=self.cards[handle][2], free=self.cards[handle][3])


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine._nvml.cache_clear()
    yield fake
    machine._nvml.cache_clear()


def names() -> list[str]:
    return [card.name for card in machine.gpus()]


def test_cards_and_memory(nvml: FakeNvml) -> None:
    assert machine.gpus()[0] == machine.Gpu(0, "RTX 4090", 24.0, 20.0, "580.65.06")
    assert machine.read_memory() == machine.MemoryReading("gpu", 4.0, 24.0, "RTX 4090")
    assert machine.read_memory("cuda:1") == machine.MemoryReading("gpu", 9.0, 12.0, "RTX 3060")
    assert machine.read_memory("cpu").kind == "ram"


def test_what_this_process_takes_on_a_card(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.process_gb("cuda:0") == 3.0
    assert machine.process_gb("cuda:1") is None  # the driver doesn't tell
    assert machine.process_gb("cuda:2") is None and machine.process_gb("cpu") is None
    monkeypatch.setattr(os, "getpid", lambda: 77)  # as in a container, whose numbers are its own
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: [SimpleNamespace(pid=9)])
    assert machine.process_gb("cuda:0") is None
    monkeypatch.undo()


def test_a_driver_that_fails_tells_nothing(nvml: FakeNvml) -> None:
    nvml.broken = True
    assert machine.process_gb("cuda:0") is None


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("1", ["RTX 3060"]),
        ("1,0", ["RTX 3060", "RTX 4090"]),
        ("GPU-bbbb", ["RTX 3060"]),
        ("GPU-none", []),
        ("0,7,1", ["RTX 4090"]),  # CUDA stops at the first that is not there
        ("-1", []),
        ("", []),
    ],
)
def test_cuda_visible_devices(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert names() == expected
    assert machine.gpus() == [] or machine.gpus()[0].index == 0
    assert machine.read_memory().kind == ("gpu" if expected else "ram")


def test_a_card_that_falls_off_the_bus_is_no_card(nvml: FakeNvml) -> None:
    assert machine.gpus()
    nvml.broken = True
    assert machine.gpus() == []
    assert machine.read_memory().kind == "ram"


def test_no_driver_is_no_card(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", no_driver, raising=False)
    assert machine.gpus() == []


def test_the_real_nvml_gives_no_warning() -> None:
    code = "from realchar import machine; print(machine.read_memory().total_gb > 0)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("True", "")


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n", encoding="utf-8")
    return folder


def test_container_limits(tmp_path: Path) -> None:
    v2 = write(
        tmp_path / "v2", memory__max="2000000000", memory__current="900000000", memory__stat="inactive_file 400000000"
    )
    assert machine.cgroup_memory(v2) == (500_000_000, 2_000_000_000)
    free = write(tmp_path / "free", memory__max="max", memory__current="1", memory__stat="inactive_file 0")
    assert machine.cgroup_memory(free) is None
    write(
        tmp_path / "v1" / "memory",
        memory__limit_in_bytes="1000000000",
        memory__usage_in_bytes="300000000",
        memory__stat="total_inactive_file 100000000",
    )
    assert machine.cgroup_memory(tmp_path / "v1") == (200_000_000, 1_000_000_000)
    assert machine.cgroup_memory(tmp_path / "none") is None


def test_ram_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, memory__max="500000000", memory__current="200000000", memory__stat="inactive_file 0")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.read_ram() == machine.MemoryReading("ram", 0.2, 0.5, "RAM")
    write(tmp_path, memory__max="9" * 18)
    assert machine.read_ram().total_gb < 1e6


def test_disk_free_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert machine.disk_free(tmp_path / "a" / "b") == pytest.approx(machine.disk_free(tmp_path), rel=0.05)
