"""How public LoRA files write their keys: a table of what stands behind a module's name, and of what stands before it.

A key is a prefix, a module of the model and a factor. Factors are split off by the first table; what is left is looked up
among the model's own modules, with dots or with underscores, and prefixes of the second table are taken off until it is
found. Nothing is ever split at an underscore. No torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from realchar.lora.target import Target


@dataclass(frozen=True)
class Layout:
    """A way to write factors: `pattern` finds the module, the factor and, for PEFT, the adapter's name in a key.

    kind: what the factors are to be made of; parts: the factors by the words that the pattern finds.
    """

    name: str
    kind: str
    pattern: re.Pattern[str]
    parts: dict[str, str]


def _row(name: str, kind: str, pattern: str, parts: dict[str, str]) -> Layout:
    return Layout(name, kind, re.compile(rf"^(?P<module>.+?)\.{pattern}$", re.DOTALL), parts)


_INFIX = r"(?P<adapter>(?:\.(?!(?:weight|bias|alpha)(?:\.|$))[^.]+)*?)"  # of a model that had adapters by name: `.default`, also several
_HADA = ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")
_LOKR = ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")

LAYOUTS = (
    _row("lora_A/lora_B", "lora", rf"(?P<part>lora_[AB]){_INFIX}(?:\.weight)?", {"lora_A": "down", "lora_B": "up"}),
    _row("lora_A/lora_B", "lora", rf"(?P<part>lora_B){_INFIX}\.bias", {"lora_B": "bias"}),
    _row(
        "lora_down/lora_up",
        "lora",
        r"(?P<part>lora_(?:down|mid|up))(?:\.weight)?",
        {"lora_down": "down", "lora_mid": "mid", "lora_up": "up"},
    ),
    _row("lora_down/lora_up", "lora", r"(?P<part>lora_up)\.bias", {"lora_up": "bias"}),
    _row(
        "lora.down/lora.up",
        "lora",
        r"lora(?:_linear_layer)?\.(?P<part>down|up)(?:\.weight)?",
        {"down": "down", "up": "up"},
    ),
    _row(
        "DoRA", "lora", rf"(?P<part>lora_magnitude_vector){_INFIX}(?:\.weight)?", {"lora_magnitude_vector": "magnitude"}
    ),
    _row("DoRA", "lora", r"(?P<part>dora_scale)", {"dora_scale": "magnitude"}),
    _row("LoHa", "loha", r"hada_(?P<part>w[12]_[ab]|t[12])", {part: part for part in _HADA}),
    _row("LoKr", "lokr", r"lokr_(?P<part>w[12](?:_[ab])?|t2)", {part: part for part in _LOKR}),
    _row(
        "full patch",
        "full",
        r"(?P<part>diff|diff_b|set_weight|set_bias|w_norm|b_norm)",
        {
            "diff": "diff",
            "diff_b": "diff_b",
            "set_weight": "set",
            "set_bias": "set_b",
            "w_norm": "diff",
            "b_norm": "diff_b",
        },
    ),
    _row(
        "alpha",
        "alpha",
        rf"(?:(?P<part>alpha|lora_alpha|network_alpha)|(?:lora_[AB]{_INFIX}|lora_down|lora_up)\.(?P<part2>alpha))",
        dict.fromkeys(("alpha", "lora_alpha", "network_alpha"), "alpha"),
    ),
)

LONGEST = 512  # characters of a key: longer ones are no names of modules, and patterns would take their time

# Kinds of adapters that are known and not read, by what their keys hold.
UNREAD = {
    "OFT": re.compile(r"\.(?:oft_|boft_|oft_R|oft_diag)"),
    "GLoRA": re.compile(r"\.(?:a1|a2|b1|b2)\.weight$"),
    "IA3": re.compile(r"\.(?:ia3_l|on_input)"),
    "VeRA": re.compile(r"\.vera_lambda_"),
    "AdaLoRA": re.compile(r"\.(?:lora_E|ranknum)\b"),
}

# What trainers put before the transformer's own names, in any number and order: `base_model.model.`, `lora_unet_`, …
PREFIXES = (
    *("base_model", "diffusion_model", "model", "transformer", "unet", "dit", "prior", "pipe", "module"),
    *("lora", "lycoris", "_orig_mod"),
)
WRAPPERS = {"_orig_mod", "base_layer", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_PROCESSOR = re.compile(r"^(?P<attn>.+)\.processor\.(?P<linear>\w+?)_lora\.(?P<part>down|up)\.weight$", re.DOTALL)
_TEXT = re.compile(
    r"^(?:lora_te\d*_|te\d*_|lora_(?:llm|qwen|t5|clip)\w*?_|(?:base_model\.model\.)?(?:text_encoders?|text_model|te\d?|"
    r"cond_stage_model|conditioner|language_model|visual|clip_[lg]|t5xxl)[._])"
)
SHORT = {"_to_out": "_to_out_0"}  # linears that some write without their place in a sequence


@dataclass(frozen=True)
class Key:
    """A key taken apart: `owner` is the module as the file writes it."""

    layout: Layout
    owner: str
    part: str
    adapter: str = ""


def take_apart(key: str) -> Key | None:
    """Return what a key says, or None for one that no layout knows."""
    if len(key) > LONGEST:
        return None
    old = _PROCESSOR.match(key)
    if old:
        key = f"{old['attn']}.{old['linear']}.lora.{old['part']}.weight"
    for layout in LAYOUTS:
        match = layout.pattern.match(key)
        if match:
            words = match.groupdict()
            part = layout.parts[words.get("part") or words.get("part2") or ""]
            return Key(layout, match["module"], part, (words.get("adapter") or "").strip("."))
    return None


def unwrapped(owner: str) -> str:
    """Return a module's name without what compiling, sharding or PEFT wrapped around it."""
    return ".".join(part for part in owner.split(".") if part not in WRAPPERS)


def resolve(owner: str, target: Target) -> str | None:
    """Return the model's module of this name, or None where it has none."""
    name = unwrapped(owner)
    if name in target.modules:
        return name
    flat = name.replace(".", "_")
    while True:
        for end, whole in (("", ""), *SHORT.items()):
            found = target.flat.get(flat.removesuffix(end) + whole) if flat.endswith(end) else None
            if found is not None:
                return found
        shorter = _without_prefix(flat, "_")
        if shorter is None:
            return None
        flat = shorter


def _without_prefix(name: str, mark: str) -> str | None:
    """Return what stands behind a prefix and a mark; None where there is no prefix."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix + mark)), None)
    return None if prefix is None else name[len(prefix) + len(mark) :]


def prefix_of(owner: str, module: str) -> str:
    """Return what a file writes before the model's own name, for its description."""
    for name in (module, module.replace(".", "_")):
        if owner.endswith(name):
            return owner.removesuffix(name)
    return ""


def bare(owner: str) -> str:
    """Return a module as the file writes it, without the dotted prefixes that stand before the transformer's names."""
    name = unwrapped(owner)
    while (shorter := _without_prefix(name, ".")) is not None:
        name = shorter
    return name


def of_text_encoder(name: str) -> bool:
    """Tell whether a module or key belongs to a text encoder."""
    return bool(_TEXT.match(name))
