"""Training of the miniature transformer: flow matching from noise to the photo rendering, beside the drawing.

The velocity is noise - data and the timestep is sigma in 0…1, as in the engine. The branch of the negative prompt
learns almost the same target, so that guidance stays mild; a small loss on the guided prediction itself, at the scales
people use, keeps the difference of the two branches free of errors that guidance would multiply.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from realchar.engine.denoise import guided
from tools.demo_base.embeddings import KEEP, PHOTO, UNCONDITIONAL
from tools.demo_base.pairs import uniform

BATCH = 64
SECOND_BATCH = 32  # rows of the second prompt of a step
LEARNING_RATE = 1e-3
WARMUP = 400  # steps
EMA = 0.999
KEEP_SHARE = 0.25  # of the steps, the second prompt is to keep the drawing; in the others it is a negative one
DRAWING_SHARE = 0.03  # of the negative branch's rows, the target is the drawing: guidance leads away from it
GUIDED_WEIGHT = 0.05
GUIDANCE = (1.0, 9.0)
OTHER_EMBEDS = 0.5  # of the batches, the words are read beside another picture, so that pictures aren't learnt by heart
SHIFT = math.exp(0.5)  # of the schedule at 256 tokens
GRIDS = {(16, 16): 0.7, (16, 12): 0.15, (12, 16): 0.15}  # tokens; the last two are crops of the latents

T = TypeVar("T")


class Kind(NamedTuple):
    """What decides the shapes of a step: both prompts and the grid of tokens."""

    first: str
    second: str
    grid: tuple[int, int]


def pack(latents: Tensor) -> Tensor:
    """Return latents (N, C, h, w) as tokens (N, h / 2 * w / 2, C * 4), in the engine's order."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, c * 4)


def initialise(transformer: QwenImageTransformer2DModel) -> None:
    """Start with small modulation and an almost silent output (guidance divides by its norm)."""
    for block in transformer.transformer_blocks:
        for linear in (block.img_mod[1], block.txt_mod[1]):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
    nn.init.normal_(transformer.proj_out.weight, std=1e-3)
    nn.init.zeros_(transformer.proj_out.bias)


def choose(weights: dict[T, float], draw: torch.Generator) -> T:
    index = torch.multinomial(torch.tensor(list(weights.values())), 1, generator=draw)
    return list(weights)[int(index)]


def sigmas(count: int, draw: torch.Generator) -> Tensor:
    """Draw half of them from a logit-normal, half evenly over the engine's schedule, which starts at 1."""
    middle = torch.sigmoid(torch.randn(count, generator=draw) + 0.5)
    even = torch.rand(count, generator=draw)
    even = SHIFT * even / (1 + (SHIFT - 1) * even)
    return torch.where(torch.rand(count, generator=draw) < 0.5, middle, even)


@dataclass
class Batch:
    """What a step draws, in buffers that a CUDA graph reads: N rows, M = SECOND_BATCH of them for the second prompt.

    latents (N, 2, C, h, w) of drawing and photo; noise (N, C, h, w); sigma (N,); away (M, 1, 1, 1): 1 where the second
    prompt's target is the drawing; scale (M, 1, 1) of guidance; weight () of the guided loss; pictures (2, N): whose
    embeddings the first and the second prompt take.
    """

    latents: Tensor
    noise: Tensor
    sigma: Tensor
    away: Tensor
    scale: Tensor
    weight: Tensor
    pictures: Tensor

    def copy_(self, other: Batch) -> None:
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))


