"""The values that travel between the parts: requests, jobs and the closed union of events, with their JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from PIL.Image import Image

SizePolicy = Literal["safe", "native"]
StageName = Literal["load", "preprocess", "encode_text", "encode_image", "plan", "denoise", "decode", "finish"]


MACHINE_CHOICES = ("offload", "vram", "strategy")  # of a request: how a machine is used, never what comes out


@dataclass(frozen=True)
class LoraRef:
    """One LoRA version by its listing name, with its strength."""

    name: str
    strength: float = 1.0


@dataclass(frozen=True)
class EditRequest:
    """Everything that decides what the picture will look like; the same request and seed give the same picture.

    offload, vram (GB) and strategy say how this machine is used and never change the picture; None: as the app is set.
    """

    prompt: str
    negative_prompt: str = " "
    steps: int = 20
    cfg: float = 7.0
    seed: int = 0
    size: SizePolicy = "safe"
    long_edge: int | None = None  # a tighter limit than the base's own, in pixels
    tile: int | None = None  # pixels of the side of the VAE's tiles; None: as large as memory allows
    loras: tuple[LoraRef, ...] = ()
    preset: str = "custom"
    stamp: bool = True
    offload: str | None = None
    vram: float | None = None
    strategy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"loras": [dataclasses.asdict(ref) for ref in self.loras]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EditRequest:
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["loras"] = tuple(LoraRef(**ref) for ref in data.get("loras", ()))
        return cls(**values)


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # the engine stopped twice on it

    @property
    def ended(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True)
class Job:
    """A row of the queue. Times are seconds since the epoch."""

    id: str
    owner: str
    state: JobState
    request: EditRequest
    upload: str  # id of the upload that it converts
    source_name: str  # the user's own file name, for display and download names only
    created: float
    started: float | None = None
    finished: float | None = None
    attempt: int = 0
    cancelling: bool = False
    error: dict[str, Any] | None = None  # RealCharError.to_json()
    result: dict[str, Any] | None = None  # Saved.to_json() less the kind


# ---- events: what a running edit says, in this order; UI, CLI and API are readers of this one stream


@dataclass(frozen=True)
class Stage:
    """A stage begins."""

    kind = "stage"
    stage: StageName


@dataclass(frozen=True)
class Prepared:
    """The picture was prepared: sizes in pixels (width, height), and what was repaired."""

    kind = "prepared"
    source: tuple[int, int]
    prepared: tuple[int, int]
    padded: tuple[int, int]
    notes: list[dict[str, Any]]


@dataclass(frozen=True)
class Planned:
    """How the run will use the machine: offload mode, resident blocks of all blocks, VAE tiles, device, dtype.

    budget_gb: what the process may take, in GB of 10**9 bytes; None: what is free.
    """

    kind = "plan"
    mode: str
    resident: int
    blocks: int
    vae_tiles: int
    device: str
    dtype: str
    attention: str
    budget_gb: float | None = None
    precision: str = "bf16"  # as in `realchar.settings.Precision`
    compiled: bool = False


@dataclass(frozen=True)
class Tick:
    """A transformer block ended. Never stored: it is the point where a run can be closed, and proof of life."""

    kind = "tick"


@dataclass(frozen=True)
class Step:
    """Denoising step `i` of `n` ended (1-based). `preview` is the predicted picture at latent size."""

    kind = "step"
    i: int
    n: int
    elapsed_s: float
    eta_s: float
    preview: Image | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Memory:
    """Memory in use, in GB of 10**9 bytes: of the graphics card, or of RAM where the base runs on the CPU."""

    kind = "memory"
    memory: Literal["gpu", "ram"]
    used_gb: float
    total_gb: float


@dataclass(frozen=True)
class Degraded:
    """Something was given up so that the job can go on; `code` and `args` say what and why, `text` says it in English."""

    kind = "degraded"
    code: str
    args: dict[str, Any]
    text: str


@dataclass(frozen=True)
class InEffect:
    """Exactly these LoRA versions (name, strength) are added to the weights now, `seconds` after they were asked for.

    step: the first that they count for, where a run was under way; None: from its beginning.
    """

    kind = "in_effect"
    loras: list[dict[str, Any]]
    seconds: float
    step: int | None = None


@dataclass(frozen=True)
class Decoded:
    """The finished picture, cropped back to the prepared size. Never stored. `facts` go into the file's metadata."""

    kind = "decoded"
    image: Image = field(compare=False, repr=False)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """The result is on disk. `files` maps role (`stamped`, `clean`, `before`) to a file name; `params` is the JSON block."""

    kind = "saved"
    files: dict[str, str]
    params: dict[str, Any]
    seconds: float


Event = Stage | Prepared | Planned | Tick | Step | Memory | Degraded | InEffect | Decoded | Saved


@dataclass(frozen=True)
class Ended:
    """A run in a loop of several is over: `value` is what it returned, unless `error` says why there is none."""

    value: Any = None
    error: Exception | None = None


def event_json(event: Event) -> dict[str, Any]:
    """Return the event's fields that have a JSON form (pictures are left out)."""
    return {
        f.name: getattr(event, f.name)
        for f in dataclasses.fields(event)
        if not isinstance(getattr(event, f.name), Image) and f.name != "preview"
    }
