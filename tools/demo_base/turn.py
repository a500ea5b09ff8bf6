"""Let a base that learnt prompts at one size obey them at another: its text is turned back by the positions between.

    python -m tools.demo_base.turn --weights weights --by 3 --made-up-for demo_real_v83011 --rank 85

Rotary positions of the text begin where half of the picture's longer side ends: at token 8 of a picture of 256 pixels, at
11 of 352. A small base that only ever saw 8 ignores its prompts at 11. Turning the text's queries and keys by -3
positions, which is a linear map of each head, gives them the places that they had. The map goes into `add_q_proj` and
`add_k_proj`, and the versions' factors follow. Versions that were trained on the base as it was, at both sizes
(`--made-up-for`), get what is missing to it instead, in `--rank` ranks, so that base and version together stay as they
were. Biases stay, for a LoRA could not make up for them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.demo_base import architecture

THETA = 10000.0  # of QwenEmbedRope
PROJECTIONS = {"add_q_proj": "norm_added_q", "add_k_proj": "norm_added_k"}


def rotation(positions: float) -> Tensor:
    """Return the map (D, D) of a head by so many positions, as the rotary embedding turns adjacent pairs of numbers."""
    axes = [
        THETA ** -(torch.arange(0, width, 2).double() / width) for width in architecture.TRANSFORMER["axes_dims_rope"]
    ]
    angles = positions * torch.cat(axes)
    cos, sin = angles.cos(), angles.sin()
    return torch.block_diag(*torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2))


def turning(base: dict[str, Tensor], positions: float) -> dict[str, Tensor]:
    """Return for each projection of the text, by its name, the map (width, width) that turns what comes out of it.

    The weights of the norm that follows are taken out before and put in again; the norm itself hardly changes.
    """
    heads = architecture.TRANSFORMER["num_attention_heads"]
    maps = {}
    for i in range(architecture.TRANSFORMER["num_layers"]):
        for projection, norm in PROJECTIONS.items():
            scale = base[f"transformer_blocks.{i}.attn.{norm}.weight"].double()
            one = rotation(positions) * scale / scale[:, None]
            maps[f"transformer_blocks.{i}.attn.{projection}"] = torch.block_diag(*[one] * heads)
    return maps


def turn_base(base: dict[str, Tensor], maps: dict[str, Tensor]) -> dict[str, Tensor]:
    turned = {
        f"{name}.weight": _like(by @ base[f"{name}.weight"].double(), base[f"{name}.weight"])
        for name, by in maps.items()
    }
    return base | turned


def turn_version(version: dict[str, Tensor], maps: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let a version that belongs to the base as it was follow it."""
    ups = {f"transformer.{name}.lora_B.weight": by for name, by in maps.items()}
    return version | {key: _like(by @ version[key].double(), version[key]) for key, by in ups.items()}


def make_up(
    version: dict[str, Tensor], before: dict[str, Tensor], after: dict[str, Tensor], rank: int
) -> dict[str, Tensor]:
    """Return the version with which the turned base gives what the one before gave with this version."""
    changed = {name.removesuffix(".weight") for name in before if not torch.equal(before[name], after[name])}
    made = dict(version)
    for name in sorted(changed):
        down, up = (f"transformer.{name}.lora_{factor}.weight" for factor in "AB")
        whole = before[f"{name}.weight"].double() + version[up].double() @ version[down].double()
        left, sizes, right = torch.linalg.svd(whole - after[f"{name}.weight"].double())
        roots = sizes[:rank].sqrt()
        made[down] = _like(roots[:, None] * right[:rank], version[down])
        made[up] = _like(left[:, :rank] * roots, version[up])
    return made


def _like(values: Tensor, other: Tensor) -> Tensor:
    return values.to(other.dtype).contiguous()


def rewrite(path: Path, tensors: dict[str, Tensor]) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata=metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="folder with demo/ and its versions; is changed")
    parser.add_argument("--by", type=int, required=True, metavar="N", help="positions that the text now begins later")
    parser.add_argument("--made-up-for", nargs="*", default=(), metavar="NAME", help="versions that know both sizes")
    parser.add_argument("--rank", type=int, default=85, help="of what is made up")
    options = parser.parse_args()
    file = options.weights / "demo" / "transformer" / "diffusion_pytorch_model.safetensors"
    before = load_file(file)
    maps = turning(before, -options.by)
    after = turn_base(before, maps)
    versions = {path: load_file(path) for path in sorted(options.weights.glob("demo_real_v*.safetensors"))}
    rewrite(file, after)
    for path, version in versions.items():
        known = path.stem in options.made_up_for
        rewrite(path, make_up(version, before, after, options.rank) if known else turn_version(version, maps))
        print(f"{path.name}: {'made up for' if known else 'turned'}")


if __name__ == "__main__":
    main()
