"""What the process is told from outside, read once from `REALCHAR_*` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from realchar.errors import InvalidInput


def project_root() -> Path:
    """Return the checkout that this package runs from, or the working directory when it was installed as a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "weights").is_dir() else Path.cwd()


MOST_VRAM = 10_000.0  # GB
AS_MANY_AS_FIT = -1  # resident blocks
RANGES = {
    "port": (0, 65_535),
    "upload_mb": (1, 100_000),
    "max_megapixels": (1, 10_000),
    "lease_s": (0.1, 3600),
    "uploads_hours": (0, 1e6),
    "max_queued": (1, 10**6),
}


class Offload(StrEnum):
    """Where the weights are while they are not used."""

    AUTO = "auto"
    RESIDENT = "resident"
    STREAM = "stream"
    MODEL = "model"
    SEQUENTIAL = "sequential"

    @property
    def needs_card(self) -> bool:
        """Tell whether there is nothing to move without a graphics card."""
        return self in (Offload.MODEL, Offload.SEQUENTIAL)

    def resolved(self, *, on_gpu: bool) -> Offload:
        """Return the mode itself, or what `auto` means on a graphics card or on the CPU. Raises InvalidInput."""
        if self.needs_card and not on_gpu:
            raise InvalidInput(
                "offload",
                f"Offload mode {self.value!r} moves weights to a graphics card, and none is used here; choose "
                "auto, stream or resident.",
                value=self.value,
            )
        if self is Offload.AUTO:
            return Offload.STREAM if on_gpu else Offload.RESIDENT
        return self


class HostMemory(StrEnum):
    """Where streamed weights wait in RAM."""

    AUTO = "auto"
    REGISTERED = "registered"
    PINNED = "pinned"
    STAGING = "staging"


class Strategy(StrEnum):
    """How memory beyond the weights is used."""

    AUTO = "auto"
    QUALITY = "quality"
    BATCH = "batch"


class Log(StrEnum):
    """How much the log says."""

    INFO = "info"
    DEBUG = "debug"


class Attention(StrEnum):
    """Who computes attention; auto: the fastest that is as exact as torch's own choice, `sdpa`."""

    AUTO = "auto"
    SDPA = "sdpa"
    CUDNN = "cudnn"
    FLASH = "flash"
    XFORMERS = "xformers"
    FLASH_ATTN = "flash-attn"
    FLASH_ATTN_3 = "flash-attn-3"
    SAGE = "sage"


class Precision(StrEnum):
    """In which numbers the transformer's blocks are held, and in which they multiply."""

    BF16 = "bf16"  # as the engine computes: in bfloat16 on a card, in float32 on the CPU
    FP8 = "fp8"
    FP8_FAST = "fp8-fast"


@dataclass(frozen=True)
class Speed:
    """What is given for speed; each changes the result in its last digits or more, and is off unless chosen."""

    precision: Precision = Precision.BF16
    compiled: bool = False
    attention: Attention = Attention.AUTO


AS_IT_IS = Speed()


