"""One denoising step for several branches in lockstep: each block runs for every branch before the next block.

The branches (cond and uncond, and later several jobs) keep their own text length, picture size and timestep, so there
is no padding and no mask, and each branch's result equals its own forward bit for bit. When weights are streamed, this
order loads every block once a step instead of once a forward. On the CPU the branches run a block side by side.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from realchar.engine.abreast import abreast

ImageShape = tuple[int, int, int]  # frames, rows and columns of tokens


@dataclass(frozen=True)
class Branch:
    """The input of one forward.

    latents: (1, T, in_channels) packed noise tokens; reference: (1, R, in_channels) packed reference tokens, clean;
    prompt_embeds: (1, L, joint_attention_dim); timestep: (1,) sigma in 0…1; shapes: token grid of the noise, then of
    each reference.
    """

    latents: Tensor
    reference: Tensor
    prompt_embeds: Tensor
    timestep: Tensor
    shapes: tuple[ImageShape, ...]


@dataclass
class _Stream:
    image: Tensor
    text: Tensor
    temb: Tensor
    rope: tuple[Tensor, Tensor]
    modulate_index: Tensor | None


def lockstep(transformer: QwenImageTransformer2DModel, branches: list[Branch]) -> Generator[None, None, list[Tensor]]:
    """Run the transformer for all branches; yields after each block, returns the predicted velocity of each branch.

    The returned tensors are (1, T, in_channels): of the noise tokens only. The math is that of
    `QwenImageTransformer2DModel.forward` (diffusers 0.42), entered between its parts.
    """
    streams = [_enter(transformer, branch) for branch in branches]
    with abreast(len(branches), branches[0].latents.device) as run:
        for block in transformer.transformer_blocks:
            run([partial(_advance, block, stream) for stream in streams])
            yield
    return [_leave(transformer, stream, branch) for stream, branch in zip(streams, branches, strict=True)]


def _enter(transformer: QwenImageTransformer2DModel, branch: Branch) -> _Stream:
    image = transformer.img_in(torch.cat([branch.latents, branch.reference], dim=1))
    timestep = branch.timestep.to(image.dtype)
    modulate_index = None
    if transformer.zero_cond_t:  # reference tokens are modulated as of t = 0: they carry no noise
        timestep = torch.cat([timestep, timestep * 0])
        first, *rest = branch.shapes
        marks = [0] * prod(first) + [1] * sum(prod(shape) for shape in rest)
        modulate_index = torch.tensor([marks], device=image.device, dtype=torch.int)
    text = transformer.txt_in(transformer.txt_norm(branch.prompt_embeds))
    temb = transformer.time_text_embed(timestep, image)
    rope = transformer.pos_embed([list(branch.shapes)], max_txt_seq_len=text.shape[1], device=image.device)
    return _Stream(image, text, temb, rope, modulate_index)


def _advance(block: torch.nn.Module, stream: _Stream) -> None:
    stream.text, stream.image = block(
        hidden_states=stream.image,
        encoder_hidden_states=stream.text,
        encoder_hidden_states_mask=None,
        temb=stream.temb,
        image_rotary_emb=stream.rope,
        modulate_index=stream.modulate_index,
    )


def _leave(transformer: QwenImageTransformer2DModel, stream: _Stream, branch: Branch) -> Tensor:
    temb = stream.temb.chunk(2)[0] if transformer.zero_cond_t else stream.temb
    output: Tensor = transformer.proj_out(transformer.norm_out(stream.image, temb))
    return output[:, : branch.latents.shape[1]]


def guided(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Combine the two predictions (1, T, C) by true CFG, rescaled to the norm of `cond` over C as the pipeline does."""
    combined = uncond + scale * (cond - uncond)
    norm = torch.norm(cond, dim=-1, keepdim=True) / torch.norm(combined, dim=-1, keepdim=True)
    rescaled: Tensor = combined * norm
    return rescaled
