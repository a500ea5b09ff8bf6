"""What the page asks of the service when it is built or opened: choices, limits, and the data its script works with."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realchar.presets import NEGATIVE, PRESETS, PROMPTS, small_edge
from realchar.settings import Offload, Strategy
from ui.texts import TEXTS

if TYPE_CHECKING:
    from realchar.service import Service

NO_LORA = ":none"  # a colon is in no file name that the listing could hold on Windows, nor a key without a name

Choice = tuple[str, str]
OFFLOAD_ORDER = (Offload.STREAM, Offload.RESIDENT, Offload.MODEL, Offload.SEQUENTIAL)


def weight_choices(service: Service) -> list[Choice]:
    """Return (label, listing key) of each LoRA version that fits the base, newest first, and last the choice of none."""
    rows = [row for row in service.versions() if row["action"] != "reject"]
    times = Counter(row["version"] for row in rows)
    choices = [(_label(row, alone=times[row["version"]] == 1), row["name"]) for row in rows]
    return [*choices, (TEXTS["set.version.none"], NO_LORA)]


def further_choices(service: Service) -> list[Choice]:
    """Return the same choices for a further LoRA, none first."""
    *versions, none = weight_choices(service)
    return [(TEXTS["set.further.none"], none[1]), *versions]


def _label(row: dict[str, Any], *, alone: bool) -> str:
    """Return how the list names a version; `alone`: no other has its number."""
    parts = [f"v{row['version']}" if row["version"] is not None and alone else row["name"]]
    parts += [TEXTS["set.version.newest"]] if row["default"] else []
    parts += [TEXTS["set.version.size"].format(mb=f"{row['bytes'] / 1e6:.3g}")]
    parts += (
        [TEXTS["set.version.part"].format(m=row["matched"], n=row["total"])] if row["matched"] < row["total"] else []
    )
    return " · ".join(parts)


def default_weights(service: Service) -> str:
    """Return the newest version that fits the base, or the choice of none."""
    return next((row["name"] for row in service.versions() if row["default"]), NO_LORA)


def size_choices(service: Service) -> list[Choice]:
    base = service.base()
    side = math.isqrt(base.native_area)
    native = f"{base.native_area / 1e6:.0f} MP" if base.native_area >= 950_000 else f"{side}×{side}"
    return [
        (TEXTS["set.size.small"].format(px=small_edge(base.long_edge)), "small"),
        (TEXTS["set.size.safe"].format(px=base.long_edge), "safe"),
        (TEXTS["set.size.native"].format(name=native), "native"),
    ]


def on_gpu(service: Service) -> bool:
    return bool(service.stats()["memory"]["memory"] == "gpu")


def offload_choices(service: Service) -> list[Choice]:
    """Return (label, mode) of each mode that this machine can do; the first, "auto", is as the app is set."""
    card = on_gpu(service)
    own = TEXTS[f"set.offload.{service.settings.offload.resolved(on_gpu=card)}"]
    modes = [mode for mode in OFFLOAD_ORDER if card or not mode.needs_card]
    automatic = TEXTS["set.offload.auto"].format(mode=own.lower())
    return [(automatic, "auto"), *((TEXTS[f"set.offload.{mode}"], mode.value) for mode in modes)]


def strategy_choices() -> list[Choice]:
    return [(TEXTS[f"set.strategy.{strategy}"], strategy.value) for strategy in Strategy]


def most_vram(service: Service) -> float:
    """Return the largest budget in GB that a job may ask for: the app's own, or what the card has."""
    total: float = math.floor(service.stats()["memory"]["total_gb"])
    return min(service.settings.vram or total, total)


def vram_info(service: Service) -> str:
    if not on_gpu(service):
        return TEXTS["set.vram.info.cpu"]
    own = service.settings.vram
    return TEXTS["set.vram.info.own"].format(gb=f"{own:g}") if own else TEXTS["set.vram.info"]


def preset_table() -> dict[str, dict[str, Any]]:
    """Return what each preset sets, by its name."""
    return {
        preset.name: {
            "cfg": preset.cfg,
            "steps": preset.steps,
            "size": "small" if preset.small else preset.size,
            "strategy": preset.strategy.value,
            "tip": preset.tip,
        }
        for preset in PRESETS.values()
    }


def boot(service: Service, samples: Path, fields: list[str]) -> dict[str, Any]:
    """Return the data that the page's script starts with; `fields` are the form's, in the order of their values."""
    base = service.base()
    kinds = (".png", ".jpg", ".jpeg", ".webp")
    return {
        "texts": TEXTS,
        "fields": fields,
        "presets": preset_table(),
        "prompts": PROMPTS,
        "negative": NEGATIVE,
        "none": NO_LORA,
        "sizes": {
            "small": {"size": "safe", "long_edge": small_edge(base.long_edge)},
            "safe": {"size": "safe", "long_edge": None},
            "native": {"size": "native", "long_edge": None},
        },
        "choices": {  # what a kept form may hold: of another day, the machine or the app's own setting was another
            "offload": [value for _, value in offload_choices(service)],
            "strategy": [value for _, value in strategy_choices()],
        },
        "most_vram": most_vram(service) if on_gpu(service) else 0,
        "upload_mb": service.settings.upload_mb,
        "notice": base.notice,
        "base": base.title,
        "samples": sorted(file.name for file in samples.iterdir() if file.suffix.lower() in kinds)
        if samples.is_dir()
        else [],
    }


def script_json(data: dict[str, Any]) -> str:
    """Return JSON that is safe inside a `<script>` element."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
