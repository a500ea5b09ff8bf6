"""A runner that plays a script instead of an engine: for tests of the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from realchar.schema import Event, Job, Saved

Script = Callable[[Job, Path, dict[str, Path]], Iterator[Event]]


class ScriptedRunner:
    def __init__(self, script: Script, load_error: Exception | None = None) -> None:
        self.script = script
        self.load_error = load_error

    def load(self) -> dict[str, Any]:
        if self.load_error is not None:
            raise self.load_error
        return {"base": "scripted", "demo": True, "device": "none"}

    def run(self, job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        return self.script(job, source, targets)


def write_all(targets: dict[str, Path]) -> Saved:
    for path in targets.values():
        path.write_bytes(b"png")
    return Saved({role: path.name for role, path in targets.items()}, {"request": {}}, 0.1)
