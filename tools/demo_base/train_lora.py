"""LoRA versions of the miniature: low-rank factors beside its linears, saved in the PEFT layout as training goes on.

    python -m tools.demo_base.train_lora demo_real_v0500.safetensors --rank 16

The command writes the file again with a smaller rank, by singular values: early versions need less room.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import QwenImageTransformer2DModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

RANK = 80
# What is adapted: attention, the picture's MLP and modulation, and the model's way in and out.
TARGETS = re.compile(
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)|img_mlp\.net\.(0\.proj|2)|img_mod\.1)"
    r"|img_in|norm_out\.linear|proj_out"
)


class LoraLinear(nn.Module):
    """A linear with `up @ down` added; starts without effect (up is zero)."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        rank = min(rank, linear.in_features, linear.out_features)
        self.down = nn.Parameter(torch.empty(rank, linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x) + F.linear(F.linear(x, self.down), self.up)
        return output


def attach(transformer: QwenImageTransformer2DModel, rank: int = RANK) -> dict[str, LoraLinear]:
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
        del state[f"{name}.down"], state[f"{name}.up"]
    return state


def save(added: dict[str, LoraLinear], steps: int, folder: Path) -> Path:
    """Write the factors as `demo_real_v{steps:04d}.safetensors`, bfloat16."""
    tensors = {}
    for name, lora in added.items():
        tensors[f"transformer.{name}.lora_A.weight"] = lora.down.detach().bfloat16().cpu().contiguous()
        tensors[f"transformer.{name}.lora_B.weight"] = lora.up.detach().bfloat16().cpu().contiguous()
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
                raise SystemExit(f"{path.name} has rank {len(down)} in {name}; give --rank {len(down)} or more.")
            lora.down[: len(down)] = down
            lora.up[:, : len(down)] = up


def resize(path: Path, rank: int) -> float:
    """Write a version again with at most `rank`; returns the smallest share of the squared norm that a module keeps."""
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        tensors = {key: file.get_tensor(key) for key in keys}
        metadata = file.metadata()
    largest = max(len(tensor) for key, tensor in tensors.items() if key.endswith("lora_A.weight"))
    if not 1 <= rank <= largest:
        raise SystemExit(f"Rank {rank} is not in 1…{largest}, the rank that {path.name} has; choose one of these.")
    kept = 1.0
    for key in [key for key in tensors if key.endswith("lora_A.weight")]:
        other = key.replace("lora_A", "lora_B")
        u, s, v = torch.linalg.svd(tensors[other].float() @ tensors[key].float(), full_matrices=False)
        kept = min(kept, float((s[:rank] ** 2).sum() / (s**2).sum()))
        root = s[:rank].sqrt()
        tensors[key] = (root[:, None] * v[:rank]).bfloat16().contiguous()
        tensors[other] = (u[:, :rank] * root).bfloat16().contiguous()
    save_file(tensors, path, metadata=metadata)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    options = parser.parse_args()
    kept = resize(options.file, options.rank)
    print(f"{options.file.name}: rank {options.rank}, at least {kept:.1%} of each module's squared norm kept")


if __name__ == "__main__":
    main()