@dataclass(frozen=True)
class Settings:
    """Paths, limits and addresses; every field can be set by the variable `REALCHAR_<FIELD>`."""

    root: Path = Path()  # where the checkout is; found by itself
    data: Path = Path()  # jobs.sqlite, uploads and results; default <root>/data
    weights: Path = Path()  # LoRA versions; default <root>/weights
    base: str = ""  # a diffusers folder; default <root>/weights/demo
    device: str = "auto"  # auto, cpu, cuda, cuda:1 …
    offload: Offload = Offload.AUTO  # auto (stream on a card, else resident), resident, stream, model or sequential
    host_memory: HostMemory = HostMemory.AUTO  # where streamed weights wait: auto, registered, pinned or staging
    strategy: Strategy = Strategy.AUTO  # auto, quality or batch: what memory beyond the weights is for
    vram: float = 0.0  # budget on the graphics card in GB, for the whole process; 0: what is free
    resident_blocks: int = AS_MANY_AS_FIT  # with stream, blocks that stay on the device; -1: as the budget allows
    precision: Precision = Precision.BF16  # fp8: blocks are held as 8-bit codes; fp8-fast: and multiply as such
    attention: Attention = Attention.AUTO  # auto, sdpa, cudnn, flash, xformers, flash-attn, flash-attn-3 or sage
    compile: bool = False  # compile the blocks: faster steps, but the first picture of a kind of size waits for it
    host: str = "127.0.0.1"  # address to listen on; another one is reachable from other machines
    port: int = 7860  # port to listen on
    upload_mb: int = 40  # largest upload
    max_megapixels: int = 180  # largest picture that is decoded
    lease_s: float = 15.0  # a worker that is silent for longer has lost its job
    uploads_hours: float = 72.0  # uploads that no job needs are deleted after this time
    max_queued: int = 50  # waiting jobs of one owner
    log: Log = Log.INFO  # info, or debug: also what moves to the device

    @property
    def database(self) -> Path:
        return self.data / "jobs.sqlite"

    @property
    def files(self) -> Path:
        return self.data / "files"

    @property
    def budget(self) -> int | None:
        """Return the bytes that the process may take on a graphics card, or None: what is free."""
        return int(self.vram * 1e9) or None

    @property
    def kept_blocks(self) -> int | None:
        """Return how many blocks are to stay on the device, or None: as the budget allows."""
        return None if self.resident_blocks == AS_MANY_AS_FIT else self.resident_blocks

    @property
    def speed(self) -> Speed:
        return Speed(self.precision, self.compile, self.attention)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read the settings; `overrides` (None values ignored) win over the environment."""
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = env.get(f"REALCHAR_{field.name.upper()}")
            if text:
                values[field.name] = _parse(field.name, text, getattr(cls, field.name))
        values.update({key: value for key, value in overrides.items() if value is not None})
        settings = cls(**values)
        for name, (low, high) in RANGES.items():
            value = getattr(settings, name)
            if not low <= value <= high:  # also where it is no number
                message = f"REALCHAR_{name.upper()} is {value:g}; choose a value from {low:g} to {high:g}."
                raise InvalidInput(name, message, value=str(value))
        if not 0 <= settings.vram < MOST_VRAM:
            message = (
                f"A budget of {settings.vram:g} GB is not possible; give what the card may use, such as 8 (less than "
                f"{MOST_VRAM:g}), or 0 for all."
            )
            raise InvalidInput("vram", message, value=settings.vram)
        if settings.resident_blocks < AS_MANY_AS_FIT:
            raise InvalidInput(
                "resident_blocks",
                f"{settings.resident_blocks} resident blocks are not possible; give 0 or more, or {AS_MANY_AS_FIT} for as "
                "many as memory allows.",
                value=settings.resident_blocks,
            )
        root = project_root() if settings.root == Path() else settings.root.resolve()
        weights = root / "weights" if settings.weights == Path() else settings.weights
        return replace(
            settings,
            root=root,
            data=(root / "data" if settings.data == Path() else settings.data).resolve(),
            weights=weights.resolve(),
            base=settings.base or str(root / "weights" / "demo"),
        )


SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _parse(name: str, text: str, default: Any) -> Any:
    kind: Any = type(default) if not isinstance(default, Path) else Path
    possible = {int: "a whole number", float: "a number", bool: "1 or 0"}.get(kind, "a text")
    if kind is bool:
        kind = _switch
    if isinstance(default, StrEnum):
        *most, last = (repr(member.value) for member in type(default))
        possible = f"{', '.join(most)} or {last}"
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(
            "setting",
            f"REALCHAR_{name.upper()} is {text!r}, but {possible} is needed.",
            name=name,
            value=text,
        ) from None


def _switch(text: str) -> bool:
    if text.lower() not in SWITCH:
        raise ValueError(text)
    return SWITCH[text.lower()]
