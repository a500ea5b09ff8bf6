"""LoRA versions of the miniature: low-rank factors beside its linears, saved in the PEFT layout as training goes on.

All versions come from one training whose rank grows: the early ones need less room, and nothing is cut afterwards.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from diffusers import QwenImageTransformer2DModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

# What is adapted: attention, the picture's MLP and modulation, and the model's way in and out.
TARGETS = re.compile(
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)|img_mlp\.net\.(0\.proj|2)|img_mod\.1)"
    r"|img_in|norm_out\.linear|proj_out"
)


class Version(NamedTuple):
    """A version to write: the step at which it ends, and its rank."""

    steps: int
    rank: int


VERSIONS = [Version(2000, 16), Version(6000, 24), Version(20000, 80)]


def version(text: str) -> Version:
    """Read `STEPS:RANK`."""
    steps, _, rank = text.partition(":")
    if not (steps.isdecimal() and rank.isdecimal() and int(steps) and int(rank)):
        raise argparse.ArgumentTypeError(f"{text!r} is no version; write STEPS:RANK, such as 2000:16.")
    return Version(int(steps), int(rank))


def check_order(versions: Sequence[Version]) -> None:
    """Raise SystemExit unless each version takes up the one before: more steps, and no smaller rank."""
    for one, after in itertools.pairwise(versions):
        if after.steps <= one.steps or after.rank < one.rank:
            raise SystemExit(
                f"Version {after.steps}:{after.rank} can't follow {one.steps}:{one.rank}; give more steps each time and "
                "a rank that is no smaller."
            )


class LoraLinear(nn.Module):
    """A linear with `up @ down` added; starts without effect (up is zero). Ranks from `use` on stay as they are."""

    active: Tensor

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        rank = min(rank, linear.in_features, linear.out_features)
        self.down = nn.Parameter(torch.empty(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)
        self.register_buffer("active", torch.ones(rank))

    def use(self, rank: int) -> None:
        """Let only the first ranks act and learn; in place, so that a recorded graph follows."""
        self.active.copy_(torch.arange(len(self.active)) < rank)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x) + F.linear(F.linear(x, self.down * self.active[:, None]), self.up)
        return output


def attach(transformer: QwenImageTransformer2DModel, rank: int) -> dict[str, LoraLinear]:
    """Put factors beside the transformer's target linears; returns them by the linear's name."""
    names = [name for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
    added = {}
    for name in filter(TARGETS.fullmatch, names):
        parent, _, own = name.rpartition(".")
        added[name] = LoraLinear(transformer.get_submodule(name), rank)
        setattr(transformer.get_submodule(parent), own, added[name])
    return added


def factors_of(added: dict[str, LoraLinear]) -> list[nn.Parameter]:
    return [parameter for lora in added.values() for parameter in (lora.down, lora.up)]


def plain_state(transformer: nn.Module, added: dict[str, LoraLinear]) -> dict[str, Tensor]:
    """Return the state of the transformer as it is without the factors."""
    state = transformer.state_dict()
    for name in added:
        for part in ("weight", "bias"):
            state[f"{name}.{part}"] = state.pop(f"{name}.linear.{part}")
        del state[f"{name}.down"], state[f"{name}.up"], state[f"{name}.active"]
    return state


def save(added: dict[str, LoraLinear], steps: int, folder: Path) -> Path:
    """Write the factors as `demo_real_v{steps:04d}.safetensors`, bfloat16."""
    tensors = {}
    for name, lora in added.items():
        rank = int(lora.active.sum())
        tensors[f"transformer.{name}.lora_A.weight"] = lora.down[:rank].detach().bfloat16().cpu().contiguous()
        tensors[f"transformer.{name}.lora_B.weight"] = lora.up[:, :rank].detach().bfloat16().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"demo_real_v{steps:04d}.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "steps": str(steps), "base": "demo"})
    return path


def restore(added: dict[str, LoraLinear], path: Path) -> None:
    """Take up a version where it ended; ranks that it does not have start without effect."""
    with safe_open(path, framework="pt") as file, torch.no_grad():
        for name, lora in added.items():
            down, up = (file.get_tensor(f"transformer.{name}.lora_{factor}.weight") for factor in "AB")
            if len(down) > len(lora.down):
                raise SystemExit(
                    f"{path.name} has rank {len(down)} in {name}; give a version of rank {len(down)} or more."
                )
            lora.down[: len(down)] = down
            lora.up[:, : len(down)] = up
