"""Blocks of weights that pass through a few slots on the device, each loaded while the one before it computes.

A slot holds one block. Its parameters are views of the slot for as long as the block may run, and nothing at other times.
Some blocks may stay resident; they lie evenly between the streamed ones, so that each gives a copy more time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from realchar.engine.accelerator import Mark
from realchar.engine.devices import label
from realchar.engine.layout import Layout, Shelf, aligned, lay_out
from realchar.engine.merge import Patches, set_patched
from realchar.engine.residency import HostWeights
from realchar.engine.weights import WeightSource

log = logging.getLogger("realchar.engine")


def load_remaining(
    module: nn.Module, host: HostWeights, dtype: torch.dtype, stored: Callable[[str], str] = str
) -> None:
    """Load every parameter that is still on the meta device to stay on the device; `stored` gives its name on disk."""
    for name, parameter in list(module.named_parameters()):
        if not parameter.is_meta:
            continue
        host.source.entry(stored(name), tuple(parameter.shape))
        owner, _, last = name.rpartition(".")
        loaded = host.source.tensor(stored(name), host.accelerator.device).to(dtype)
        setattr(module.get_submodule(owner), last, nn.Parameter(loaded, requires_grad=False))


@dataclass(frozen=True)
class Group:
    """What moves together: a module, and those of its parameters that do, by the names of their weights on disk."""

    module: nn.Module
    parameters: Mapping[str, nn.Parameter]
    layout: Layout


def take_over(module: nn.Module, wanted: Mapping[str, str], nothing: Tensor, source: WeightSource) -> Group:
    """Return the group of those parameters of a module on the meta device that `wanted` names, by their names on disk.

    They are replaced by ones that hold `nothing`, an empty tensor of the device and dtype on which they will run. Raises
    ModelError if one of the weights is amiss.
    """
    parameters, shapes = {}, {}
    for name, stored in wanted.items():
        owner, _, last = name.rpartition(".")
        shapes[stored] = module.get_parameter(name).shape
        parameters[stored] = nn.Parameter(nothing, requires_grad=False)
        setattr(module.get_submodule(owner), last, parameters[stored])
    return Group(module, parameters, lay_out(source, shapes, nothing.dtype))


@dataclass
class _Slot:
    """A buffer on the device; `held`: the group in it, `ready`: when it has arrived, `free`: when it may be replaced.

    factors: bytes on the device through which the group's patches pass.
    """

    buffer: Tensor
    factors: Tensor
    free: Mark
    ready: Mark = None
    held: int | None = None


class BlockStream:
    """Gives groups in order, each ready to run, step after step; after the last it has the first ones loaded again."""

    def __init__(
        self,
        groups: Sequence[Group],
        host: HostWeights,
        dtype: torch.dtype,
        *,
        resident: int = 0,
        slots: int = 2,
        cyclic: bool = True,
        what: str = "group",
    ) -> None:
        """Allocate resident groups and slots; nothing is loaded before the first step.

        resident: number of groups that stay on the device; slots: number of streamed ones that are there at a time;
        cyclic: a next step follows; without it nothing is loaded beyond the last group; what: a group's name in the log.
        """
        self._groups = groups
        self._host = host
        self._accelerator = host.accelerator
        self._cyclic = cyclic
        self._what = what
        self._most_slots = slots
        self._nothing = torch.empty(0, device=self._accelerator.device, dtype=dtype)
        self._slots: list[_Slot] = []
        self._resident: dict[int, Tensor] = {}
        self._stale: set[int] = set()  # resident groups that are to be loaded before they run
        self._patches: Patches = {}
        self.keep(resident)

    def keep(self, resident: int) -> None:
        """Let this many groups stay on the device from the next step on, evenly spread; never during a step.

        What is given up is freed before anything is allocated. Raises torch.OutOfMemoryError, and then holds fewer.
        """
        kept = {i * len(self._groups) // resident for i in range(resident)}
        for i in self._resident.keys() - kept:
            self._unbind(i)
            self._stale.discard(i)
            del self._resident[i]
        try:
            if len(kept) == len(self._groups):
                self._slots = []
            for i in sorted(kept - self._resident.keys()):
                self._resident[i] = self._buffer(self._groups[i].layout.numel)
                self._bind(i, self._resident[i])
                self._stale.add(i)
        finally:
            self._order = [i for i in range(len(self._groups)) if i not in self._resident]
        self._allocate_slots()

    def _allocate_slots(self) -> None:
        """Have the slots that the streamed groups need; those that are there already stay."""
        size = max((self._groups[i].layout.numel for i in self._order), default=0)
        number = min(self._most_slots, len(self._order))
        if self._slots and self._slots[0].buffer.numel() != size:
            self._slots = []
        while len(self._slots) < number:
            self._slots.append(_Slot(self._buffer(size), self._nothing.view(torch.uint8), self._accelerator.mark()))
        del self._slots[number:]
        self._make_room()

    def _make_room(self) -> None:
        """Let every streamed group's patches have room in every slot."""
        size = self._factor_bytes(self._order)
        for slot in self._slots:
            if slot.factors.nbytes < size:
                slot.factors = self._buffer(size, torch.uint8)
                slot.free = self._accelerator.mark()  # from here on the new memory may be written to

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    @property
    def num_bytes(self) -> int:
        """Return what slots and resident groups take on the device."""
        slots = [buffer for slot in self._slots for buffer in (slot.buffer, slot.factors)]
        return sum(buffer.nbytes for buffer in (*slots, *self._resident.values()))

    def patch(self, patches: Patches) -> None:
        """Add these patches, and no others, to every group that runs from now on; they stay on the host.

        Raises torch.OutOfMemoryError, and is to be called again then.
        """
        touched = {i for i in self._resident if self._touches(i, self._patches) or self._touches(i, patches)}
        self._stale |= touched
        self._patches = patches
        for slot in self._slots:
            slot.held = None
            slot.factors = self._nothing.view(torch.uint8)
        self._make_room()

    def step(self) -> Generator[nn.Module, None, None]:
        """Give each group's module, ready to run until the next is asked for. May be closed at any of them."""
        self._refresh()
        at = 0  # in the order of streamed groups
        for i, group in enumerate(self._groups):
            self._prefetch(at)
            if i in self._resident:
                yield group.module
                continue
            slot = next(slot for slot in self._slots if slot.held == i)
            self._accelerator.wait(slot.ready)
            self._bind(i, slot.buffer)
            try:
                yield group.module
            finally:
                slot.free = self._accelerator.mark()
                self._unbind(i)
            at += 1
        self._prefetch(at)

    def _refresh(self) -> None:
        if not self._stale:
            return
        factors = self._buffer(self._factor_bytes(self._stale), torch.uint8)
        while self._stale:
            i = next(iter(self._stale))
            fill = partial(self._fill, self._resident[i], factors, i, self._patches)
            self._accelerator.wait(self._accelerator.submit(fill, self._accelerator.mark()))
            self._stale.discard(i)

    def _prefetch(self, at: int) -> None:
        """Have the groups loaded that run next, from the streamed one at `at` on, where a slot is free for them."""
        wanted = self._order[at : at + len(self._slots)]
        if self._cyclic:
            wanted += self._order[: len(self._slots) - len(wanted)]
        held = {slot.held for slot in self._slots}
        free = [slot for slot in self._slots if slot.held not in wanted]
        for i in (i for i in wanted if i not in held):
            slot = free.pop()
            slot.held = None  # if loading fails, it holds nothing
            fill = partial(self._fill, slot.buffer, slot.factors, i, self._patches)
            slot.ready = self._accelerator.submit(fill, slot.free)
            slot.held = i

    @torch.no_grad()
    def _fill(self, buffer: Tensor, factors: Tensor, i: int, patches: Patches) -> None:
        log.debug("%s %d/%d -> %s", self._what, i + 1, len(self._groups), label(self._accelerator.device))
        layout = self._groups[i].layout
        for run in layout.runs:
            span = self._host.span(run.file, run.start, run.stop, run.dtype)
            self._host.upload(buffer[run.offset : run.offset + run.numel], span)
        for name, added in self._arrived(i, factors, patches).items():
            offset, shape = layout.places[name]
            weight = buffer[offset : offset + shape.numel()].view(shape)
            set_patched(weight, self._pristine(name, weight), added)

    def _arrived(self, i: int, factors: Tensor, patches: Patches) -> Patches:
        """Return the group's patches on the device, in the bytes of `factors`."""
        shelf = Shelf(factors)
        return {
            name: [replace(patch, up=shelf.put(patch.up), down=shelf.put(patch.down)) for patch in patches[name]]
            for name in self._groups[i].layout.places
            if name in patches
        }

    def _factor_bytes(self, groups: Iterable[int]) -> int:
        """Return the bytes in which the patches of any of these groups have room."""

        def bytes_of(i: int) -> int:
            patches = [patch for name in self._groups[i].layout.places for patch in self._patches.get(name, ())]
            return sum(aligned(patch.up) + aligned(patch.down) for patch in patches)

        return max(map(bytes_of, groups), default=0)

    def _pristine(self, name: str, weight: Tensor) -> Tensor:
        """Return the weight itself, or a copy in the dtype of the file where that is another: it is rounded only once."""
        entry = self._host.source.entry(name)
        if entry.dtype == weight.dtype:
            return weight
        stored = torch.empty(weight.shape, device=weight.device, dtype=entry.dtype)
        self._host.upload(stored.flatten(), self._host.span(entry.file, entry.start, entry.stop, entry.dtype))
        return stored

    def _buffer(self, numel: int, dtype: torch.dtype | None = None) -> Tensor:
        with torch.inference_mode(False):  # a run in inference mode may make it, another thread may fill it
            buffer = torch.empty(numel, device=self._accelerator.device, dtype=dtype or self._nothing.dtype)
        self._accelerator.adopt(buffer)
        return buffer

    def _bind(self, i: int, buffer: Tensor) -> None:
        for name, (offset, shape) in self._groups[i].layout.places.items():
            self._groups[i].parameters[name].data = buffer[offset : offset + shape.numel()].view(shape)

    def _unbind(self, i: int) -> None:
        for parameter in self._groups[i].parameters.values():
            parameter.data = self._nothing

    def _touches(self, i: int, patches: Patches) -> bool:
        return any(name in patches for name in self._groups[i].layout.places)
