"""How the memory of one device is divided: what stays there, and what the runs of one loop take."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

from realchar.catalog import BaseInfo
from realchar.engine.blocks import StreamedBlocks
from realchar.engine.devices import cap, free_bytes
from realchar.engine.families.base import ModelFamily
from realchar.engine.families.qwen_image_edit import LATENT
from realchar.engine.ladder import keep_or_fewer, with_fewer_blocks
from realchar.engine.memory import FREE_SHARE, Footprint, Need, plan_resident, plan_tile, plan_width, steady
from realchar.engine.prompts import prompts_of
from realchar.engine.tiling import Tile
from realchar.headers import read_parts
from realchar.schema import EditRequest, Event
from realchar.settings import Strategy

T = TypeVar("T")


class Allotment:
    """The plan of `realchar.engine.memory`, for one base on one device."""

    def __init__(
        self, base: BaseInfo, family: ModelFamily, resident_blocks: int | None, budget: int | None, strategy: Strategy
    ) -> None:
        """Where blocks are streamed, `resident_blocks` of them stay on the device; None: as many as the budget allows.

        budget: bytes that the whole process may take on a card; None: what is free; strategy: what memory beyond the
        weights is for. All three may be set while nothing runs.
        """
        self.base = base
        self.family = family
        self.resident_blocks = resident_blocks
        self.budget = budget
        self.strategy = strategy

    @property
    def footprint(self) -> Footprint:
        return Footprint.of(self.base, on_gpu=self.family.device.type == "cuda")

    @property
    def room(self) -> int | None:
        """Return the bytes that tensors may take, or None: what is free."""
        return None if self.budget is None else self.budget - self.footprint.process

    def width(self, request: EditRequest) -> int:
        """Return how many runs like this one may share a loop.

        With the strategy for batches as many as fit, where blocks pass through slots: these are loaded once for all. Else
        one, so that each picture is there as soon as it can be.
        """
        blocks, edge = self.family.blocks, self.base.long_edge
        if self.strategy is not Strategy.BATCH or not isinstance(blocks, StreamedBlocks):
            return 1

        def need(width: int) -> Need:
            return self._need(blocks, request, (edge, edge), 0, width)

        total = self._total(blocks)
        stay = plan_resident(need(1), total) if self.resident_blocks is None else self.resident_blocks
        return 1 if stay == need(1).blocks else plan_width(need, total)

    def fit_blocks(
        self, request: EditRequest, size: tuple[int, int], loras: list[Path]
    ) -> Generator[Event, None, None]:
        """Let as many blocks stay on the device as were asked for, or as fit the budget beside this run."""
        cap(self.family.device, self.room)  # the budget may be another one than at the last run
        blocks = self.family.blocks
        if not isinstance(blocks, StreamedBlocks):
            return
        wanted = self.resident_blocks
        if wanted is None:
            lora_bytes = sum(path.stat().st_size for path in loras)
            need = self._need(blocks, request, size, lora_bytes, self.width(request))
            wanted = steady(plan_resident(need, self._total(blocks)), blocks.num_resident, need.blocks)
        yield from keep_or_fewer(blocks, wanted, self.family.device)

    def _need(
        self, blocks: StreamedBlocks, request: EditRequest, size: tuple[int, int], lora_bytes: int, width: int
    ) -> Need:
        return Need.of(
            read_parts(self.base.path),
            self.footprint,
            *size,
            request.steps,
            lora_bytes,
            precision=blocks.precision,
            branches=width * len(prompts_of(request)),
            whole_vae=self.strategy is Strategy.QUALITY,
        )

    def _total(self, blocks: StreamedBlocks) -> int:
        """Return what the whole process may take: the budget, or what it takes already and most of what is free."""
        if self.budget is not None:
            return self.budget
        stays = read_parts(self.base.path).rest * self.family.dtype.itemsize
        free = int(free_bytes(self.family.device) * FREE_SHARE)
        return self.footprint.process + stays + blocks.num_bytes + free

    def spared(self, attempt: Callable[[], Generator[Event, None, T]]) -> Generator[Event, None, T]:
        return with_fewer_blocks(attempt, self.family.blocks, self.family.device)

    def tile(self, size: Tile, asked: int | None) -> Tile | None:
        """Return the tile for a picture of `size` latents: of `asked` pixels, else by the memory that is free now."""
        if asked is not None:
            tile = min(size[0], asked // LATENT), min(size[1], asked // LATENT)
            return None if tile == size else tile
        return plan_tile(self.footprint, size, free_bytes(self.family.device, self.room), self.family.halo)
