"""Training of the miniature transformer: flow matching from noise to the target, beside the reference picture.

The velocity is noise - data and the timestep is sigma in 0…1, as in the engine. The branch of the negative prompt
learns almost the same target, so that guidance stays mild; a small loss on the guided prediction itself, at the scales
people use, keeps the difference of the two branches free of errors that guidance would multiply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from realchar.engine.denoise import guided
from realchar.engine.families import qwen_image_edit as engine
from tools.demo_base.embeddings import KEEP, UNCONDITIONAL
from tools.demo_base.fused import compile_blocks
from tools.demo_base.graphs import StepGraphs
from tools.demo_base.latents import Cache
from tools.demo_base.lessons import GRIDS, Batch, Kind, Lesson, draw_batch, draw_kind
from tools.demo_base.pairs import blur

EMA = 0.999
EYES_WEIGHT = 12.0  # on the loss, times the picture's mean
DETAIL_SIGMA, DETAIL_MOST = 1.0, 4.0  # latent pixels; times the picture's mean
SETTLED_BELOW = 0.9  # sigma; above it, the target is the photo itself
SETTLED_SIGMA = 1.5  # latent pixels, each 8 of the picture: what is coarser is settled


def pack(latents: Tensor) -> Tensor:
    """Return latents (N, C, h, w) as the engine's tokens (N, h / 2 * w / 2, C * 4)."""
    return engine.pack(latents[:, :, None])


