"""What a row of the bench is to measure, as it travels to the process that does. No torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from realchar.settings import AS_IT_IS, Attention, Offload, Precision, Speed

Kind = Literal["machine", "engine", "together", "long", "attention", "diffusers", "vae"]
ROWS = (
    "resident",
    "stream",
    "compiled",
    "fp8",
    "fp8-fast",
    "pinned",
    "staging",
    "together",
    "long",
    "attention",
    "engine-model",
    "engine-sequential",
    "lora",
    "diffusers",
    "group-block",
    "group-leaf",
    "sequential",
    "vae",
)
# What is given for speed, at the least and the most of the budgets; 8-bit rows are compiled too.
SPEEDS = {
    "compiled": Speed(compiled=True),
    "fp8": Speed(Precision.FP8, compiled=True),
    "fp8-fast": Speed(Precision.FP8_FAST, compiled=True),
}
# Rows by our own use of accelerate, with their modes.
ENGINE = {"engine-model": Offload.MODEL, "engine-sequential": Offload.SEQUENTIAL}
TIERS = ("pinned", "staging")  # ways in which weights wait that are measured beside the one that is chosen
DIFFUSERS = ("diffusers", "group-block", "group-leaf", "sequential")
BUDGETS = (4.0, 8.0, 12.0, 16.0, 24.0)  # GB
LONG_SIZE, LONG_STEPS = (256, 256), 2  # of the pictures of a long run
SWITCH_EVERY = 5  # of them have the same LoRA version
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
    speed: Speed = AS_IT_IS
    host_memory: str = "auto"
    jobs: int = 0  # how many pictures are made, together or one after another
    switch_every: int = SWITCH_EVERY

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RowSpec:
        data: dict[str, Any] = json.loads(text)
        setting = data.pop("setting")
        setting |= {"size": tuple(setting["size"]), "loras": tuple(setting["loras"])}
        speed = Speed(
            Precision(data["speed"]["precision"]), data["speed"]["compiled"], Attention(data["speed"]["attention"])
        )
        return cls(**data | {"setting": Setting(**setting), "tiles": tuple(data["tiles"]), "speed": speed})

    @property
    def slug(self) -> str:
        """Return the name as a part of file names."""
        return self.name.replace(" ", "-")
