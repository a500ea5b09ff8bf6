"""The engine: one edit from a prepared picture to a decoded one, as a stream of events. Knows no job, path or database.

Closing the generator at any yield ends the run within one transformer block and frees what it held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from realchar.catalog import BaseInfo
from realchar.engine.allotment import Allotment
from realchar.engine.denoising import Denoising
from realchar.engine.devices import cap, check_speed, compute_dtype, find_device, release
from realchar.engine.families.base import ModelFamily, Reference
from realchar.engine.families.qwen_image_edit import LATENT, PATCH, QwenImageEdit
from realchar.engine.finish import picture_of
from realchar.engine.ladder import with_smaller_tiles
from realchar.engine.memory import Footprint
from realchar.engine.pace import Pace
from realchar.engine.prompts import PromptCache, prompts_of
from realchar.engine.switching import Switch, switched, use, versions_of
from realchar.engine.tiling import count
from realchar.engine.together import Make, Together, Work
from realchar.engine.work import ticking
from realchar.errors import InvalidInput, OutOfMemory
from realchar.machine import GB, read_memory
from realchar.schema import (
    Decoded,
    Degraded,
    EditRequest,
    Ended,
    Event,
    Memory,
    Planned,
    Stage,
    StageName,
    Step,
    Tick,
)
from realchar.settings import AS_IT_IS, HostMemory, Offload, Settings, Speed, Strategy

log = logging.getLogger("realchar.engine")

TOKENS_OF_TEXT = 320  # of a prompt beside a picture, about
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass
class _Progress:
    """How far a run has come."""

    now: str = "start"
    under_way: bool = False

    def enter(self, stage: StageName) -> Stage:
        self.now = stage
        return Stage(stage)


def _once(work: Work[Any]) -> Callable[[], tuple[str, Make] | None]:
    """Return what gives one run, and then none."""
    makes: list[tuple[str, Make]] = [("", lambda: work)]
    return lambda: makes.pop() if makes else None


def _slow(seconds: float, usual: float) -> Degraded:
    text = (
        f"a step takes {seconds:.1f} s instead of {usual:.1f}: the driver may have moved graphics memory into RAM; a "
        "smaller budget (--vram) helps"
    )
    return Degraded("slow", {"seconds": seconds, "usual": usual}, text)


class Engine:
    """Holds one base on one device. Runs are made one after another, or several in one loop (`together`)."""

    def __init__(
        self,
        base: BaseInfo,
        family: ModelFamily,
        resident_blocks: int | None = None,
        budget: int | None = None,
        strategy: Strategy = Strategy.AUTO,
    ) -> None:
        """The last three are those of `Allotment`, which may be set while nothing runs."""
        self.base = base
        self.family = family
        self.memory = Allotment(base, family, resident_blocks, budget, strategy)
        self._under_way = 0
        self._prompts = PromptCache(family)

    @classmethod
    def load(
        cls,
        base: BaseInfo,
        device: str = "auto",
        offload: Offload = Offload.RESIDENT,
        resident_blocks: int | None = None,
        budget: int | None = None,
        speed: Speed = AS_IT_IS,
        strategy: Strategy = Strategy.AUTO,
        host_memory: HostMemory = HostMemory.AUTO,
    ) -> Engine:
        """Load a base: bfloat16 on a GPU, float32 on the CPU. Raises ModelError, OutOfMemory or InvalidInput.

        offload: resident keeps all weights on the device; stream: what is no layer, and as many blocks as fit; model
        and sequential are accelerate's, for a card only; auto: stream on a card, else resident. A budget holds for
        everything on a card from here on: what asks for more fails.
        """
        target = find_device(device)
        offload = offload.resolved(on_gpu=target.type == "cuda")
        check_speed(speed, offload, target)
        footprint = Footprint.of(base, on_gpu=target.type == "cuda")
        cap(target, None if budget is None else budget - footprint.process)
        try:
            family = QwenImageEdit.load(
                base.path, target, compute_dtype(target), offload, resident_blocks or 0, speed, host_memory
            )
        except torch.OutOfMemoryError:
            needs, remedy = f"{base.weight_bytes / 1e9:.1f} GB on {target}", "choose the offload mode stream"
            if offload is Offload.STREAM:
                needs, remedy = f"memory on {target} for {resident_blocks or 0} resident blocks", "choose fewer of them"
        else:
            log.info("Base %r on %s, offload mode %s", base.title, target, offload)
            family.attend(speed.attention, TOKENS_OF_TEXT + 2 * (base.long_edge // (LATENT * PATCH)) ** 2)
            release(target)
            return cls(base, family, resident_blocks, budget, strategy)
        release(target)  # outside the `except`, which kept the tensors alive
        raise OutOfMemory(
            "oom_load", f"Base {base.title!r} needs {needs}, more than is free; close other programs, or {remedy}."
        )

    @classmethod
    def from_settings(cls, base: BaseInfo, settings: Settings) -> Engine:
        """Load a base as the settings say. Raises as `load`."""
        return cls.load(
            base,
            settings.device,
            settings.offload,
            settings.kept_blocks,
            settings.budget,
            settings.speed,
            settings.strategy,
            settings.host_memory,
        )

    @property
    def on_gpu(self) -> bool:
        return self.family.device.type == "cuda"

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
        """Do the work of one edit; yields its events, the last of which is `Decoded`. Raises as `work`."""
        decoded: Decoded = yield from self.alone(self.work(request, picture, box, loras))
        yield decoded

    def alone(self, work: Work[T]) -> Generator[Event, None, T]:
        """Yield the events of a run that is alone, and return what it returns. Raises what it raises."""
        with closing(self.together(_once(work)).run()) as events:
            for _, event in events:
                if isinstance(event, Ended):
                    if event.error is not None:
                        raise event.error
                    value: T = event.value
                    return value
                yield event
        raise RuntimeError("a run has ended without a word")

    def together(self, more: Callable[[], tuple[K, Make] | None], width: int = 1) -> Together[K]:
        """Return a loop over the runs that `more` gives between steps, at most `width` at a time."""
        return Together(self, more, width)

    def work(
        self,
        request: EditRequest,
        picture: Image.Image,
        box: tuple[int, int, int, int],
        loras: list[Path],
        switch: Switch = lambda: None,
    ) -> Work[Decoded]:
        """Edit `picture` (RGB, sides multiples of 32) and crop the result to `box` (left, top, right, bottom).

        `loras` are the files of `request.loras`, in order; `switch` may change them between steps. Yields the stages' events and asks for velocities; returns the
        picture. Raises ModelError, OutOfMemory, ResultError.
        """
        progress = _Progress()
        try:
            return (yield from self._stages(request, picture, box, loras, switch, progress))
        except torch.OutOfMemoryError:
            pass
        finally:
            self._leave(progress)
        other = "" if self.mode is Offload.STREAM else " or the offload mode stream"
        raise OutOfMemory(
            "oom",
            f"Not enough memory at stage {progress.now!r} for {picture.width}x{picture.height} on {self.family.device}; close "
            f"other programs, or choose a smaller size{other}.",
            stage=progress.now,
        )

    def _stages(
        self,
        request: EditRequest,
        picture: Image.Image,
        box: tuple[int, int, int, int],
        loras: list[Path],
        switch: Switch,
        progress: _Progress,
    ) -> Work[Decoded]:
        began = time.monotonic()
        # 1. Weights: exactly the versions that this request names
        if loras:
            yield progress.enter("load")
        yield from self._enter(request, picture, loras, progress)
        # 2. Prompt and negative prompt, read beside the picture
        yield progress.enter("encode_text")
        embeds = yield from self.memory.spared(partial(self._prompts.embeds, picture, prompts_of(request)))
        # 3. The reference, at the output's own size
        yield progress.enter("encode_image")
        size = picture.height // LATENT, picture.width // LATENT
        tile = self.memory.tile(size, request.tile)
        encode = partial(self.family.encode_image, picture)
        reference = yield from self.memory.spared(partial(with_smaller_tiles, encode, size, tile, self.family.device))
        yield Tick()
        # 4. Plan
        yield progress.enter("plan")
        plan = self._plan(count(size, tile))
        yield plan
        # 5. Denoise
        yield progress.enter("denoise")
        run = yield from self.memory.spared(partial(self._start, request, embeds, reference))
        switches = yield from self._denoise(run, began, switch)
        # 6. Decode
        yield progress.enter("decode")
        decode = partial(self.family.decode, run.result())
        pixels = yield from self.memory.spared(partial(with_smaller_tiles, decode, size, tile, self.family.device))
        image = picture_of(pixels).crop(box)
        yield self._reading()
        return Decoded(image, self._facts(plan) | ({"switches": switches} if switches else {}))

    @property
    def busy(self) -> bool:
        """Tell whether a run is under way."""
        return self._under_way > 0

    def joins(self, loras: list[tuple[Path, float]]) -> bool:
        """Tell whether a run with these versions and strengths may begin now: weights are one for all that are under way."""
        return not self._under_way or self.family.adapters.are(loras)

    def _enter(
        self, request: EditRequest, picture: Image.Image, loras: list[Path], progress: _Progress
    ) -> Generator[Event, None, None]:
        """Have the weights as this run needs them; where others are under way they must be so already."""
        files = list(zip(request.loras, loras, strict=True))
        if not self.joins(versions_of(files)):
            raise InvalidInput("together", "Runs with different LoRA versions can't share a loop; make them in turn.")
        progress.under_way = True
        self._under_way += 1
        if self._under_way == 1:
            yield from self.memory.fit_blocks(request, picture.size, loras)
        yield from self.memory.spared(partial(use, self.family, files))

    def _leave(self, progress: _Progress) -> None:
        if progress.under_way:
            self._under_way -= 1
        if not self._under_way:
            self.family.rest()
            release(self.family.device)

    def _start(
        self, request: EditRequest, embeds: list[Tensor], reference: Reference
    ) -> Generator[Event, None, Denoising]:
        run = Denoising.start(self.family, request, embeds, reference, self.base.preview)
        run.table = yield from ticking(self.family.blocks.prepare(run.timesteps))
        return run

    def _plan(self, tiles: int) -> Planned:
        return Planned(
            mode=self.family.blocks.mode,
            resident=self.family.blocks.num_resident,
            blocks=self.family.num_blocks,
            vae_tiles=tiles,
            device=str(self.family.device),
            dtype=str(self.family.dtype).removeprefix("torch."),
            attention=self.family.attention,
            budget_gb=None if self.memory.budget is None else self.memory.budget / GB,
            precision=self.family.blocks.precision,
            compiled=self.family.blocks.compiled,
        )

    def _denoise(self, run: Denoising, began: float, switch: Switch) -> Work[list[dict[str, Any]]]:
        """Take all steps; returns the switches of versions between them."""
        switches: list[dict[str, Any]] = []
        steps, pace = run.request.steps, Pace()
        first = last = time.monotonic()
        for i in range(steps):
            alone = self._under_way == 1
            switches += yield from switched(run, self.memory, switch, i + 1, alone=alone)
            run.take(i, (yield run.ask(i)))
            now = time.monotonic()
            if self.on_gpu and self._under_way == 1 and (usual := pace.jumps(now - last)) is not None:
                yield _slow(now - last, usual)
            last = now
            eta = (now - first) / (i + 1) * (steps - i - 1)
            yield Step(i + 1, steps, now - began, eta, run.preview(i))
            yield self._reading()
        return switches

    def _reading(self) -> Memory:
        reading = read_memory(str(self.family.device))
        return Memory(reading.kind, reading.used_gb, reading.total_gb)

    def _facts(self, plan: Planned) -> dict[str, Any]:
        base, kept = self.base, self.family.blocks.num_resident  # fewer than planned where memory was short
        return {
            "base": {"title": base.title, "fingerprint": base.fingerprint, "demo": base.demo},
            "plan": asdict(plan) | {"resident": kept, "device": self.device_name},
            "torch": torch.__version__,
        }
