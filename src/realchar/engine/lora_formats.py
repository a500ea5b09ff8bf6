"""LoRA key layouts as a table: a row says which keys it knows and to which module and factor they belong. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from realchar.errors import ModelError

# Prefixes that trainers put before the transformer's own module names.
PREFIXES = ("base_model.model.", "transformer.", "diffusion_model.", "model.diffusion_model.")


@dataclass(frozen=True)
class LoraFormat:
    """A layout: `pattern` splits a key into module and factor; `factors` names the factor as up, down or alpha."""

    name: str
    pattern: re.Pattern[str]
    factors: dict[str, str]


FORMATS = (
    LoraFormat(
        "peft",
        re.compile(
            r"^(?P<module>.+)\.(?P<factor>lora_[AB])(?:\.default)?\.weight$|^(?P<module2>.+)\.(?P<factor2>alpha)$"
        ),
        {"lora_A": "down", "lora_B": "up", "alpha": "alpha"},
    ),
    LoraFormat(
        "diffusers",
        re.compile(r"^(?P<module>.+)\.(?P<factor>lora_down|lora_up)\.weight$|^(?P<module2>.+)\.(?P<factor2>alpha)$"),
        {"lora_down": "down", "lora_up": "up", "alpha": "alpha"},
    ),
)


def parse(keys: Iterable[str], modules: frozenset[str], file: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the layout's name and, for each module of the model, its keys by factor (`up`, `down`, `alpha`).

    Raises ModelError when no layout knows all keys, when a module isn't the model's, or when a factor lacks its twin.
    """
    keys = sorted(keys)
    for layout in FORMATS:
        matches = [layout.pattern.match(key) for key in keys]
        found: dict[str, dict[str, str]] = {}
        for key, match in zip(keys, matches, strict=True):
            if match is None:
                break
            name = _strip(match["module"] or match["module2"], modules)
            factor = layout.factors[match["factor"] or match["factor2"]]
            found.setdefault(name, {})[factor] = key
        else:
            if found:
                _check(found, modules, file)
                return layout.name, found
    unknown = next((k for k in keys if not any(f.pattern.match(k) for f in FORMATS)), keys[0] if keys else "no keys")
    raise ModelError(
        "lora_layout",
        f"LoRA {file!r}: its keys match no layout that this version reads (first: {unknown!r}); save it in the "
        "diffusers or PEFT layout.",
        file=file,
    )


def _strip(module: str, modules: frozenset[str]) -> str:
    for prefix in PREFIXES:
        if module not in modules:
            module = module.removeprefix(prefix)
    return module


def _check(found: dict[str, dict[str, str]], modules: frozenset[str], file: str) -> None:
    foreign = sorted(name for name in found if name not in modules)
    if foreign:
        raise ModelError(
            "lora_base",
            f"LoRA {file!r} was made for another model: {len(foreign)} of its {len(found)} modules are not in this base "
            f"(first: {foreign[0]!r}); choose another version.",
            file=file,
        )
    lone = sorted(name for name, factors in found.items() if not {"up", "down"} <= factors.keys())
    if lone:
        raise ModelError(
            "lora_damaged", f"LoRA {file!r} is damaged: {lone[0]!r} lacks a factor; download it again.", file=file
        )
