"""The modulation of every block, computed once for a schedule: it depends on the timestep alone.

A third of the transformer's weights, `img_mod` and `txt_mod` of each block, is read once to fill the table and not
touched again while denoising. Rows equal what the block computes bit for bit: they come from the same modules, on inputs
of the same shape.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from realchar.engine.merge import Patches
from realchar.engine.stream import BlockStream
from realchar.engine.work import result_of
from realchar.errors import ResultError
from realchar.lora.target import TIME_EMBEDDER, concerns_modulation

CACHED_BYTES = 256 * 2**20  # of tables on the device; the full-size base takes 4.4 MB a timestep in bfloat16


def embed_timestep(transformer: QwenImageTransformer2DModel, timestep: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the embedding (1, D) of a timestep (1,); with `zero_cond_t` (2, D), the second row that of t = 0."""
    timestep = timestep.to(dtype)
    if transformer.zero_cond_t:  # reference tokens are modulated as of t = 0: they carry no noise
        timestep = torch.cat([timestep, timestep * 0])
    embedded: Tensor = transformer.time_text_embed(timestep, torch.empty(0, device=timestep.device, dtype=dtype))
    return embedded


class FromTable(nn.Sequential):
    """In place of a block's modulation, under the same names: takes its half of what the block is given as `temb`."""

    def __init__(self, modulation: nn.Sequential, part: int) -> None:
        super().__init__(*modulation)
        self._part = part

    def forward(self, temb: Tensor) -> Tensor:
        """Return this modulation (N, 6 D) of a row of the table (N, 12 D)."""
        return temb.chunk(2, dim=-1)[self._part]

    def compute(self, temb: Tensor) -> Tensor:
        """Return the modulation (N, 6 D) of an embedding (N, D), as the block itself would."""
        computed: Tensor = super().forward(temb)  # type: ignore[no-untyped-call]
        return computed


@dataclass(frozen=True, eq=False)
class _Table:
    """For each block the rows (timesteps, 12 D): modulation of picture and text; `zero`: the row (1, 12 D) of t = 0."""

    index: dict[float, int]
    rows: list[Tensor]
    zero: list[Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.rows + self.zero)


_Key = tuple[tuple[float, ...], tuple[object, ...]]


class ModulationTables:
    """The tables of recent schedules, shared by all runs with the same schedule and the same LoRAs on modulation."""

    def __init__(
        self,
        transformer: QwenImageTransformer2DModel,
        dtype: torch.dtype,
        stream: Callable[[], BlockStream],
        cached_bytes: int = CACHED_BYTES,
    ) -> None:
        """`stream` makes the pass through the blocks' modulation weights; each step of it gives the block itself."""
        self._transformer = transformer
        self._dtype = dtype
        self._stream = stream
        self._cached_bytes = cached_bytes
        self._patches: Patches = {}
        self._origins: tuple[object, ...] = ()
        self._tables: OrderedDict[_Key, _Table] = OrderedDict()
        self._alive: WeakValueDictionary[_Key, _Table] = WeakValueDictionary()  # also those that only a run keeps

    def patch(self, patches: Patches) -> None:
        """Take over the patches of modulation weights; those of the time embedder only tell tables apart."""
        relevant = {name: added for name, added in patches.items() if concerns_modulation(name)}
        self._patches = {name: added for name, added in relevant.items() if not name.startswith(TIME_EMBEDDER)}
        self._origins = tuple((name, tuple(p.origin for p in added)) for name, added in sorted(relevant.items()))

    def prepare(self, timesteps: Tensor) -> Generator[None, None, object]:
        """Compute the table of a schedule (n,), sigmas in 0…1, unless it is there; yields after each block.

        Returns it: who keeps that has it there for as long. Raises ResultError where it holds no numbers.
        """
        values = tuple(timesteps.to(self._dtype).tolist())
        key = values, self._origins
        table = self._alive.get(key)
        if table is None:
            table = self._alive[key] = yield from self._compute(values)
        self._tables[key] = table
        self._tables.move_to_end(key)
        while len(self._tables) > 1 and sum(t.num_bytes for t in self._tables.values()) > self._cached_bytes:
            self._tables.popitem(last=False)
        return table

    def rows(self, timestep: Tensor) -> list[Tensor]:
        """Return for each block what it takes as `temb` at a timestep (1,): (1, 12 D), with `zero_cond_t` (2, 12 D)."""
        value = float(timestep.to(self._dtype).item())
        table = self._find(value)
        if table is None:  # of no prepared schedule: a schedule of its own
            result_of(self.prepare(timestep))
            table = self._tables[(value,), self._origins]
        i = table.index[value]
        rows = [rows[i : i + 1] for rows in table.rows]
        return [torch.cat(both) for both in zip(rows, table.zero, strict=True)] if table.zero else rows

    def _find(self, value: float) -> _Table | None:
        tables = (table for (_, origins), table in self._alive.items() if origins == self._origins)
        return next((table for table in tables if value in table.index), None)

    def _compute(self, values: Sequence[float]) -> Generator[None, None, _Table]:
        index = {value: i for i, value in enumerate(dict.fromkeys(values))}
        device = self._transformer.img_in.weight.device
        embedded = [
            embed_timestep(self._transformer, torch.tensor([value], device=device, dtype=self._dtype), self._dtype)
            for value in index
        ]
        table = _Table(index, [], [])
        stream = self._stream()
        stream.patch(self._patches)
        with closing(stream.step()) as blocks:
            for block in blocks:
                rows = [_both(block, temb) for temb in embedded]
                table.rows.append(torch.cat([row[:1] for row in rows]))
                if self._transformer.zero_cond_t:
                    table.zero.append(rows[0][1:].clone())
                yield
        if not torch.stack([rows.isfinite().all() for rows in table.rows + table.zero]).all():
            message = "Numbers overflowed in the transformer's modulation; choose another LoRA version, or less of it."
            raise ResultError("nan", message)
        return table


def _both(block: nn.Module, temb: Tensor) -> Tensor:
    """Return (N, 12 D): the picture's modulation and the text's, which never looks at the row of t = 0."""
    image = block.get_submodule("img_mod").compute(temb)  # type: ignore[operator]
    text = block.get_submodule("txt_mod").compute(temb[:1])  # type: ignore[operator]
    return torch.cat([image, text.expand(len(image), -1)], dim=-1)
