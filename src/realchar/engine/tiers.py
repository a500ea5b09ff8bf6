"""Where streamed weights wait on the host: a pure rule of numbers, so that every front end can say it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["plain", "registered", "pinned", "staging"]

RAM_RESERVE_GB = 4.0  # left to the system, to Python and to what the run itself needs in RAM


@dataclass(frozen=True)
class HostFacts:
    """What the rule looks at. `refused` holds the tiers that the driver refused, each with what it said."""

    on_gpu: bool
    system: str  # as `platform.system()` says it
    ram_free_gb: float
    weights_gb: float
    refused: Mapping[Tier, str] = field(default_factory=dict)


TIERS: tuple[Tier, ...] = ("registered", "pinned", "staging")  # of a card, the fastest first


def only(tier: str) -> dict[Tier, str]:
    """Return what counts as refused where one tier is asked for: all faster ones; `auto` refuses none."""
    return {} if tier == "auto" else dict.fromkeys(TIERS[: TIERS.index(tier)], f"{tier} was asked for")


@dataclass(frozen=True)
class TierChoice:
    """The tier and why, in words for `doctor` and the log."""

    tier: Tier
    reason: str


def choose_tier(facts: HostFacts) -> TierChoice:
    """Choose the fastest tier that the machine allows; `staging` and `plain` are never refused.

    registered: the mapped files, locked in RAM for the card; pinned: a locked copy of them, for which RAM is needed
    beyond the page cache; staging: a small ring of locked buffers that threads fill; plain: read where they lie.
    """
    if not facts.on_gpu:
        return TierChoice("plain", "no card to copy to: blocks are read from the mapped files")
    needed = facts.weights_gb + RAM_RESERVE_GB
    if facts.ram_free_gb < needed:
        free = f"{facts.ram_free_gb:.1f} GB of RAM are free, {needed:.1f} GB are needed to keep the weights locked"
        return TierChoice("staging", f"{free}: they pass through a small buffer, which is slower")
    said = "; ".join(f"{tier}: {why}" for tier, why in facts.refused.items())
    if "registered" not in facts.refused:
        if facts.system == "Linux":
            return TierChoice("registered", "the mapped files are locked in RAM and copied from directly")
        said = f"registered: not tried on {facts.system}"
    if "pinned" not in facts.refused:
        return TierChoice("pinned", f"a locked copy of the weights is in RAM ({said})")
    return TierChoice("staging", f"no large memory is locked ({said}): weights pass through a small buffer")
