"""The factor by which a LoRA file's product counts, from wherever the trainer wrote it down. No torch.

In order: `alpha` beside the module; `lora_adapter_metadata` in the header (diffusers); `adapter_config.json` beside the
file (PEFT); `ss_network_alpha` in the header (kohya). Where none is, alpha is the rank, and the factor 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_CONFIG_BYTES = 2_000_000


@dataclass(frozen=True)
class Scales:
    """What a file says about its scales outside of its tensors; `source` names the place, `said` what was odd."""

    alpha: float | None = None
    patterns: Mapping[str, float] = field(default_factory=dict)  # by the ends of the modules' names
    by_root: bool = False  # alpha / √rank instead of alpha / rank (rslora)
    source: str = ""
    said: tuple[str, ...] = ()

    def scale(self, module: str, rank: int, own: float | None) -> float:
        """Return the factor for a module of a rank, whose own alpha is `own`."""
        alpha = own if own is not None else self._stated(module)
        if not alpha:  # kohya reads 0 as: as large as the rank
            return 1.0
        return alpha / (math.sqrt(rank) if self.by_root and own is None else rank)

    def _stated(self, module: str) -> float | None:
        ends = (alpha for end, alpha in self.patterns.items() if module == end or module.endswith(f".{end}"))
        return next(ends, self.alpha)


def scales_of(file: Path, metadata: Mapping[str, str]) -> Scales:
    """Read what a file says about its scales. Never raises: what can't be read is a note."""
    text = metadata.get("lora_adapter_metadata")
    if text is not None:
        return _from_config(text, "its metadata")
    beside = file.with_name("adapter_config.json")
    try:
        if beside.is_file() and beside.stat().st_size <= MOST_CONFIG_BYTES:
            return _from_config(beside.read_text(encoding="utf-8"), beside.name)
    except (OSError, ValueError):
        pass
    told = metadata.get("ss_network_alpha")
    alpha = _number(told)
    if told not in (None, "None") and alpha is None:
        return _unreadable("its metadata")
    return Scales(alpha, source="its metadata") if alpha else Scales()


def _from_config(text: str, source: str) -> Scales:
    try:
        config = _flat(json.loads(text))
        patterns = config.get("alpha_pattern") or {}
        if config.get("lora_alpha") is not None and _number(config["lora_alpha"]) is None:
            return _unreadable(source)
        return Scales(
            _number(config.get("lora_alpha")),
            {
                str(end).removeprefix("transformer."): alpha
                for end, value in patterns.items()
                if (alpha := _number(value))
            },
            config.get("use_rslora") is True,
            source,
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return _unreadable(source)


def _unreadable(source: str) -> Scales:
    return Scales(said=(f"has a scale in {source} that can't be read, left aside.",))


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return PEFT's keys without the component's name that diffusers puts before them."""
    own = {key: value for key, value in config.items() if not key.startswith(("text_encoder.", "unet."))}
    return {key.removeprefix("transformer."): value for key, value in own.items()}


def _number(value: object) -> float | None:
    """Return a finite number, also one that is written as text, or None."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
