"""LoRA versions of a run: in effect from its beginning, or from a step on when it is told to switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from realchar.engine.allotment import Allotment
from realchar.engine.denoising import Denoising
from realchar.engine.families.base import ModelFamily
from realchar.engine.work import ticking
from realchar.errors import RealCharError
from realchar.schema import Degraded, Event, InEffect, LoraRef

Files = list[tuple[LoraRef, Path]]  # versions and where they lie
Switch = Callable[[], Files | None]  # asked between steps: the versions from now on, None: as before


def versions_of(files: Files) -> list[tuple[Path, float]]:
    return [(path, ref.strength) for ref, path in files]


def use(family: ModelFamily, files: Files, step: int | None = None) -> Generator[Event, None, None]:
    """Make exactly these versions effective, and tell it where they were not. Raises ModelError, torch.OutOfMemoryError."""
    began = time.monotonic()
    if family.adapters.use(versions_of(files)):
        yield InEffect([asdict(ref) for ref, _ in files], time.monotonic() - began, step)


def switched(
    run: Denoising, memory: Allotment, switch: Switch, step: int, *, alone: bool
) -> Generator[Event, None, list[dict[str, Any]]]:
    """Let a run go on with other versions from a step on, if it is to; returns what it was switched to.

    alone: no other run shares the weights. What can't be used leaves all as it is, and is told.
    """
    try:
        files = switch()
        if files is None:
            return []
        if not alone:
            raise RealCharError("together", "pictures that share their steps share the version, too.")
        yield from memory.spared(partial(use, run.family, files, step))
    except RealCharError as error:
        yield Degraded("switch", {"step": step}, f"the version was not switched: {error.message}")
        return []
    run.table = yield from memory.spared(lambda: ticking(run.family.blocks.prepare(run.timesteps)))
    return [{"step": step, "loras": [asdict(ref) for ref, _ in files]}]
