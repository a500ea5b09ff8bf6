"""Blocks compiled by `torch.compile`, as one region that all of them share, and attention in a form that fuses.

The stock attention turns queries and keys as complex numbers, which the compiler leaves alone. Here the same rotation is
done in real numbers, so it is fused with the norm before it; it is rounded otherwise in the last bit now and then.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn

from realchar.errors import ModelError

MOST_VARIANTS = 64  # of compiled code that are kept: for kinds of sizes, precision and modes


class RealRotaryAttention:
    """In place of the stock processor of a block's joint attention, without masks; takes rotary angles as real pairs."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: None = None,
        attention_mask: None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return picture (1, T, D) and text (1, L, D); `image_rotary_emb`: (T, d / 2, 2) and (L, d / 2, 2) cos and sin."""
        assert encoder_hidden_states_mask is None and attention_mask is None and image_rotary_emb is not None
        turns, text_turns = image_rotary_emb
        picture = [linear(hidden_states) for linear in (attn.to_q, attn.to_k, attn.to_v)]
        text = [linear(encoder_hidden_states) for linear in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)]
        head_dim = attn.inner_dim // attn.heads
        query, key, value = (states.unflatten(-1, (-1, head_dim)) for states in picture)
        text_query, text_key, text_value = (states.unflatten(-1, (-1, head_dim)) for states in text)
        query, key = rotated(attn.norm_q(query), turns), rotated(attn.norm_k(key), turns)
        text_query = rotated(attn.norm_added_q(text_query), text_turns)
        text_key = rotated(attn.norm_added_k(text_key), text_turns)
        joint = dispatch_attention_fn(
            torch.cat([text_query, query], dim=1),
            torch.cat([text_key, key], dim=1),
            torch.cat([text_value, value], dim=1),
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        joint = joint.flatten(2, 3).to(query.dtype)
        length = encoder_hidden_states.shape[1]
        return attn.to_out[0](joint[:, length:].contiguous()), attn.to_add_out(joint[:, :length].contiguous())


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Return x (1, S, heads, d) with each pair of neighbours turned by its angle: `turns` (S, d / 2, 2) cos and sin."""
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = turns[:, None].unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def compile_blocks(transformer: nn.Module, device: torch.device) -> None:
    """Let every block run compiled; the first run of a kind of size takes until it is compiled. Raises ModelError."""
    _check_compiler(device)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    for block in transformer.transformer_blocks:  # type: ignore[union-attr]
        block.attn.set_processor(RealRotaryAttention())
        block.compile()


@cache
def _check_compiler(device: torch.device) -> None:
    """Compile something tiny, so that a machine that can't is told before a job depends on it. Raises ModelError."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever a missing compiler or a broken cache raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = (
            f"Blocks can't be compiled on this machine ({reason}); install a C++ compiler, or leave out --compile."
        )
        raise ModelError("compile", message) from error


def with_real_turns(rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return rotary factors, given as complex numbers (S, d / 2), as real pairs (S, d / 2, 2).

    Copied, because the text's are a piece of a longer list, and compiled code tells tensors apart by where they begin.
    """
    return torch.view_as_real(rope[0]), torch.view_as_real(rope[1]).clone()


def mark_text_length(text: Tensor, turns: Tensor) -> None:
    """Tell the compiler that prompts differ in length, so that one code serves all: text (1, L, D), turns (L, d / 2, 2)."""
    torch._dynamo.maybe_mark_dynamic(text, 1)
    torch._dynamo.maybe_mark_dynamic(turns, 0)
