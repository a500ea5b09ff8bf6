"""The host's side of streaming: one component's weights in the tier that the machine allows, copied to the device."""

from __future__ import annotations

import ctypes
import os
import platform
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from realchar.engine.accelerator import Accelerator, Aside, Mark
from realchar.engine.tiers import HostFacts, TierChoice, choose_tier, only
from realchar.engine.weights import WeightSource, typed
from realchar.machine import GB, read_ram
from realchar.settings import HostMemory

RING_BUFFERS = 4
RING_BYTES = 256 * 2**20  # of one buffer; docs/log.md has what copies through it reach
RING_THREADS = 8


class HostWeights:
    """The bytes of a source's files on the host, never written to, and the way in which they reach the device."""

    def __init__(
        self,
        source: WeightSource,
        accelerator: Accelerator,
        facts: HostFacts | None = None,
        host_memory: HostMemory = HostMemory.AUTO,
    ) -> None:
        """`host_memory`: the fastest tier that is tried."""
        self.source = source
        self.accelerator = accelerator
        self._ring: StagingRing | None = None
        facts = facts or host_facts(source, accelerator, host_memory)
        self._data = {file: source.mapping(file) for file in sorted({e.file for e in source.entries.values()})}
        self.choice = self._settle(facts)
        if self.choice.tier == "staging":
            self._ring = StagingRing(accelerator)
            self.accelerator = Aside(accelerator)  # filling it is not to hold back the launch of what is computed

    def span(self, file: Path, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Return bytes of a file as numbers (n,), a view. Never write to it."""
        return typed(self._data[file][start:stop], dtype)

    def upload(self, target: Tensor, span: Tensor) -> None:
        """Queue the copy of a span (n,) into `target` (n,) on the device, converted where its dtype is another."""
        if self._ring is None:
            target.copy_(span, non_blocking=True)
        else:
            self._ring.upload(target, span)

    def _settle(self, facts: HostFacts) -> TierChoice:
        """Ask the rule, try what it says, and ask again with what the driver refused."""
        refused = dict(facts.refused)
        while True:
            choice = choose_tier(HostFacts(facts.on_gpu, facts.system, facts.ram_free_gb, facts.weights_gb, refused))
            if choice.tier not in ("registered", "pinned"):
                return choice
            refusal = self._lock(copy=choice.tier == "pinned")
            if refusal is None:
                return choice
            refused[choice.tier] = refusal

    def _lock(self, *, copy: bool) -> str | None:
        """Lock the mapped files, or copies of them; returns the driver's refusal, with nothing left locked, or None."""
        locked: dict[Path, Tensor] = {}
        refusal = None
        for file in self._data:
            # Not torch's own pinned memory: it takes the next power of two of what is asked.
            data = self.source.mapping(file).clone() if copy else self.source.mapping(file)
            refusal = self.accelerator.register(data, read_only=not copy)
            if refusal is not None:
                break
            locked[file] = data
        if refusal is not None:
            _unlock(self.accelerator, locked)
            return refusal
        self._data = locked
        weakref.finalize(self, _unlock, self.accelerator, locked)
        return None


def host_facts(source: WeightSource, accelerator: Accelerator, host_memory: HostMemory) -> HostFacts:
    """Read what the rule looks at from this machine."""
    ram = read_ram()
    free = ram.total_gb - ram.used_gb
    return HostFacts(accelerator.on_gpu, platform.system(), free, source.num_bytes / GB, only(host_memory))


def _unlock(accelerator: Accelerator, locked: Mapping[Path, Tensor]) -> None:
    for data in locked.values():
        accelerator.unregister(data)


class StagingRing:
    """A few locked buffers in turn: threads fill one while the card copies from those before it."""

    def __init__(
        self, accelerator: Accelerator, buffers: int = RING_BUFFERS, num_bytes: int = RING_BYTES, threads: int = 0
    ) -> None:
        self._accelerator = accelerator
        self._buffers = [accelerator.locked(num_bytes) for _ in range(buffers)]
        self._marks: list[Mark] = [None] * buffers
        self._turn = 0
        self._threads = threads or min(RING_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="staging")

    def upload(self, target: Tensor, span: Tensor) -> None:
        """Queue the copy of a span (n,) into `target` (n,), on the line that is current."""
        step = len(self._buffers[0]) // span.element_size()
        for start in range(0, len(span), step):
            piece = span[start : start + step]
            num_bytes = piece.numel() * piece.element_size()
            buffer = self._next()
            self._fill(buffer, piece, num_bytes)
            target[start : start + step].copy_(buffer[:num_bytes].view(span.dtype), non_blocking=True)
            self._marks[self._turn] = self._accelerator.mark()

    def _next(self) -> Tensor:
        self._turn = (self._turn + 1) % len(self._buffers)
        self._accelerator.settle(self._marks[self._turn])
        return self._buffers[self._turn]

    def _fill(self, buffer: Tensor, piece: Tensor, num_bytes: int) -> None:
        share = -(-num_bytes // self._threads)
        parts = [(start, min(share, num_bytes - start)) for start in range(0, num_bytes, share)]
        to, source = buffer.data_ptr(), piece.data_ptr()
        # ctypes lets go of Python's lock while it copies, so the threads really run side by side.
        for future in [self._pool.submit(ctypes.memmove, to + start, source + start, n) for start, n in parts]:
            future.result()
