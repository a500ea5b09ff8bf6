"""The one place where the bench loads an engine, so that it measures what the app would run."""

from __future__ import annotations

from realchar.catalog import BaseInfo
from realchar.engine.pipeline import Engine
from realchar.machine import GB
from realchar.settings import Offload


def load_engine(base: BaseInfo, device: str, mode: Offload, budget_gb: float | None) -> Engine:
    """Load a base with its weights held as `mode` says, within `budget_gb` of memory for the whole process.

    Streaming without a budget keeps no block resident, the least that it can take. Raises ModelError, OutOfMemory,
    InvalidInput.
    """
    if budget_gb is None:
        return Engine.load(base, device, mode, resident_blocks=0)
    return Engine.load(base, device, mode, budget=int(budget_gb * GB))
