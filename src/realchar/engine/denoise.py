"""One denoising step for several branches in lockstep: each block runs for every branch before the next block.

The branches (cond and uncond, of one run or of several) keep their own text length, picture size and timestep, so there
is no padding and no mask, and each branch's result equals its own forward bit for bit. Where blocks are streamed, this
order loads each once a step instead of once a forward. On the CPU the branches run a block side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from realchar.engine.abreast import abreast
from realchar.engine.blocks import Blocks
from realchar.engine.compiled import mark_text_length, with_real_turns
from realchar.engine.modulation import embed_timestep

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
    modulation: Sequence[Tensor]  # what each block takes as `temb`
    rope: tuple[Tensor, Tensor]
    modulate_index: Tensor | None


Wanted = Callable[[int], bool]  # tells whether a branch's result is still wanted, by its place in the list


def lockstep(
    transformer: QwenImageTransformer2DModel, blocks: Blocks, branches: list[Branch], wanted: Wanted = lambda _: True
) -> Generator[None, None, list[Tensor | None]]:
    """Run the transformer, with its `blocks`, for all branches; yields after each block, returns their velocities.

    The predicted velocities are (1, T, in_channels): of the noise tokens only. A branch that is not wanted any more is
    dropped after the block, and has None. The math is that of `QwenImageTransformer2DModel.forward` (diffusers 0.42),
    entered between its parts.
    """
    streams = {k: _enter(transformer, blocks, branch) for k, branch in enumerate(branches)}
    with abreast(len(branches), branches[0].latents.device) as run, closing(blocks.step()) as ready:
        for i, block in enumerate(ready):
            run([partial(_advance, block, i, stream) for stream in streams.values()])
            yield
            streams = {k: stream for k, stream in streams.items() if wanted(k)}
    return [_leave(transformer, streams[k], branch) if k in streams else None for k, branch in enumerate(branches)]


def _enter(transformer: QwenImageTransformer2DModel, blocks: Blocks, branch: Branch) -> _Stream:
    image = transformer.img_in(torch.cat([branch.latents, branch.reference], dim=1))
    modulate_index = None
    if transformer.zero_cond_t:
        first, *rest = branch.shapes
        marks = [0] * prod(first) + [1] * sum(prod(shape) for shape in rest)
        modulate_index = torch.tensor([marks], device=image.device, dtype=torch.int)
    text = transformer.txt_in(transformer.txt_norm(branch.prompt_embeds))
    temb = embed_timestep(transformer, branch.timestep, image.dtype)
    modulation = blocks.modulation(branch.timestep, temb)
    rope = transformer.pos_embed([list(branch.shapes)], max_txt_seq_len=text.shape[1], device=image.device)
    if blocks.compiled:
        rope = with_real_turns(rope)
        mark_text_length(text, rope[1])
    return _Stream(image, text, temb, modulation, rope, modulate_index)


def _advance(block: torch.nn.Module, i: int, stream: _Stream) -> None:
    stream.text, stream.image = block(
        hidden_states=stream.image,
        encoder_hidden_states=stream.text,
        encoder_hidden_states_mask=None,
        temb=stream.modulation[i],
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
