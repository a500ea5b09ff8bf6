"""What a row of the bench is to measure, as it travels to the process that does. No torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["machine", "engine", "diffusers", "vae"]
ENGINE = {"engine-model": "model", "engine-sequential": "sequential"}  # rows by our use of accelerate, with their modes
ROWS = ("resident", "stream", "lora", *ENGINE, "diffusers", "group-block", "group-leaf", "sequential", "vae")
DIFFUSERS = ("diffusers", "group-block", "group-leaf", "sequential")
BUDGETS = (4.0, 8.0, 12.0, 16.0, 24.0)  # GB
WARM_UP = 2  # steps of each run before those that count


@dataclass(frozen=True)
class Setting:
    """What all rows share. size: width and height in pixels; steps: those that count; work: folder of their results."""

    base: str
    device: str
    size: tuple[int, int]
    steps: int
    work: str
    loras: tuple[str, ...] = ()  # two files, between which is switched; or none


@dataclass(frozen=True)
class RowSpec:
    """One row, measured in one process. mode: how the weights are held; tiles: pixels of the VAE's tiles' sides."""

    name: str
    kind: Kind
    setting: Setting
    mode: str = ""
    budget_gb: float | None = None
    tiles: tuple[int, ...] = field(default=())

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RowSpec:
        data: dict[str, Any] = json.loads(text)
        setting = data.pop("setting")
        setting |= {"size": tuple(setting["size"]), "loras": tuple(setting["loras"])}
        return cls(**data | {"setting": Setting(**setting), "tiles": tuple(data["tiles"])})

    @property
    def slug(self) -> str:
        """Return the name as a part of file names."""
        return self.name.replace(" ", "-")
