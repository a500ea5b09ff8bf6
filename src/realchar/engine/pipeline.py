"""The engine: one edit from a prepared picture to a decoded one, as a stream of events. Knows no job, path or database.

Closing the generator at any yield ends the run within one transformer block and frees what it held.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from realchar.catalog import BaseInfo
from realchar.engine.denoise import Branch, guided
from realchar.engine.families.base import ModelFamily, Reference
from realchar.engine.families.qwen_image_edit import LATENT, QwenImageEdit
from realchar.engine.ladder import free, with_smaller_tiles
from realchar.engine.memory import Footprint, plan_tile
from realchar.engine.preview import fit_preview, render_preview, stored_preview
from realchar.engine.tiling import Tile, count
from realchar.errors import InvalidInput, OutOfMemory, ResultError
from realchar.machine import GB, read_memory, read_ram
from realchar.schema import Decoded, EditRequest, Event, Memory, Planned, Stage, Step, Tick

CACHED_PROMPTS = 32
FLAT_RANGE = 2  # of 255: a picture whose channels all vary less than this shows nothing


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


class Engine:
    """Holds one base on one device. `run` may be called again and again, one run at a time."""

    def __init__(self, base: BaseInfo, family: ModelFamily) -> None:
        self.base = base
        self.family = family
        self._prompts: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    @classmethod
    def load(cls, base: BaseInfo, device: str = "auto") -> Engine:
        """Load a base: bfloat16 on a GPU, float32 on the CPU. Raises ModelError, OutOfMemory or InvalidInput."""
        target = _device(device)
        dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
        try:
            family = QwenImageEdit.load(base.path, target, dtype)
        except torch.OutOfMemoryError:
            needed = base.weight_bytes / 1e9
        else:
            return cls(base, family)
        free(target)  # outside the `except`, which kept the tensors alive
        raise OutOfMemory(
            "oom_load",
            f"Base {base.title!r} needs {needed:.1f} GB on {target}, more than is free; close other programs.",
        )

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
            free(self.family.device)
        raise OutOfMemory(
            "oom",
            f"Not enough memory at stage {stage!r} for {picture.width}x{picture.height} on {self.family.device}; close "
            "other programs, or choose a smaller size.",
            stage=stage,
        )

    def _stages(
        self, request: EditRequest, picture: Image.Image, box: tuple[int, int, int, int], loras: list[Path]
    ) -> Iterator[Event]:
        began = time.monotonic()
        # 1. Weights: exactly the versions that this request names
        if loras:
            yield Stage("load")
        strengths = [ref.strength for ref in request.loras]
        self.family.adapters.use(list(zip(loras, strengths, strict=True)))
        # 2. Prompt and negative prompt, read beside the picture
        yield Stage("encode_text")
        embeds = []
        for prompt in self._prompts_of(request):
            embeds.append(self._encode_prompt(picture, prompt))
            yield Tick()
        # 3. The reference, at the output's own size
        yield Stage("encode_image")
        reference = yield from self._encode_image(picture, request.tile)
        yield Tick()
        # 4. Plan
        yield Stage("plan")
        plan = self._plan(*self._latents(picture), request.tile)
        yield plan
        # 5. Denoise
        yield Stage("denoise")
        run = self._start(request, embeds, reference, began)
        yield from self._denoise(run)
        # 6. Decode
        yield Stage("decode")
        image = (yield from self._decode(run, *self._latents(picture))).crop(box)
        yield self._memory()
        yield Decoded(image, self._facts(plan))

    def _prompts_of(self, request: EditRequest) -> list[str]:
        """Return the prompts to run: the negative one counts only where CFG does."""
        return [request.prompt, request.negative_prompt or " "] if request.cfg > 1 else [request.prompt]

    @torch.inference_mode()
    def _encode_prompt(self, picture: Image.Image, prompt: str) -> Tensor:
        """Encode, or take from the cache: key is the picture's pixels and the prompt (template and base are fixed)."""
        digest = hashlib.sha256(picture.tobytes() + repr(picture.size).encode()).hexdigest()
        key = (digest, prompt)
        if key not in self._prompts:
            self._prompts[key] = self.family.encode_prompt(picture, prompt)
            while len(self._prompts) > CACHED_PROMPTS:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(key)
        return self._prompts[key]

    @staticmethod
    def _latents(picture: Image.Image) -> tuple[int, int]:
        return picture.height // LATENT, picture.width // LATENT

    def _tile(self, rows: int, columns: int, asked: int | None) -> Tile | None:
        """Return the tile for a picture of so many latents: of `asked` pixels, else by the memory that is free now."""
        if asked is not None:
            tile = min(rows, max(1, asked // LATENT)), min(columns, max(1, asked // LATENT))
            return None if tile == (rows, columns) else tile
        device = self.family.device
        footprint = Footprint.of(self.base, on_gpu=device.type == "cuda")
        return plan_tile(footprint, rows, columns, free_bytes(device), self.family.halo)

    def _encode_image(self, picture: Image.Image, asked: int | None) -> Generator[Event, None, Reference]:
        size = self._latents(picture)
        encode = partial(self.family.encode_image, picture)
        return (yield from with_smaller_tiles(encode, *size, self._tile(*size, asked), self.family.device))

    def _plan(self, rows: int, columns: int, asked: int | None) -> Planned:
        blocks = self.family.num_blocks
        return Planned(
            mode="resident",
            resident=blocks,
            blocks=blocks,
            vae_tiles=count(rows, columns, self._tile(rows, columns, asked)),
            device=str(self.family.device),
            dtype=str(self.family.dtype).removeprefix("torch."),
            attention="sdpa",
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
            yield from self._step(run, i)
            now = time.monotonic()
            eta = (now - first) / (i + 1) * (steps - i - 1)
            yield Step(i + 1, steps, now - run.began, eta, self._preview(run, i))
            yield self._memory()

    def _step(self, run: _Run, i: int) -> Iterator[Event]:
        """Take one Euler step; a `Tick` after every block. Inference mode is left at each yield: it is per thread."""
        with torch.inference_mode():
            timestep = run.scheduler.timesteps[i : i + 1].to(run.latents.dtype) / 1000
            shape = run.reference.shape
            branches = [
                Branch(run.latents, run.reference.tokens, embeds, timestep, (shape, shape))
                for embeds in run.prompt_embeds
            ]
            blocks = self.family.velocities(branches)
        while True:
            with torch.inference_mode():
                try:
                    next(blocks)
                except StopIteration as end:
                    velocities: list[Tensor] = end.value
                    break
            yield Tick()
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

    def _decode(self, run: _Run, rows: int, columns: int) -> Generator[Event, None, Image.Image]:
        """Decode the final latents, refusing numbers that are none and pictures of one colour."""
        if not torch.isfinite(run.latents).all():
            raise ResultError(
                "nan",
                "The result came out empty: numbers overflowed while denoising; choose another LoRA version or CFG.",
            )
        run.velocity = None  # no longer needed, and decoding is where memory is shortest
        latents = self.family.unpack(run.latents, run.reference.shape)
        tile = self._tile(rows, columns, run.request.tile)
        decode = partial(self.family.decode, latents)
        pixels = yield from with_smaller_tiles(decode, rows, columns, tile, self.family.device)
        return _picture(pixels)

    def _facts(self, plan: Planned) -> dict[str, Any]:
        base = self.base
        return {
            "base": {"title": base.title, "fingerprint": base.fingerprint, "demo": base.demo},
            "plan": {"mode": plan.mode, "device": self.device_name, "dtype": plan.dtype, "attention": plan.attention},
            "torch": torch.__version__,
        }


@torch.inference_mode()
def _picture(pixels: Tensor) -> Image.Image:
    """Return pixels (1, 3, H, W) in -1…1 as a picture, or raise ResultError where they are none."""
    if not torch.isfinite(pixels).all():
        raise ResultError("nan", "The result came out empty: numbers overflowed in the VAE; try another seed.")
    array = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)[0].permute(1, 2, 0).cpu().numpy()
    spread = (array.max(axis=(0, 1)).astype(int) - array.min(axis=(0, 1))).max()
    if spread < FLAT_RANGE:
        raise ResultError("flat", "The result has a single colour; lower CFG or the LoRA's strength and try again.")
    return Image.fromarray(array, "RGB")


def free_bytes(device: torch.device) -> int:
    """Return how much memory a run can take on `device` now; what torch keeps cached counts as free."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    reading = read_ram()
    return int((reading.total_gb - reading.used_gb) * GB)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    there = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
    if not there:
        raise InvalidInput("device", f"Device {name!r} is not usable here; choose auto, cpu or cuda.", name=name)
    return device
