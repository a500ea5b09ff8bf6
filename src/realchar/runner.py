"""Who turns jobs into events: the engine, loaded once, and again only where a job wants another offload mode."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from realchar.catalog import load_base
from realchar.convert import conversion
from realchar.errors import NotFound
from realchar.requests import prepare_options, with_choices
from realchar.schema import Job, LoraRef, Saved, Stage
from realchar.settings import Settings
from realchar.versions import get_weights

if TYPE_CHECKING:
    from realchar.engine.families.base import ModelFamily
    from realchar.engine.pipeline import Engine
    from realchar.engine.together import Make, Together, Work


Switch = Callable[[], Sequence[LoraRef] | None]


class Runner(Protocol):
    """Turns jobs into events; the real one loads the base, tests use a scripted one."""

    def load(self) -> dict[str, Any]: ...
    def work(self, job: Job, source: Path, targets: dict[str, Path], switch: Switch) -> Work[None]:
        """Do one job, for a loop; `switch` is asked between steps for other LoRA versions."""

    def joins(self, job: Job) -> bool:
        """Tell whether a job may begin beside those that are under way in the loop."""

    def loop(self, more: Callable[[], tuple[Task, Make] | None]) -> Together[Task]:
        """Return a loop that begins with one job and asks for more."""


@dataclass(eq=False)
class Task:
    """A job that this worker holds: the files that it is to write, its end once it is told, and what renews its lease."""

    job: Job
    targets: dict[str, Path]
    saved: Saved | None = None
    ended: bool = False
    held: ExitStack = field(default_factory=ExitStack)


class EngineRunner:
    """Holds the engine; the base is loaded once, and again only where a job wants another offload mode."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._engine: Engine | None = None

    def load(self) -> dict[str, Any]:
        """Load the base; returns what the front end shows about it. Raises ModelError or OutOfMemory."""
        engine = self._engine_for(self.settings)
        facts = {"base": engine.base.title, "demo": engine.base.demo, "device": engine.device_name}
        return facts | {"offload": engine.mode.value}

    @property
    def family(self) -> ModelFamily:
        assert self._engine is not None
        return self._engine.family

    def loop(self, more: Callable[[], tuple[Task, Make] | None]) -> Together[Task]:
        from realchar.engine.together import Together

        self._loop = Together(self, more)
        return self._loop

    def joins(self, job: Job) -> bool:
        settings, engine = with_choices(self.settings, job.request), self._engine
        if engine is None or not self._fits(settings):
            return False
        if (engine.memory.budget, engine.memory.strategy) != (settings.budget, settings.strategy):
            return False
        try:
            loras = [(get_weights(settings.weights, ref.name).path, ref.strength) for ref in job.request.loras]
            return engine.joins(loras)
        except (NotFound, OSError):
            return False  # its own turn is the time to fail

    def work(self, job: Job, source: Path, targets: dict[str, Path], switch: Switch) -> Work[None]:
        request, settings = job.request, with_choices(self.settings, job.request)
        if not self._fits(settings):
            yield Stage("load")
        engine = self._engine_for(settings)
        if not engine.busy:  # holds from this run on, without loading anything
            engine.memory.budget, engine.memory.strategy = settings.budget, settings.strategy
            self._loop.width = engine.memory.width(request)
        options = prepare_options(engine.base, request.size, request.long_edge, settings.max_megapixels)
        yield from conversion(engine, request, source, options, settings.weights, targets, switch)

    def _fits(self, settings: Settings) -> bool:
        """Tell whether the engine that is loaded has the offload mode of these settings."""
        engine = self._engine
        return engine is not None and engine.mode is settings.offload.resolved(on_gpu=engine.on_gpu)

    def _engine_for(self, settings: Settings) -> Engine:
        """Return the engine in the settings' offload mode; one in another mode is freed before the base is loaded."""
        from realchar.engine.devices import release
        from realchar.engine.pipeline import Engine  # torch is imported here, after the queue is already served

        if self._engine is None or not self._fits(settings):
            if self._engine is not None:
                device = self._engine.family.device
                self._engine = None
                gc.collect()  # else both would be in memory
                release(device)
            self._engine = Engine.from_settings(load_base(settings.base), settings)
        return self._engine
