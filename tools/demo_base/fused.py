"""Compiled transformer blocks for training, with rotary embeddings that the compiler can fuse."""

from __future__ import annotations

import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models.transformers import transformer_qwenimage as stock
from torch import Tensor


def rotate(x: Tensor, freqs: Tensor, use_real: bool = False) -> Tensor:
    """As the stock `apply_rotary_emb_qwen` on x (B, S, H, D), with freqs (S, D / 2, 2) of cosine and sine.

    The stock one multiplies complex numbers, which the compiler leaves alone.
    """
    del use_real
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = freqs[:, None].unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3).type_as(x)


def compile_blocks(transformer: QwenImageTransformer2DModel) -> None:
    """Compile the block once for all of them; from here on they take real-valued `image_rotary_emb`."""
    torch._dynamo.config.cache_size_limit = 64
    stock.apply_rotary_emb_qwen = rotate
    for block in transformer.transformer_blocks:
        block.compile(dynamic=True)
