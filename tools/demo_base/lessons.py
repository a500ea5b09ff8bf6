"""What the transformer is taught: which pictures stand beside which prompt, and everything random in a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from tools.demo_base.embeddings import KEEP, PHOTO, UNCONDITIONAL
from tools.demo_base.latents import DRAWING, HALF_WAY, Cache
from tools.demo_base.latents import PHOTO as PHOTO_LOOK
from tools.demo_base.pairs import uniform

DRAWING_SHARE = 0.03  # of the negative branch's rows, the target is the drawing: guidance leads away from it
GUIDED_WEIGHT = 0.05
GUIDANCE = (1.0, 9.0)
SHIFT = math.exp(0.5)  # of the schedule at 256 tokens
FIRST_SHARE = 0.1  # of the rows, pure noise: where every sampling starts, and where the mean is learnt
# In tokens; all but the first are crops of the latents.
GRIDS = {(22, 22): 0.64, (22, 16): 0.12, (16, 22): 0.12, (16, 16): 0.12}

T = TypeVar("T")


@dataclass(frozen=True)
class Lesson:
    """A training's aim: what the photo prompts make of a drawing, and the shares of the other tasks.

    look: the target's index in the latent cache; photo_share: of the rows, the reference is the photo itself, which is
    to stay; keep_share: of the steps, the second prompt is to keep the picture as it is, else it is a negative one.
    settled: how far, of 1, the target's coarse part is drawn to what the model itself expects. A drawing does not tell
    where the light falls or which lamps are behind; a sample of that is further from the truth than the mean is, and
    no sharper. Fine parts stay as they are, and so do the first steps' targets, from which the mean is learnt.
    settled_eyes: the same for eyes, with all their detail: the drawing tells nearly all of them, and a sampled one is
    no more like the photo's, but at times half of another.
    """

    look: int
    photo_share: float
    keep_share: float
    learning_rate: float
    warmup: int
    batch: int = 48
    second_batch: int = 16  # rows of the second prompt of a step
    settled: float = 0.0
    settled_eyes: float = 0.0


BASE = Lesson(HALF_WAY, photo_share=0.25, keep_share=0.2, learning_rate=1e-3, warmup=400)
ADAPTER = Lesson(
    PHOTO_LOOK, photo_share=0.05, keep_share=0.1, learning_rate=1e-3, warmup=400, settled=0.65, settled_eyes=0.8
)
# From a version's file on: its factors are large already, and an optimizer that knows nothing yet breaks them at 1e-3.
GOING_ON = replace(ADAPTER, learning_rate=4e-4, warmup=1000)


class Kind(NamedTuple):
    """What decides the shapes of a step: both prompts and the grid of tokens."""

    first: str
    second: str
    grid: tuple[int, int]


@dataclass
class Batch:
    """What a step draws, in buffers that a CUDA graph reads: N rows, M of them for the second prompt.

    source, target, noise (N, C, h, w): reference, aim and noise of the first prompt; eyes (N, 1, h, w): 1 where they
    are; stays (M, 1, 1, 1): 1 where the
    second prompt's aim is the reference itself; sigma (N,); guide (M,): weight of the guided loss; scale (M, 1, 1) of
    guidance; pictures (2, N): whose embeddings the first and the second prompt take.
    """

    source: Tensor
    target: Tensor
    noise: Tensor
    eyes: Tensor
    stays: Tensor
    sigma: Tensor
    guide: Tensor
    scale: Tensor
    pictures: Tensor

    def copy_(self, other: Batch) -> None:
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))

    def to(self, device: torch.device) -> Batch:
        return Batch(**{field.name: getattr(self, field.name).to(device).clone() for field in fields(self)})


def choose(weights: dict[T, float], draw: torch.Generator) -> T:
    index = torch.multinomial(torch.tensor(list(weights.values())), 1, generator=draw)
    return list(weights)[int(index)]


def sigmas(count: int, draw: torch.Generator) -> Tensor:
    """Draw half of them from a logit-normal, half evenly over the engine's schedule, which starts at 1; some are 1."""
    middle = torch.sigmoid(torch.randn(count, generator=draw) + 0.3)
    even = torch.rand(count, generator=draw)
    even = SHIFT * even / (1 + (SHIFT - 1) * even)
    drawn = torch.where(torch.rand(count, generator=draw) < 0.5, middle, even)
    return torch.where(torch.rand(count, generator=draw) < FIRST_SHARE, torch.ones(()), drawn)


def draw_kind(lesson: Lesson, draw: torch.Generator) -> Kind:
    second = KEEP if uniform(draw) < lesson.keep_share else UNCONDITIONAL
    return Kind(choose(PHOTO, draw), choose(second, draw), choose(GRIDS, draw))


def draw_batch(
    lesson: Lesson, kind: Kind, cache: Cache, embedded: int, draw: torch.Generator, guide: bool = True
) -> Batch:
    """Draw a step's batch from the latent cache; `embedded` pictures have embeddings."""
    rows, second_rows = lesson.batch, lesson.second_batch
    latents, device = cache.latents, cache.latents.device
    index = [torch.randint(n, (rows,), generator=draw).to(device) for n in latents.shape[:2]]
    height, width = 2 * kind.grid[0], 2 * kind.grid[1]
    top = int(uniform(draw) * (latents.shape[-2] - height + 1))
    left = int(uniform(draw) * (latents.shape[-1] - width + 1))
    looks, eyes = (some[index[0], index[1]][..., top : top + height, left : left + width].float() for some in cache)
    is_photo = torch.rand(rows, generator=draw) < lesson.photo_share
    stays = torch.rand(second_rows, generator=draw) < (1.0 if kind.second in KEEP else DRAWING_SHARE)
    guided = guide and kind.second not in KEEP
    source = _pick(is_photo, looks[:, PHOTO_LOOK], looks[:, DRAWING])
    target = _pick(is_photo, looks[:, PHOTO_LOOK], looks[:, lesson.look])
    low, high = GUIDANCE
    return Batch(
        source=source,
        target=target,
        noise=torch.randn(source.shape, device=device),
        eyes=eyes,
        stays=stays.float().view(-1, 1, 1, 1),
        sigma=sigmas(rows, draw),
        guide=(GUIDED_WEIGHT if guided else 0.0) * (~stays).float(),
        scale=low + (high - low) * torch.rand(second_rows, 1, 1, generator=draw),
        pictures=torch.randint(embedded, (2, rows), generator=draw),
    )


def _pick(which: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(which.to(one.device).view(-1, 1, 1, 1), one, other)
