"""A row of many small conversions in one process, which shows whether memory stays flat."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from realchar.bench.engine_row import load_engine
from realchar.bench.peaks import ProcessMemory
from realchar.bench.spec import RowSpec
from realchar.bench.steps import noise_picture
from realchar.catalog import load_base
from realchar.engine.pipeline import Engine
from realchar.machine import GB, process_gb
from realchar.presets import PROMPTS
from realchar.schema import Decoded, EditRequest, LoraRef, Tick

CANCEL_EVERY, CANCEL_AT = 7, 20  # one in so many is closed, at the first to the 20th of its ticks in turn
PLAIN_EVERY = 3  # one in so many runs without CFG
FLAT = 0.03


def measure_long(spec: RowSpec) -> dict[str, Any]:
    """Return how memory after each conversion drifts: medians of the first and the last quarter. Raises RealCharError."""
    setting, memory = spec.setting, ProcessMemory(spec.setting.device)
    engine = load_engine(load_base(setting.base), str(memory.device), spec)
    readings: dict[str, list[float]] = {}  # after each conversion, cancelled ones too
    began, cancelled = time.perf_counter(), 0
    for i in range(spec.jobs):
        cancelled += not _convert(engine, spec, i)
        for name, value in _now(memory).items():
            readings.setdefault(name, []).append(value)
    quarter = max(1, spec.jobs // 4)
    ends = {name: (median(values[:quarter]), median(values[-quarter:])) for name, values in readings.items()}
    drift = {name: (last - first) / first if first else 0.0 for name, (first, last) in ends.items()}
    return {
        "long": {
            "jobs": spec.jobs,
            "cancelled": cancelled,
            "switches": (spec.jobs - 1) // spec.switch_every,
            "seconds": time.perf_counter() - began,
            "gb": {name: {"first": first, "last": last} for name, (first, last) in ends.items()},
            "readings": readings,
            "drift": drift,
            "flat": all(abs(value) <= FLAT for value in drift.values()),
        }
    }


def _convert(engine: Engine, spec: RowSpec, i: int) -> bool:
    """Make a picture; False where it is cancelled midway."""
    setting = spec.setting
    lora = Path(setting.loras[i // spec.switch_every % len(setting.loras)])
    request = EditRequest(
        prompt=PROMPTS["base"],
        steps=setting.steps,
        cfg=1.0 if i % PLAIN_EVERY == 0 else 4.0,
        seed=i,
        loras=(LoraRef(lora.stem),),
    )
    ticks, last = 0, 1 + i // CANCEL_EVERY % CANCEL_AT if i % CANCEL_EVERY == CANCEL_EVERY - 1 else None
    with closing(engine.run(request, noise_picture(setting.size), (0, 0, *setting.size), [lora])) as events:  # type: ignore[type-var]
        for event in events:
            ticks += isinstance(event, Tick)
            if ticks == last:
                return False
            if isinstance(event, Decoded):
                return True
    return False


def _now(memory: ProcessMemory) -> dict[str, float]:
    found = {"ram": psutil.Process().memory_info().rss / GB}
    if memory.on_gpu:
        memory.sync()
        found["allocated"] = torch.cuda.memory_allocated(memory.device) / GB
        found["reserved"] = torch.cuda.memory_reserved(memory.device) / GB
        if (driver := process_gb(str(memory.device))) is not None:
            found["driver"] = driver
    return found
