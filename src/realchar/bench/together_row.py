"""A row of several pictures without CFG in one loop, against the same pictures one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from realchar.bench.engine_row import load_engine
from realchar.bench.peaks import ProcessMemory
from realchar.bench.spec import WARM_UP, RowSpec
from realchar.bench.steps import noise_picture
from realchar.catalog import load_base
from realchar.engine.pipeline import Engine
from realchar.presets import PROMPTS
from realchar.schema import Decoded, EditRequest, Ended, Step


def measure_together(spec: RowSpec) -> dict[str, Any]:
    """Return seconds that a step of one picture takes, alone and together, and the peak of each. Raises RealCharError."""
    setting, memory = spec.setting, ProcessMemory(spec.setting.device)
    engine = load_engine(load_base(setting.base), str(memory.device), spec)
    pictures: list[dict[int, Any]] = []
    seconds, peaks, widths = [], [], []
    for width in (1, spec.jobs):
        memory.restart()
        steps, made, ended_at = _run(engine, spec, width, memory)
        seconds.append(median(steps) / width)
        peaks.append(memory.peak_gb())
        pictures.append(made)
        widths.append(ended_at)
    alone, together = seconds
    return {
        "together": {
            "pictures": spec.jobs,
            "s_per_picture_step": {"alone": alone, "together": together},
            "throughput": alone / together,
            "peak_gb": {"alone": peaks[0], "together": peaks[1]},
            "width_at_the_end": widths[1],
            "equal": all(np.array_equal(pictures[0][i], pictures[1][i]) for i in range(spec.jobs)),
        }
    }


def _run(engine: Engine, spec: RowSpec, width: int, memory: ProcessMemory) -> tuple[list[float], dict[int, Any], int]:
    """Make all pictures; returns the seconds of the loop's steps, the pictures, and how many ran together at last."""
    setting = spec.setting
    works: Iterator[tuple[int, Any]] = iter([(i, partial(_work, engine, spec, i)) for i in range(spec.jobs)])
    loop = engine.together(lambda: next(works, None), width)
    seconds: list[float] = []
    made: dict[int, Any] = {}
    began = time.perf_counter()
    with closing(loop.run()) as events:
        for key, event in events:
            if isinstance(event, Step) and key % width == 0:  # the forwards of all are done by then
                memory.sync()
                now = time.perf_counter()
                if event.i > WARM_UP:
                    seconds.append(now - began)
                began = now
            elif isinstance(event, Ended):
                if event.error is not None:
                    raise event.error
                decoded: Decoded = event.value
                made[key] = np.asarray(decoded.image)
    assert len(seconds) == setting.steps * spec.jobs // width
    return seconds, made, loop.width


def _work(engine: Engine, spec: RowSpec, i: int) -> Any:
    setting = spec.setting
    request = EditRequest(prompt=PROMPTS["enhanced"], steps=WARM_UP + setting.steps, cfg=1.0, seed=i)
    return engine.work(request, noise_picture(setting.size), (0, 0, *setting.size), [])
