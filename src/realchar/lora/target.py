"""What LoRA files aim at: the transformer's parameters, by the model's own names and shapes. No torch.

Source: `QwenImageTransformer2DModel` of diffusers and the `config.json` beside its weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from realchar.errors import ModelError

Shape = tuple[int, ...]

TIME_EMBEDDER = "time_text_embed."
MODULATIONS = (".img_mod.", ".txt_mod.")
TIMESTEP_CHANNELS = 256  # of the sinusoidal embedding
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
NORMS = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")


def concerns_modulation(name: str) -> bool:
    """Tell whether a parameter of this name has a part in the modulation of a timestep."""
    return name.startswith(TIME_EMBEDDER) or any(part in name for part in MODULATIONS)


@dataclass(frozen=True, eq=False)
class Target:
    """A transformer's parameters: shapes by name. One object for each, so that it can be a key."""

    parameters: Mapping[str, Shape]
    width: int
    blocks: int

    @cached_property
    def modules(self) -> dict[str, Shape]:
        """Return the shapes of the weights by the names of the modules that have them."""
        return {
            name.removesuffix(".weight"): shape for name, shape in self.parameters.items() if name.endswith(".weight")
        }

    @cached_property
    def flat(self) -> dict[str, str]:
        """Return the modules' names by what is left of them where dots are written as underscores."""
        return {name.replace(".", "_"): name for name in self.modules}


def target_of(config: Mapping[str, Any], width: int | None = None, blocks: int | None = None) -> Target:
    """Return the transformer of a config, or another of its layout. Raises KeyError, TypeError, ValueError."""
    head = int(config["attention_head_dim"])
    width = width or int(config["num_attention_heads"]) * head
    blocks = blocks or int(config["num_layers"])
    joint, channels = int(config["joint_attention_dim"]), int(config["in_channels"])
    out = int(config.get("patch_size", 2)) ** 2 * int(config.get("out_channels") or channels)
    linears: dict[str, Shape] = {
        "img_in": (width, channels),
        "txt_in": (width, joint),
        f"{TIME_EMBEDDER}timestep_embedder.linear_1": (width, TIMESTEP_CHANNELS),
        f"{TIME_EMBEDDER}timestep_embedder.linear_2": (width, width),
        "norm_out.linear": (2 * width, width),
        "proj_out": (out, width),
    }
    parameters: dict[str, Shape] = {"txt_norm.weight": (joint,)}
    for i in range(blocks):
        block = f"transformer_blocks.{i}"
        linears |= {f"{block}.attn.{name}": (width, width) for name in ATTENTION}
        parameters |= {f"{block}.attn.{name}.weight": (head,) for name in NORMS}
        for stream in ("img", "txt"):
            linears[f"{block}.{stream}_mod.1"] = (6 * width, width)
            linears[f"{block}.{stream}_mlp.net.0.proj"] = (4 * width, width)
            linears[f"{block}.{stream}_mlp.net.2"] = (width, 4 * width)
    for name, shape in linears.items():
        parameters |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return Target(parameters, width, blocks)


@lru_cache(maxsize=8)
def target_in(transformer: Path, width: int | None = None, blocks: int | None = None) -> Target:
    """Return the transformer whose `config.json` is in a folder. Raises ModelError."""
    try:
        return target_of(json.loads((transformer / "config.json").read_text(encoding="utf-8")), width, blocks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{str(transformer / 'config.json')!r} can't be read ({error}); copy the base again."
        raise ModelError("base_damaged", message, path=str(transformer)) from error
