"""One run of the engine with a clock: seconds a step, when the first one began, and what each stage took."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from realchar.bench.peaks import ProcessMemory
from realchar.bench.spec import WARM_UP
from realchar.engine.pipeline import Engine
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import Decoded, Degraded, EditRequest, LoraRef, Planned, Stage, Step, Tick

CFG = 4.0  # the model makers' own setting


@dataclass
class Clock:
    """What a run told. Times are those of `time.perf_counter`; the run may have been closed before its end."""

    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)  # when each began
    peaks: dict[str, float] = field(default_factory=dict)  # GB of live tensors in each, on a card
    ticks: list[float] = field(default_factory=list)  # from the stage `denoise` to the first step's end
    steps: list[float] = field(default_factory=list)  # when each ended
    plan: Planned | None = None
    degraded: list[str] = field(default_factory=list)
    image: Image.Image | None = None

    @property
    def first_step_began(self) -> float:
        """Return when the first step began: behind it there is a tick for each block, before it those of the table."""
        assert self.plan is not None
        before = len(self.ticks) - self.plan.blocks
        return self.ticks[before - 1] if before > 0 else self.stages["denoise"]

    @property
    def first_step_s(self) -> float:
        return self.steps[0] - self.first_step_began

    @property
    def step_s(self) -> float:
        """Return the median of the steps after the warm-up."""
        return median(b - a for a, b in zip(self.steps[WARM_UP - 1 :], self.steps[WARM_UP:], strict=False))


def noise_picture(size: tuple[int, int]) -> Image.Image:
    """Return a picture of noise, the same for a size everywhere."""
    width, height = size
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8), "RGB")


def timed_run(
    engine: Engine,
    size: tuple[int, int],
    steps: int,
    memory: ProcessMemory,
    *,
    cfg: float = CFG,
    lora: str | None = None,
    first_step_only: bool = False,
) -> Clock:
    """Run a whole conversion of `steps` steps after the warm-up, or up to the end of its first step. Raises RealCharError."""
    request = EditRequest(
        prompt=PROMPTS["enhanced"],
        negative_prompt=NEGATIVE,
        steps=WARM_UP + steps,
        cfg=cfg,
        loras=() if lora is None else (LoraRef(Path(lora).stem),),
    )
    picture = noise_picture(size)
    clock = Clock()
    stage = ""
    with closing(engine.run(request, picture, (0, 0, *size), [] if lora is None else [Path(lora)])) as events:  # type: ignore[type-var]
        for event in events:
            if not _heard(event, clock, stage):
                continue
            memory.sync()
            now = time.perf_counter()
            if isinstance(event, Stage):
                _enter(clock, stage, event.stage, memory, now)
                stage = event.stage
            elif isinstance(event, Tick):
                clock.ticks.append(now)
            elif isinstance(event, Step):
                clock.steps.append(now)
            else:
                _take(clock, event)
            if first_step_only and clock.steps:
                break
    _enter(clock, stage, "", memory, time.perf_counter())
    return clock


def _heard(event: Any, clock: Clock, stage: str) -> bool:
    """Tell whether to stop the clock here: waiting for the card at every block would change what is measured."""
    return not isinstance(event, Tick) or (stage == "denoise" and not clock.steps)


def _enter(clock: Clock, before: str, stage: str, memory: ProcessMemory, now: float) -> None:
    peak = memory.stage_peak_gb()
    if before and peak is not None:
        clock.peaks[before] = peak
    if stage:
        clock.stages[stage] = now
    clock.ended = now


def _take(clock: Clock, event: Any) -> None:
    if isinstance(event, Planned):
        clock.plan = event
    elif isinstance(event, Degraded):
        clock.degraded.append(event.text)
    elif isinstance(event, Decoded):
        clock.image = event.image


def plan_json(plan: Planned | None) -> dict[str, Any]:
    return {} if plan is None else dataclasses.asdict(plan)
