"""A runner that plays a script instead of an engine: for tests of the worker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch

from realchar.engine.together import Ask, Together, Work
from realchar.schema import Event, Job, Saved

Script = Callable[[Job, Path, dict[str, Path]], Iterator[Event | Ask]]


class ScriptedRunner:
    blocks, device = None, torch.device("cpu")

    def __init__(self, script: Script, load_error: Exception | None = None, width: int = 1) -> None:
        self.width = width
        self.script = script
        self.load_error = load_error

    def load(self) -> dict[str, Any]:
        if self.load_error is not None:
            raise self.load_error
        return {"base": "scripted", "demo": True, "device": "none"}

    def work(self, job: Job, source: Path, targets: dict[str, Path], switch: Any = None) -> Work[None]:
        self.switch = switch
        yield from self.script(job, source, targets)

    def joins(self, job: Job) -> bool:
        return self.width > 1

    def loop(self, more: Any) -> Together[Any]:
        return Together(self, more, self.width)

    @property
    def family(self) -> Any:
        return self

    def velocities(self, branches: list[Any], wanted: Any) -> Generator[None, None, list[Any]]:
        yield
        return []


def write_all(targets: dict[str, Path]) -> Saved:
    for path in targets.values():
        path.write_bytes(b"png")
    return Saved({role: path.name for role, path in targets.items()}, {"request": {}}, 0.1)
