"""Requests made whole: checked against what is possible, LoRA names resolved, the seed drawn, sizes bound to the base."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from pathlib import Path

from realchar.catalog import BaseInfo, get_weights
from realchar.errors import InvalidInput
from realchar.images import PrepareOptions
from realchar.presets import MAX_CFG, MAX_STEPS
from realchar.schema import EditRequest, SizePolicy

MAX_SEED = 2**32 - 1
MAX_PROMPT = 4000  # characters; the text encoder's own limit is 1024 tokens


def prepare_options(
    base: BaseInfo, size: SizePolicy, long_edge: int | None, max_megapixels: int = 180
) -> PrepareOptions:
    """Return how a picture is prepared for this base: the policy, bound to the base's own limits."""
    limit = min(long_edge or base.long_edge, base.long_edge)
    area = base.native_area if size == "native" else None
    return PrepareOptions(long_edge=limit, area=area, max_megapixels=max_megapixels)


def checked(request: EditRequest, weights: Path) -> EditRequest:
    """Return the request with its seed drawn and its LoRA names resolved, or raise what is wrong with it."""
    if not 1 <= request.steps <= MAX_STEPS:
        raise InvalidInput("steps", f"Steps is {request.steps}, but 1 to {MAX_STEPS} is possible.", value=request.steps)
    if not (math.isfinite(request.cfg) and 1 <= request.cfg <= MAX_CFG):
        raise InvalidInput("cfg", f"CFG is {request.cfg}, but 1 to {MAX_CFG:g} is possible.", value=str(request.cfg))
    if request.seed > MAX_SEED:
        raise InvalidInput("seed", f"Seed is {request.seed}, but 0 to {MAX_SEED} is possible.", value=request.seed)
    if request.size not in ("safe", "native"):
        raise InvalidInput("size", f"Size is {request.size!r}, but 'safe' or 'native' is possible.", value=request.size)
    if not request.prompt.strip():
        raise InvalidInput("prompt", "The prompt is empty; say what to do with the picture.")
    if max(len(request.prompt), len(request.negative_prompt)) > MAX_PROMPT:
        raise InvalidInput("prompt_long", f"The prompt is longer than {MAX_PROMPT} characters; shorten it.")
    if request.long_edge is not None and not 32 <= request.long_edge <= 4096:
        raise InvalidInput("long_edge", f"Long edge is {request.long_edge}, but 32 to 4096 pixels is possible.")
    for ref in request.loras:
        if not (math.isfinite(ref.strength) and -2 <= ref.strength <= 2):
            raise InvalidInput("strength", f"Strength is {ref.strength}, but -2 to 2 is possible.", value=ref.strength)
    loras = tuple(replace(ref, name=get_weights(weights, ref.name).name) for ref in request.loras)
    seed = secrets.randbelow(MAX_SEED + 1) if request.seed < 0 else request.seed
    return replace(request, seed=seed, loras=loras)