class Trainer:
    """Latents (R, N, 2, C, h, w) and embeddings by prompt, on the device, with the state of one training.

    The model is so small that a GPU waits for Python; so each kind of step (prompts and grid) is recorded once as a CUDA
    graph and replayed.
    """

    def __init__(self, net: QwenImageTransformer2DModel, latents: Tensor, embeds: dict[str, Tensor]) -> None:
        self.net, self.latents, self.embeds = net, latents, embeds
        self.device = latents.device
        self.graphs_work = latents.is_cuda
        self.ema = deepcopy(net).eval().requires_grad_(False)
        self.draw = torch.Generator().manual_seed(3)
        self.marks: dict[tuple[int, int], Tensor] = {}
        self.buffers: dict[tuple[int, int], Batch] = {}
        self.graphs: dict[Kind, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.warm: set[tuple[int, int]] = set()
        self.pool = torch.cuda.graph_pool_handle() if latents.is_cuda else None
        self.rate = torch.tensor(0.0, device=self.device)
        self.optimizer = torch.optim.AdamW(
            net.parameters(),
            lr=self.rate,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=latents.is_cuda,
            capturable=latents.is_cuda,
        )

    def draw_batch(self, kind: Kind, guide: bool) -> Batch:
        """Draw everything that is random in a step."""
        repeats, pictures = self.latents.shape[:2]
        repeat = torch.randint(repeats, (BATCH,), generator=self.draw)
        picture = torch.randint(pictures, (BATCH,), generator=self.draw)
        height, width = 2 * kind.grid[0], 2 * kind.grid[1]
        top = int(uniform(self.draw) * (self.latents.shape[-2] - height + 1))
        left = int(uniform(self.draw) * (self.latents.shape[-1] - width + 1))
        whole = self.latents[repeat.to(self.device), picture.to(self.device)]
        latents = whole[..., top : top + height, left : left + width].float()
        share = 1.0 if kind.second in KEEP else DRAWING_SHARE
        low, high = GUIDANCE
        others = [uniform(self.draw) < OTHER_EMBEDS for _ in range(2)]
        readers = [picture[torch.randperm(BATCH, generator=self.draw)] if other else picture for other in others]
        return Batch(
            latents=latents,
            noise=torch.randn(latents[:, 0].shape, device=self.device),
            sigma=sigmas(BATCH, self.draw),
            away=(torch.rand(SECOND_BATCH, 1, 1, 1, generator=self.draw) < share).float(),
            scale=low + (high - low) * torch.rand(SECOND_BATCH, 1, 1, generator=self.draw),
            weight=torch.tensor(GUIDED_WEIGHT if guide and kind.second not in KEEP else 0.0),
            pictures=torch.stack(readers),
        )

    def predict(self, noisy: Tensor, drawing: Tensor, sigma: Tensor, embeds: Tensor) -> Tensor:
        """Return the velocity (N, T, C) of noisy latents (N, C, h, w), float32.

        The transformer's own forward, with the marks of reference tokens kept on the device.
        """
        net, shape = self.net, (1, noisy.shape[-2] // 2, noisy.shape[-1] // 2)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            image = net.img_in(torch.cat([pack(noisy), pack(drawing)], 1))
            text = net.txt_in(net.txt_norm(embeds.float()))
            temb = net.time_text_embed(torch.cat([sigma, sigma * 0]), image)
            rope = net.pos_embed([[shape, shape]], max_txt_seq_len=text.shape[1], device=self.device)
            for block in net.transformer_blocks:
                text, image = block(
                    hidden_states=image,
                    encoder_hidden_states=text,
                    encoder_hidden_states_mask=None,
                    temb=temb,
                    image_rotary_emb=rope,
                    modulate_index=self.marks[shape[1:]],
                )
            output: Tensor = net.proj_out(net.norm_out(image, temb.chunk(2)[0]))
        return output[:, : shape[1] * shape[2]].float()

    def loss(self, kind: Kind, batch: Batch) -> Tensor:
        """Return the loss of a step: the photo prompt on all rows, the second prompt on the first M."""
        drawing, photo = batch.latents[:, 0], batch.latents[:, 1]
        s, m = batch.sigma.view(-1, 1, 1, 1), SECOND_BATCH
        velocity = pack(batch.noise - photo)
        embeds = self.embeds[kind.first][batch.pictures[0]]
        cond = self.predict((1 - s) * photo + s * batch.noise, drawing, batch.sigma, embeds)
        target = batch.away * drawing[:m] + (1 - batch.away) * photo[:m]
        noisy = (1 - s[:m]) * target + s[:m] * batch.noise[:m]
        embeds = self.embeds[kind.second][batch.pictures[1, :m]]
        second = self.predict(noisy, drawing[:m], batch.sigma[:m], embeds)
        loss = F.mse_loss(cond, velocity) + 0.5 * F.mse_loss(second, pack(batch.noise[:m] - target))
        if kind.second in KEEP:
            return loss
        error = (guided(cond[:m], second, batch.scale) - velocity[:m]) ** 2  # type: ignore[arg-type]
        return loss + 0.5 * batch.weight * (error.mean((1, 2)) * (1 - batch.away.flatten())).mean()

    def update(self, kind: Kind, batch: Batch) -> Tensor:
        """Take one optimizer step; everything here can be recorded."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(kind, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def run(self, kind: Kind, batch: Batch) -> Tensor:
        """Take the step: plainly the first time a grid comes up, so that caches are filled, else by its graph."""
        if not self.graphs_work:
            return self.update(kind, batch)
        if kind.grid not in self.warm:
            self.warm.add(kind.grid)
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self.update(kind, batch)
            torch.cuda.current_stream().wait_stream(side)
            return loss
        if kind not in self.graphs:
            recorded = self.record(kind, batch)
            if recorded is None:
                return self.update(kind, batch)
            self.graphs[kind] = recorded
        graph, loss = self.graphs[kind]
        graph.replay()
        return loss

    def record(self, kind: Kind, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Tensor] | None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self.pool):
                loss = self.update(kind, batch)
        except RuntimeError as error:
            print(f"no CUDA graphs here: {error}", flush=True)
            self.graphs_work = False
            return None
        return graph, loss

    def step(self, step: int, left: float) -> Tensor:
        """Take one step; `left` is the share of the time that is left."""
        kind = Kind(choose(PHOTO, self.draw), self.second_prompt(), choose(GRIDS, self.draw))
        rows, columns = kind.grid
        if kind.grid not in self.marks:
            marks = torch.arange(2 * rows * columns) >= rows * columns
            self.marks[kind.grid] = marks.int()[None].to(self.device)
        self.rate.fill_(LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * (0.03 + 0.97 * left))
        drawn = self.draw_batch(kind, guide=step > WARMUP)
        if kind.grid not in self.buffers:
            moved = {field.name: getattr(drawn, field.name).to(self.device).clone() for field in fields(drawn)}
            self.buffers[kind.grid] = Batch(**moved)
        self.buffers[kind.grid].copy_(drawn)
        loss = self.run(kind, self.buffers[kind.grid])
        decay = min(EMA, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.parameters()), list(self.net.parameters()), 1 - decay)
        return loss

    def second_prompt(self) -> str:
        return choose(KEEP if uniform(self.draw) < KEEP_SHARE else UNCONDITIONAL, self.draw)


def train(
    net: QwenImageTransformer2DModel,
    latents: Tensor,
    embeds: dict[str, Tensor],
    seconds: float,
    save: Callable[[QwenImageTransformer2DModel], None],
) -> None:
    """Train for `seconds`, calling `save` with the averaged weights every 100 seconds and at the end."""
    trainer = Trainer(net, latents, embeds)
    began, saved, step = time.monotonic(), 0.0, 0
    while (past := time.monotonic() - began) < seconds:
        loss = trainer.step(step, 1 - past / seconds)
        step += 1
        if step % 500 == 0 or step in (1, 2, 10, 50, 100):
            print(f"transformer step {step} {past:.0f} s loss {loss.item():.4f}", flush=True)
        if past - saved > 100:
            saved = past
            save(trainer.ema)
    print(f"transformer steps {step}", flush=True)
    save(trainer.ema)
