"""Requests made whole: checked against what is possible, LoRA names resolved, the seed drawn, sizes bound to the base."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from realchar.catalog import BaseInfo
from realchar.errors import InvalidInput, too_many_blocks
from realchar.headers import read_parts
from realchar.images import PrepareOptions
from realchar.machine import has_card
from realchar.presets import MAX_CFG, MAX_STEPS, get_preset
from realchar.schema import EditRequest, LoraRef, SizePolicy
from realchar.settings import MOST_VRAM, Offload, Settings, Strategy
from realchar.versions import get_weights, report_of, target_of_base

MAX_SEED = 2**32 - 1
RANDOM_SEED = -1
TILES = (64, 4096)  # pixels of a tile's side
MOST_LORAS = 8  # at once
MAX_PROMPT = 4000  # characters; the text encoder's own limit is 1024 tokens


def prepare_options(
    base: BaseInfo, size: SizePolicy, long_edge: int | None, max_megapixels: int = 180
) -> PrepareOptions:
    """Return how a picture is prepared for this base: the policy, bound to the base's own limits."""
    limit = min(long_edge or base.long_edge, base.long_edge)
    area = base.native_area if size == "native" else None
    # A tighter limit is there to be quick, and "native" enlarges by itself.
    work_edge = base.work_edge if size == "safe" and long_edge is None else None
    return PrepareOptions(long_edge=limit, area=area, work_edge=work_edge, max_megapixels=max_megapixels)


def check_blocks(settings: Settings, base: BaseInfo) -> None:
    """Raise InvalidInput where the offload mode is not for this machine, or more blocks are to stay on the device than
    the base has; ModelError for its weights.
    """
    mode = settings.offload.resolved(on_gpu=has_card(settings.device))
    if mode is not Offload.STREAM or settings.kept_blocks is None:
        return
    number = read_parts(base.path).blocks
    if settings.kept_blocks > number:
        raise too_many_blocks(settings.kept_blocks, number)


def with_choices(settings: Settings, request: EditRequest) -> Settings:
    """Return the settings for one job: the request's own choices where it has any, never beyond the app's budget."""
    budgets = [budget for budget in (settings.vram, request.vram) if budget]
    return replace(
        settings,
        offload=Offload(request.offload or settings.offload),
        vram=min(budgets, default=0.0),
        strategy=Strategy(request.strategy or settings.strategy),
    )


def check_choices(request: EditRequest, settings: Settings, *, on_gpu: bool) -> None:
    """Raise InvalidInput for a choice that can't be, or that the app, as it is set, or this machine can't follow."""
    _check_choice_values(request)
    if request.vram is not None and 0 < settings.vram < request.vram:
        message = f"A budget of {request.vram:g} GB is more than the app's own; choose {settings.vram:g} or less."
        raise InvalidInput("vram", message, value=request.vram, most=settings.vram)
    if request.offload is not None:
        Offload(request.offload).resolved(on_gpu=on_gpu)


def checked(request: EditRequest, weights: Path, base: BaseInfo) -> EditRequest:
    """Return the request with its seed drawn and its LoRA names resolved, or raise what is wrong with it."""
    check_values(request)
    loras = checked_loras(request.loras, weights, base)
    seed = secrets.randbelow(MAX_SEED + 1) if request.seed == RANDOM_SEED else request.seed
    return replace(request, seed=seed, loras=loras)


def checked_loras(loras: Sequence[LoraRef], weights: Path, base: BaseInfo) -> tuple[LoraRef, ...]:
    """Return LoRA versions by their names in the listing.

    Raises NotFound, and InvalidInput for values that can't be and for a version that can't be used with this base, all of
    its numbers looked at: a job that ends in noise costs more than that.
    """
    check_lora_values(loras)
    found = []
    for ref in loras:
        info = get_weights(weights, ref.name)
        report = report_of(info, target_of_base(base), look=True)
        if report.action == "reject":
            raise InvalidInput(report.code, report.reason, name=info.name)
        found.append(replace(ref, name=info.name))
    if len({ref.name for ref in found}) < len(found):
        raise InvalidInput("loras", "A LoRA version is named twice; name it once, with a strength of its own.")
    return tuple(found)


def check_lora_values(loras: Sequence[LoraRef]) -> None:
    """Raise InvalidInput for names and strengths that can't be, and for too many of them."""
    if len(loras) > MOST_LORAS:
        message = f"{len(loras)} LoRA versions at once are too many; choose {MOST_LORAS} or fewer."
        raise InvalidInput("loras", message, value=len(loras))
    for ref in loras:
        _check_range("strength", ref.strength, -2, 2)
        check_text("weights", ref.name)


def check_values(request: EditRequest) -> None:
    """Raise InvalidInput for a value that can't be; whether its LoRA versions are there is not looked at."""
    _check_range("steps", request.steps, 1, MAX_STEPS)
    _check_range("cfg", request.cfg, 1, MAX_CFG)
    if request.seed != RANDOM_SEED:
        _check_range("seed", request.seed, 0, MAX_SEED, ", or -1 for a random one,")
    if request.long_edge is not None:
        _check_range("long_edge", request.long_edge, 32, 4096)
    if request.tile is not None:
        _check_range("tile", request.tile, *TILES)
    check_lora_values(request.loras)
    if request.size not in ("safe", "native"):
        raise InvalidInput("size", f"Size is {request.size!r}, but 'safe' or 'native' is possible.", value=request.size)
    if request.preset != "custom":
        get_preset(request.preset)
    _check_choice_values(request)
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        check_text(name, text)
        if len(text) > MAX_PROMPT:
            raise InvalidInput("prompt_long", f"The prompt is longer than {MAX_PROMPT} characters; shorten it.")
    if not request.prompt.strip():
        raise InvalidInput("prompt", "The prompt is empty; say what to do with the picture.")


_LABELS = {
    "steps": "Steps",
    "cfg": "CFG",
    "seed": "Seed",
    "long_edge": "Long edge",
    "tile": "Tile",
    "strength": "Strength",
}


def _check_range(name: str, value: float, low: float, high: float, more: str = "") -> None:
    if not low <= value <= high:  # not a number is in no range
        message = f"{_LABELS[name]} is {value}, but {low:g} to {high:.10g}{more} is possible."
        raise InvalidInput(name, message, value=str(value))


def _check_choice_values(request: EditRequest) -> None:
    _check_choice("offload", "Offload mode", request.offload, [*Offload])
    _check_choice("strategy", "Strategy", request.strategy, [*Strategy])
    if request.vram is not None and not 0 < request.vram < MOST_VRAM:
        message = f"A budget of {request.vram:g} GB is not possible; give what the card may use, such as 8, or none."
        raise InvalidInput("vram", message, value=str(request.vram))


def _check_choice(name: str, label: str, value: str | None, possible: Sequence[str]) -> None:
    if value is not None and value not in possible:
        one_of = f"{', '.join(possible[:-1])} or {possible[-1]}"
        raise InvalidInput(name, f"{label} is {value!r}, but {one_of} is possible.", value=value)


def check_text(name: str, text: str) -> None:
    """Raise InvalidInput for what looks like text and can't be stored or shown as such: half characters, and NUL."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidInput("text", f"{name} holds characters that are no text; type it anew.", name=name)