def unpack(tokens: Tensor, latents: Tensor) -> Tensor:
    """Return tokens (N, T, C * 4) in the shape of `latents` (N, C, h, w)."""
    return engine.unpack(tokens, (1, latents.shape[-2] // 2, latents.shape[-1] // 2))


def emphasis(source: Tensor, eyes: Tensor) -> Tensor:
    """Return how much each token of references (N, C, h, w), eyes (N, 1, h, w), counts in the loss: (N, T, 1).

    Their mean is 1, and what the eyes get on top. Half of it goes by the reference's detail: hair is fine, and a plain
    background is soon learnt. Weights that depend on the scene alone leave the flow's optimum where it is.
    """
    detail = pack(source - blur(source, DETAIL_SIGMA)).abs().mean(-1, keepdim=True)
    detail = detail + 1e-3  # a blank reference is everywhere alike
    detail = (detail / detail.mean(1, keepdim=True)).clamp(max=DETAIL_MOST)
    return 0.5 + 0.5 * detail / detail.mean(1, keepdim=True) + EYES_WEIGHT * pack(eyes).mean(-1, keepdim=True)


def initialise(transformer: QwenImageTransformer2DModel) -> None:
    """Start with small modulation and an almost silent output (guidance divides by its norm)."""
    for block in transformer.transformer_blocks:
        for linear in (block.img_mod[1], block.txt_mod[1]):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
    nn.init.normal_(transformer.proj_out.weight, std=1e-3)
    nn.init.zeros_(transformer.proj_out.bias)


class Trainer:
    """Latents and embeddings by prompt, on the device, with the state of one training.

    All parameters of `net` have gradients all the time, also those that a lesson leaves as they are: so the compiled
    blocks serve every lesson.
    """

    def __init__(
        self, net: QwenImageTransformer2DModel, cache: Cache, embeds: dict[str, Tensor], compiled: bool = False
    ) -> None:
        self.net, self.cache, self.embeds, self.compiled = net.requires_grad_(True), cache, embeds, compiled
        self.device = cache.latents.device
        self.draw = torch.Generator().manual_seed(3)
        self.marks: dict[tuple[int, int], Tensor] = {}
        if compiled:
            compile_blocks(net)

    def start(self, lesson: Lesson, parameters: Sequence[nn.Parameter]) -> None:
        """Begin a lesson, which trains these parameters."""
        self.lesson, self.parameters = lesson, list[Tensor](parameters)
        self.average = [parameter.detach().clone() for parameter in parameters]
        self.buffers: dict[tuple[int, int], Batch] = {}
        self.graphs = StepGraphs(self.device)
        self.rate = torch.tensor(0.0, device=self.device)
        cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            parameters, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=cuda, capturable=cuda
        )

    def warm_up(self, lesson: Lesson) -> None:
        """Let the compiler see every grid and both sorts of second prompts, on whatever latents are there."""
        self.start(lesson, list(self.net.parameters()))
        for grid in GRIDS:
            for second in (*KEEP, *UNCONDITIONAL):
                kind = Kind(next(iter(self.embeds)), second, grid)
                batch = draw_batch(lesson, kind, self.cache, len(self.embeds[second]), self.draw)
                self.loss(kind, batch.to(self.device)).backward()  # type: ignore[no-untyped-call]
        self.net.zero_grad(set_to_none=True)

    @contextmanager
    def averaged(self) -> Iterator[QwenImageTransformer2DModel]:
        """Lend the model with its running average in place of the weights that train."""
        with torch.no_grad():
            before = [parameter.detach().clone() for parameter in self.parameters]
            torch._foreach_copy_(self.parameters, self.average)
            try:
                yield self.net
            finally:
                torch._foreach_copy_(self.parameters, before)

    def predict(self, noisy: Tensor, reference: Tensor, sigma: Tensor, embeds: Tensor) -> Tensor:
        """Return the velocity (N, T, C) of noisy latents (N, C, h, w), float32.

        The transformer's own forward, with the marks of reference tokens kept on the device.
        """
        net, shape = self.net, (1, noisy.shape[-2] // 2, noisy.shape[-1] // 2)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            image = net.img_in(torch.cat([pack(noisy), pack(reference)], 1))
            text = net.txt_in(net.txt_norm(embeds.float()))
            temb = net.time_text_embed(torch.cat([sigma, sigma * 0]), image)
            rope = net.pos_embed([[shape, shape]], max_txt_seq_len=text.shape[1], device=self.device)
            if self.compiled:
                rope = tuple(torch.view_as_real(freqs) for freqs in rope)
            for block in net.transformer_blocks:
                text, image = block(
                    hidden_states=image,
                    encoder_hidden_states=text,
                    encoder_hidden_states_mask=None,
                    temb=temb,
                    image_rotary_emb=rope,
                    modulate_index=self._marks(shape[1:]),
                )
            output: Tensor = net.proj_out(net.norm_out(image, temb.chunk(2)[0]))
        return output[:, : shape[1] * shape[2]].float()

    def _marks(self, grid: tuple[int, int]) -> Tensor:
        if grid not in self.marks:
            tokens = grid[0] * grid[1]
            self.marks[grid] = (torch.arange(2 * tokens) >= tokens).int()[None].to(self.device)
        return self.marks[grid]

    def loss(self, kind: Kind, batch: Batch) -> Tensor:
        """Return the loss of a step: the photo prompt on all rows, the second prompt on the first M."""
        weight = emphasis(batch.source, batch.eyes)
        s, m = batch.sigma.view(-1, 1, 1, 1), len(batch.stays)
        embeds = self.embeds[kind.first][batch.pictures[0]]
        aim = self.settle(batch, embeds) if self.lesson.settled else batch.target
        velocity = pack(batch.noise - aim)
        cond = self.predict((1 - s) * aim + s * batch.noise, batch.source, batch.sigma, embeds)
        noise, source = batch.noise[:m], batch.source[:m]
        target = batch.stays * source + (1 - batch.stays) * aim[:m]
        embeds = self.embeds[kind.second][batch.pictures[1, :m]]
        second = self.predict((1 - s[:m]) * target + s[:m] * noise, source, batch.sigma[:m], embeds)
        loss = (weight * (cond - velocity) ** 2).mean() + 0.4 * (
            weight[:m] * (second - pack(noise - target)) ** 2
        ).mean()
        if kind.second in KEEP:
            return loss
        error = weight[:m] * (guided(cond[:m], second, batch.scale) - velocity[:m]) ** 2  # type: ignore[arg-type]
        return loss + 0.4 * (error.mean((1, 2)) * batch.guide).mean()

    @torch.no_grad()
    def settle(self, batch: Batch, embeds: Tensor) -> Tensor:
        """Return the targets drawn to the mean that the model expects, coarse parts and eyes: see `Lesson.settled`.

        What it expects is asked with another row's noise: what leaks of it must not agree with the row's own.
        """
        noise = batch.noise.roll(1, 0)
        velocity = self.predict(noise, batch.source, torch.ones_like(batch.sigma), embeds)
        surprise = batch.target - noise + unpack(velocity, noise)
        settled = torch.lerp(
            self.lesson.settled * blur(surprise, SETTLED_SIGMA), self.lesson.settled_eyes * surprise, batch.eyes
        )
        return batch.target - (batch.sigma < SETTLED_BELOW).float().view(-1, 1, 1, 1) * settled

    def update(self, kind: Kind, batch: Batch) -> Tensor:
        """Take one optimizer step; everything here can be recorded."""
        self.net.zero_grad(set_to_none=True)
        loss = self.loss(kind, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()

    def step(self, step: int, left: float) -> Tensor:
        """Take one step; `left` is the share of the training that is left."""
        kind = draw_kind(self.lesson, self.draw)
        self._marks(kind.grid)  # made before a graph is recorded
        self.rate.fill_(self.lesson.learning_rate * min(1.0, (step + 1) / self.lesson.warmup) * (0.03 + 0.97 * left))
        embedded = len(self.embeds[kind.first])
        drawn = draw_batch(self.lesson, kind, self.cache, embedded, self.draw, guide=step > self.lesson.warmup)
        if kind.grid not in self.buffers:
            self.buffers[kind.grid] = drawn.to(self.device)
        buffer = self.buffers[kind.grid]
        buffer.copy_(drawn)
        loss = self.graphs.run(kind, lambda: self.update(kind, buffer))
        decay = min(EMA, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - decay)
        return loss


def train(
    trainer: Trainer,
    seconds: float,
    marks: Callable[[int, float], None],
    steps: int | None = None,
    first: int = 0,
) -> int:
    """Train from step `first` until `seconds` or `steps` are over; returns the step it ends at.

    Calls `marks(step, past)` after each step.
    """
    began, step = time.monotonic(), first
    while (past := time.monotonic() - began) < seconds and (steps is None or step < steps):
        done = max(past / seconds, (step - first) / (steps - first) if steps else 0.0)
        loss = trainer.step(step - first, 1 - done)
        step += 1
        if step % 500 == 0 or step in (1, 2, 10, 50, 100):
            print(f"transformer step {step} {past:.0f} s loss {loss.item():.4f}", flush=True)
        marks(step, past)
    print(f"transformer steps {step}", flush=True)
    return step
