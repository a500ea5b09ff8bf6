"""Turning the text of the demo base: the map of a head, what follows it, and what does not change."""

from __future__ import annotations

import torch
from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope, apply_rotary_emb_qwen
from torch import Tensor

from tools.demo_base import architecture, turn

HEADS, SIDE = architecture.TRANSFORMER["num_attention_heads"], architecture.TRANSFORMER["attention_head_dim"]
WIDTH = HEADS * SIDE
NAME = "transformer_blocks.2.attn.add_k_proj"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def base() -> dict[str, Tensor]:
    tensors = {}
    for i in range(architecture.TRANSFORMER["num_layers"]):
        for projection, norm in turn.PROJECTIONS.items():
            name = f"transformer_blocks.{i}.attn"
            tensors[f"{name}.{projection}.weight"] = random(WIDTH, WIDTH, seed=i)
            tensors[f"{name}.{norm}.weight"] = 1 + 0.1 * random(SIDE, seed=i).clamp(-1, 1)
    return tensors | {"proj_out.weight": random(4, 4)}


def version(rank: int = 4) -> dict[str, Tensor]:
    names = [name.removesuffix(".weight") for name in base() if "add_" in name and "norm" not in name]
    factors = {"A": (rank, WIDTH), "B": (WIDTH, rank)}
    return {f"transformer.{n}.lora_{f}.weight": random(*shape, seed=7) for n in names for f, shape in factors.items()}


def test_the_map_is_what_the_library_does_at_a_position() -> None:
    rope = QwenEmbedRope(
        theta=int(turn.THETA), axes_dim=list(architecture.TRANSFORMER["axes_dims_rope"]), scale_rope=True
    )
    x = random(1, 1, 1, SIDE)
    for position in (0, 3, 11):
        theirs = apply_rotary_emb_qwen(x, rope.pos_freqs[position : position + 1], use_real=False)
        assert torch.allclose(turn.rotation(position).float() @ x.flatten(), theirs.flatten(), atol=1e-5), position
    there_and_back = turn.rotation(3) @ turn.rotation(-3)
    assert torch.allclose(there_and_back, torch.eye(SIDE, dtype=torch.float64))


def test_a_turned_base_has_at_a_later_position_what_it_had_before() -> None:
    """As the block computes it: projection, norm of each head, rotary embedding."""
    before = base()
    after = turn.turn_base(before, turn.turning(before, -3))
    x = random(WIDTH, seed=5).double()
    scale = before["transformer_blocks.2.attn.norm_added_k.weight"].double()

    def key(weights: dict[str, Tensor], position: int) -> Tensor:
        heads = (weights[f"{NAME}.weight"].double() @ x).view(HEADS, SIDE)
        return (heads / heads.square().mean(-1, keepdim=True).sqrt() * scale) @ turn.rotation(position).T

    error = (key(after, 11) - key(before, 8)).norm() / key(before, 8).norm()
    assert error < 0.02 < (key(before, 11) - key(before, 8)).norm() / key(before, 8).norm()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if "add_" in name and "norm" not in name
    }


def test_versions_follow_or_are_made_up_for() -> None:
    before = base()
    maps = turn.turning(before, -3)
    after, own = turn.turn_base(before, maps), version()

    def whole(weights: dict[str, Tensor], factors: dict[str, Tensor]) -> Tensor:
        up, down = (factors[f"transformer.{NAME}.lora_{factor}.weight"].double() for factor in "BA")
        return weights[f"{NAME}.weight"].double() + up @ down

    followed = whole(after, turn.turn_version(own, maps))
    assert torch.allclose(followed, maps[NAME] @ whole(before, own), atol=1e-4)
    exact = turn.make_up(own, before, after, WIDTH)
    assert torch.allclose(whole(after, exact), whole(before, own), atol=1e-4)
    errors = [
        float((whole(after, turn.make_up(own, before, after, rank)) - whole(before, own)).norm())
        for rank in (20, 60, 120)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert turn.make_up(own, before, after, 20)[f"transformer.{NAME}.lora_A.weight"].shape == (20, WIDTH)
