"""The engine: one edit from a prepared picture to a decoded one, as a stream of events. Knows no job, path or database.

Closing the generator at any yield ends the run within one transformer block and frees what it held.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from realchar.catalog import BaseInfo
from realchar.engine.blocks import StreamedBlocks
from realchar.engine.denoise import Branch, guided
from realchar.engine.devices import cap, compute_dtype, find_device, free_bytes, release
from realchar.engine.families.base import ModelFamily, Reference
from realchar.engine.families.qwen_image_edit import LATENT, QwenImageEdit
from realchar.engine.finish import picture_of
from realchar.engine.ladder import keep_or_fewer, with_fewer_blocks, with_smaller_tiles
from realchar.engine.memory import FREE_SHARE, Footprint, Need, plan_resident, plan_tile, steady
from realchar.engine.preview import fit_preview, render_preview, stored_preview
from realchar.engine.tiling import Tile, count
from realchar.engine.work import ticking
from realchar.errors import OutOfMemory, ResultError
from realchar.headers import read_parts
from realchar.machine import GB, read_memory
from realchar.schema import Decoded, EditRequest, Event, Memory, Planned, Stage, Step, Tick
from realchar.settings import Offload, Settings

log = logging.getLogger("realchar.engine")

CACHED_PROMPTS = 32
T = TypeVar("T")


@dataclass
class _Run:
    """What one edit holds on the device."""

    request: EditRequest
    prompt_embeds: list[Tensor]
    reference: Reference
    scheduler: FlowMatchEulerDiscreteScheduler
    latents: Tensor
    preview: Tensor
    began: float
    velocity: Tensor | None = None

    @property
    def timesteps(self) -> Tensor:
        """Return the schedule as the transformer takes it: (steps,), 1 to 0."""
        timesteps: Tensor = self.scheduler.timesteps
        return timesteps.to(self.latents.dtype) / 1000


class Engine:
    """Holds one base on one device. `run` may be called again and again, one run at a time."""

    def __init__(
        self, base: BaseInfo, family: ModelFamily, resident_blocks: int | None = None, budget: int | None = None
    ) -> None:
        """Where blocks are streamed, `resident_blocks` of them stay on the device; None: as many as the budget allows.

        budget: bytes that the whole process may take on a card; None: what is free. Both may be set between runs.
        """
        self.base = base
        self.family = family
        self.resident_blocks = resident_blocks
        self.budget = budget
        self._prompts: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    @classmethod
    def load(
        cls,
        base: BaseInfo,
        device: str = "auto",
        offload: Offload = Offload.RESIDENT,
        resident_blocks: int | None = None,
        budget: int | None = None,
    ) -> Engine:
        """Load a base: bfloat16 on a GPU, float32 on the CPU. Raises ModelError, OutOfMemory or InvalidInput.

        offload: resident keeps all weights on the device; stream: what is no layer, and as many blocks as fit; model
        and sequential are accelerate's, for a card only; auto: stream on a card, else resident. A budget holds for
        everything on a card from here on: what asks for more fails.
        """
        target = find_device(device)
        offload = offload.resolved(on_gpu=target.type == "cuda")
        footprint = Footprint.of(base, on_gpu=target.type == "cuda")
        cap(target, None if budget is None else budget - footprint.process)
        try:
            family = QwenImageEdit.load(base.path, target, compute_dtype(target), offload, resident_blocks or 0)
        except torch.OutOfMemoryError:
            needs, remedy = f"{base.weight_bytes / 1e9:.1f} GB on {target}", "choose the offload mode stream"
            if offload is Offload.STREAM:
                needs, remedy = f"memory on {target} for {resident_blocks or 0} resident blocks", "choose fewer of them"
        else:
            log.info("Base %r on %s, offload mode %s", base.title, target, offload)
            return cls(base, family, resident_blocks, budget)
        release(target)  # outside the `except`, which kept the tensors alive
        raise OutOfMemory(
            "oom_load", f"Base {base.title!r} needs {needs}, more than is free; close other programs, or {remedy}."
        )

    @classmethod
    def from_settings(cls, base: BaseInfo, settings: Settings) -> Engine:
        """Load a base as the settings say. Raises as `load`."""
        return cls.load(base, settings.device, settings.offload, settings.kept_blocks, settings.budget)

    @property
    def on_gpu(self) -> bool:
        return self.family.device.type == "cuda"

    @property
    def _footprint(self) -> Footprint:
        return Footprint.of(self.base, on_gpu=self.on_gpu)

    @property
    def _room(self) -> int | None:
        """Return the bytes that tensors may take, or None: what is free."""
        return None if self.budget is None else self.budget - self._footprint.process

    @property
    def mode(self) -> Offload:
        """Return the offload mode in effect, never `auto`."""
        return self.family.blocks.mode

    @property
    def device_name(self) -> str:
        device = self.family.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

    def run(
        self, request: EditRequest, picture: Image.Image, box: tuple[int, int, int, int], loras: list[Path]
    ) -> Iterator[Event]:
        """Edit `picture` (RGB, sides multiples of 32) and crop the result to `box` (left, top, right, bottom).

        `loras` are the files of `request.loras`, in order. Yields the stages' events; the last is `Decoded`.
        Raises ModelError, OutOfMemory, ResultError.
        """
        stage = "start"
        try:
            for event in self._stages(request, picture, box, loras):
                stage = event.stage if isinstance(event, Stage) else stage
                yield event
            return
        except torch.OutOfMemoryError:
            pass
        finally:
            self.family.rest()
            release(self.family.device)
        other = "" if self.family.blocks.mode is Offload.STREAM else " or the offload mode stream"
        raise OutOfMemory(
            "oom",
            f"Not enough memory at stage {stage!r} for {picture.width}x{picture.height} on {self.family.device}; close "
            f"other programs, or choose a smaller size{other}.",
            stage=stage,
        )

    def _stages(
        self, request: EditRequest, picture: Image.Image, box: tuple[int, int, int, int], loras: list[Path]
    ) -> Iterator[Event]:
        began = time.monotonic()
        # 1. Weights: exactly the versions that this request names
        if loras:
            yield Stage("load")
        yield from self._fit_blocks(request, picture, loras)
        yield from self._spared(partial(self._use, request, loras))
        # 2. Prompt and negative prompt, read beside the picture
        yield Stage("encode_text")
        embeds = yield from self._spared(partial(self._encode_prompts, picture, self._prompts_of(request)))
        # 3. The reference, at the output's own size
        yield Stage("encode_image")
        size = picture.height // LATENT, picture.width // LATENT
        tile = self._tile(size, request.tile)
        encode = partial(self.family.encode_image, picture)
        reference = yield from self._spared(partial(with_smaller_tiles, encode, size, tile, self.family.device))
        yield Tick()
        # 4. Plan
        yield Stage("plan")
        plan = self._plan(count(size, tile))
        yield plan
        # 5. Denoise
        yield Stage("denoise")
        run = self._start(request, embeds, reference, began)
        yield from self._spared(lambda: ticking(self.family.blocks.prepare(run.timesteps)))
        yield from self._denoise(run)
        # 6. Decode
        yield Stage("decode")
        decode = partial(self.family.decode, self._result(run))
        pixels = yield from self._spared(partial(with_smaller_tiles, decode, size, tile, self.family.device))
        image = picture_of(pixels).crop(box)
        yield self._memory()
        yield Decoded(image, self._facts(plan))

    def _fit_blocks(
        self, request: EditRequest, picture: Image.Image, loras: list[Path]
    ) -> Generator[Event, None, None]:
        """Let as many blocks stay on the device as were asked for, or as fit the budget beside this run."""
        cap(self.family.device, self._room)  # the budget may be another one than at the last run
        blocks = self.family.blocks
        if not isinstance(blocks, StreamedBlocks):
            return
        wanted = self.resident_blocks
        if wanted is None:
            lora_bytes = sum(path.stat().st_size for path in loras)
            need = Need.of(read_parts(self.base.path), self._footprint, *picture.size, request.steps, lora_bytes)
            free = int(free_bytes(self.family.device) * FREE_SHARE)
            total = self.budget or need.process + need.fixed + blocks.num_bytes + free
            wanted = steady(plan_resident(need, total), blocks.num_resident, need.blocks)
        yield from keep_or_fewer(blocks, wanted, self.family.device)

    def _spared(self, attempt: Callable[[], Generator[Event, None, T]]) -> Generator[Event, None, T]:
        return with_fewer_blocks(attempt, self.family.blocks, self.family.device)

    def _use(self, request: EditRequest, loras: list[Path]) -> Generator[Event, None, None]:
        strengths = [ref.strength for ref in request.loras]
        self.family.adapters.use(list(zip(loras, strengths, strict=True)))
        yield from ()

    def _prompts_of(self, request: EditRequest) -> list[str]:
        """Return the prompts to run: the negative one counts only where CFG does."""
        return [request.prompt, request.negative_prompt or " "] if request.cfg > 1 else [request.prompt]

    def _encode_prompts(self, picture: Image.Image, prompts: list[str]) -> Generator[Event, None, list[Tensor]]:
        """Encode, or take from the cache: key is the picture's pixels and the prompt (template and base are fixed)."""
        digest = hashlib.sha256(picture.tobytes() + repr(picture.size).encode()).hexdigest()
        lacking = [prompt for prompt in dict.fromkeys(prompts) if (digest, prompt) not in self._prompts]
        if lacking:
            embeds = yield from ticking(self.family.encode_prompts(picture, lacking))
            self._prompts.update({(digest, prompt): found for prompt, found in zip(lacking, embeds, strict=True)})
        for prompt in prompts:
            self._prompts.move_to_end((digest, prompt))
        found = [self._prompts[digest, prompt] for prompt in prompts]
        while len(self._prompts) > CACHED_PROMPTS:
            self._prompts.popitem(last=False)
        return found

    def _tile(self, size: Tile, asked: int | None) -> Tile | None:
        """Return the tile for a picture of `size` latents: of `asked` pixels, else by the memory that is free now."""
        if asked is not None:
            tile = min(size[0], asked // LATENT), min(size[1], asked // LATENT)
            return None if tile == size else tile
        return plan_tile(self._footprint, size, free_bytes(self.family.device, self._room), self.family.halo)

    def _plan(self, tiles: int) -> Planned:
        return Planned(
            mode=self.family.blocks.mode,
            resident=self.family.blocks.num_resident,
            blocks=self.family.num_blocks,
            vae_tiles=tiles,
            device=str(self.family.device),
            dtype=str(self.family.dtype).removeprefix("torch."),
            attention="sdpa",
            budget_gb=None if self.budget is None else self.budget / GB,
        )

    @torch.inference_mode()
    def _start(self, request: EditRequest, embeds: list[Tensor], reference: Reference, began: float) -> _Run:
        latents = self.family.noise(reference.shape, request.seed)
        scheduler = self.family.scheduler(request.steps, latents.shape[1])
        matrix = stored_preview(self.base.preview, reference.latents)
        if matrix is None:
            matrix = fit_preview(reference.latents, reference.pixels)
        return _Run(request, embeds, reference, scheduler, latents, matrix, began)

    def _denoise(self, run: _Run) -> Iterator[Event]:
        steps = run.request.steps
        first = time.monotonic()
        for i in range(steps):
            yield from self._spared(partial(self._step, run, i))
            now = time.monotonic()
            eta = (now - first) / (i + 1) * (steps - i - 1)
            yield Step(i + 1, steps, now - run.began, eta, self._preview(run, i))
            yield self._memory()

    def _step(self, run: _Run, i: int) -> Generator[Event, None, None]:
        """Take one Euler step; a `Tick` after every block. Inference mode is left at each yield: it is per thread."""
        with torch.inference_mode():
            timestep = run.timesteps[i : i + 1]
            shape = run.reference.shape
            branches = [
                Branch(run.latents, run.reference.tokens, embeds, timestep, (shape, shape))
                for embeds in run.prompt_embeds
            ]
            blocks = self.family.velocities(branches)
        velocities = yield from ticking(blocks)
        with torch.inference_mode():
            velocity = velocities[0]
            if len(velocities) == 2:
                velocity = guided(velocities[0], velocities[1], run.request.cfg)
            run.velocity = velocity
            run.latents = run.scheduler.step(velocity, run.scheduler.timesteps[i], run.latents, return_dict=False)[0]

    @torch.inference_mode()
    def _preview(self, run: _Run, i: int) -> Image.Image:
        """Show where the run is heading: the picture that the last velocity predicts."""
        assert run.velocity is not None
        clean = run.latents - run.scheduler.sigmas[i + 1] * run.velocity
        return render_preview(self.family.unpack(clean, run.reference.shape), run.preview)

    def _memory(self) -> Memory:
        reading = read_memory(str(self.family.device))
        return Memory(reading.kind, reading.used_gb, reading.total_gb)

    def _result(self, run: _Run) -> Tensor:
        """Return the final latents (1, C, h, w), refusing numbers that are none."""
        if not torch.isfinite(run.latents).all():
            raise ResultError(
                "nan",
                "The result came out empty: numbers overflowed while denoising; choose another LoRA version or CFG.",
            )
        run.velocity = None  # no longer needed, and decoding is where memory is shortest
        return self.family.unpack(run.latents, run.reference.shape)

    def _facts(self, plan: Planned) -> dict[str, Any]:
        base, kept = self.base, self.family.blocks.num_resident  # fewer than planned where memory was short
        return {
            "base": {"title": base.title, "fingerprint": base.fingerprint, "demo": base.demo},
            "plan": asdict(plan) | {"resident": kept, "device": self.device_name},
            "torch": torch.__version__,
        }
