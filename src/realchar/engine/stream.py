"""Blocks of weights that pass through a few slots on the device, each loaded while the one before it computes.

A slot holds one block. Its parameters are views of the slot for as long as the block may run, and nothing at other times.
Some blocks may stay resident; they lie evenly between the streamed ones, so that each gives a copy more time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import torch
from torch import Tensor, nn

from realchar.engine.accelerator import Mark
from realchar.engine.devices import label
from realchar.engine.forms import AsArrived, Form, Load
from realchar.engine.groups import Group
from realchar.engine.layout import Shelf, aligned
from realchar.engine.merge import Patches, set_patched
from realchar.engine.residency import HostWeights

log = logging.getLogger("realchar.engine")


@dataclass
class _Slot:
    """Bytes on the device; `held`: the group in them, `ready`: when it has arrived, `free`: when it may be replaced."""

    buffer: Tensor
    free: Mark
    ready: Mark = None
    held: int | None = None


class BlockStream:
    """Gives groups in order, each ready to run, step after step; after the last it has the first ones loaded again.

    What is loaded passes along one line of copies, in order, so that one room for patches and one for weights that are
    turned into another form serve all groups.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        host: HostWeights,
        dtype: torch.dtype,
        *,
        resident: int = 0,
        slots: int = 2,
        cyclic: bool = True,
        form: Form | None = None,
        what: str = "group",
    ) -> None:
        """Allocate resident groups and slots; nothing is loaded before the first step.

        resident: number of groups that stay on the device; slots: number of streamed ones that are there at a time;
        cyclic: a next step follows; without it nothing is loaded beyond the last group; form: in which groups lie on
        the device; what: a group's name in the log.
        """
        self._groups = groups
        self._host = host
        self._accelerator = host.accelerator
        self._cyclic = cyclic
        self._form = form or AsArrived()
        self._what = what
        self._most_slots = slots
        self._nothing = torch.empty(0, device=self._accelerator.device, dtype=dtype)
        self._slots: list[_Slot] = []
        self._resident: dict[int, Tensor] = {}
        self._stale: set[int] = set()  # resident groups that are to be loaded before they run
        self._arriving: dict[int, Mark] = {}  # resident groups that are being loaded
        self._since: Mark = None  # from where on what is stale may be overwritten
        self._patches: Patches = {}
        self._factors = self._scratch = self._nothing.view(torch.uint8)
        for group in groups:
            self._form.adopt(group)
        self.keep(resident)

    def keep(self, resident: int) -> None:
        """Let this many groups stay on the device from the next step on, evenly spread; never during a step.

        What is given up is freed before anything is allocated. Raises torch.OutOfMemoryError, and then holds fewer.
        """
        self._join()
        kept = {i * len(self._groups) // resident for i in range(resident)}
        for i in self._resident.keys() - kept:
            self._unbind(i)
            self._stale.discard(i)
            self._arriving.pop(i, None)
            del self._resident[i]
        try:
            if len(kept) == len(self._groups) and not self._form.unpacks:
                self._slots = []
            for i in sorted(kept - self._resident.keys()):
                self._resident[i] = self._buffer(self._form.resident(self._groups[i]))
                if not self._form.unpacks:
                    self._bind(i, self._resident[i])
                self._stale.add(i)
        finally:
            streamed = (i for i in range(len(self._groups)) if self._form.unpacks or i not in self._resident)
            self._passing = dict.fromkeys(streamed)
        self._allocate_slots()

    def _allocate_slots(self) -> None:
        """Have the slots that the streamed groups need; those that are there already stay."""
        size = max((self._form.running(self._groups[i]) for i in self._passing), default=0)
        number = min(self._most_slots, len(self._passing))
        if self._slots and self._slots[0].buffer.numel() != size:
            self._slots = []
        while len(self._slots) < number:
            self._slots.append(_Slot(self._buffer(size), self._accelerator.mark()))
        del self._slots[number:]
        self._make_room()

    def _make_room(self) -> None:
        """Have room for any group's patches and for its weights while they are turned into another form."""
        for name, size in (
            ("_factors", max(map(self._factor_bytes, range(len(self._groups))), default=0)),
            ("_scratch", max(map(self._form.scratch, self._groups), default=0)),
        ):
            if getattr(self, name).numel() < size:
                setattr(self, name, self._buffer(size))
        self._since = self._accelerator.mark()
        for slot in self._slots:
            slot.free = self._since

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    @property
    def num_bytes(self) -> int:
        """Return what slots, resident groups and the room beside them take on the device."""
        buffers = (*(slot.buffer for slot in self._slots), *self._resident.values(), self._factors, self._scratch)
        return sum(buffer.nbytes for buffer in buffers)

    def patch(self, patches: Patches) -> None:
        """Add these patches, and no others, to every group that runs from now on; they stay on the host.

        Raises torch.OutOfMemoryError, and is to be called again then.
        """
        self._join()
        self._stale |= {i for i in self._resident if self._touches(i, self._patches) or self._touches(i, patches)}
        self._patches = patches
        for slot in self._slots:
            slot.held = None
        self._factors = self._nothing.view(torch.uint8)
        self._make_room()

    def step(self) -> Generator[nn.Module, None, None]:
        """Give each group's module, ready to run until the next is asked for. May be closed at any of them."""
        try:
            for i, group in enumerate(self._groups):
                self._prefetch(i)
                if i not in self._passing:
                    if i in self._arriving:
                        self._accelerator.wait(self._arriving[i])
                        del self._arriving[i]
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
            self._prefetch(len(self._groups))
        except BaseException:
            self._join()
            raise

    def _join(self) -> None:
        """Have all loads queued, so that none holds memory any more; those that failed are to be done again."""
        for slot in self._slots:
            if not self._is_queued(slot.ready):
                slot.held = slot.ready = None
        for i in [i for i, mark in self._arriving.items() if not self._is_queued(mark)]:
            del self._arriving[i]
            self._stale.add(i)

    def _is_queued(self, mark: Mark) -> bool:
        try:
            self._accelerator.join(mark)
        except Exception:  # told where the group was waited for; the others fail alike, or their turn never came
            return False
        return True

    def _prefetch(self, i: int) -> None:
        """Have the groups loaded that run next, from group `i` on: streamed ones, and resident ones that are stale."""
        if not self._slots and not self._stale:
            return
        coming = chain(range(i, len(self._groups)), range(i) if self._cyclic else ())
        wanted = list(islice((j for j in coming if j in self._passing or j in self._stale), self._most_slots))
        held = {slot.held for slot in self._slots if slot.held in self._passing}  # what came to stay left its slot
        free = [slot for slot in self._slots if slot.held not in wanted]
        for j in (j for j in wanted if j not in held):
            if j in self._passing:
                slot = free.pop()
                slot.held = None  # if loading fails, it holds nothing
                slot.ready = self._load(slot.buffer, j, slot.free)
                slot.held = j
            else:
                self._arriving[j] = self._load(self._resident[j], j, self._since)
            self._stale.discard(j)

    def _load(self, buffer: Tensor, i: int, after: Mark) -> Mark:
        """Queue what makes a group ready in `buffer`, once its bytes and the room beside them are free."""
        log.debug("%s %d/%d -> %s", self._what, i + 1, len(self._groups), label(self._accelerator.device))
        group = self._groups[i]
        held = self._resident.get(i) if i in self._passing else None
        if held is not None and i not in self._stale:
            return self._accelerator.submit(partial(self._show, buffer, held, group), after)
        arrive = partial(self._arrive, i, self._patches, self._factors)
        return self._accelerator.submit(partial(self._place, buffer, arrive, group, self._scratch, held), after)

    @torch.no_grad()
    def _place(self, buffer: Tensor, arrive: Load, group: Group, scratch: Tensor, held: Tensor | None) -> None:
        self._form.place(arrive, group, buffer, scratch, held)

    @torch.no_grad()
    def _show(self, buffer: Tensor, held: Tensor, group: Group) -> None:
        self._form.show(held, group, buffer)

    def _arrive(self, i: int, patches: Patches, factors: Tensor, buffer: Tensor) -> None:
        """Copy a group's weights into the bytes (n,), and add its patches."""
        group = self._groups[i]
        numbers = buffer.view(group.dtype)
        for run in group.layout.runs:
            span = self._host.span(run.file, run.start, run.stop, run.dtype)
            self._host.upload(numbers[run.offset : run.offset + run.numel], span)
        added = self._patches_there(i, patches, factors)
        for name, weight in group.arrived(buffer).items() if added else ():
            if name in added:
                set_patched(weight, self._pristine(name, weight), added[name])

    def _patches_there(self, i: int, patches: Patches, factors: Tensor) -> Patches:
        """Return the group's patches on the device, in the bytes of `factors`."""
        shelf = Shelf(factors)
        return {
            name: [
                patch.having({part: shelf.put(tensor) for part, tensor in patch.tensors.items()})
                for patch in patches[name]
            ]
            for name in self._groups[i].layout.places
            if name in patches
        }

    def _factor_bytes(self, i: int) -> int:
        """Return the bytes in which a group's patches have room."""
        patches = [patch for name in self._groups[i].layout.places for patch in self._patches.get(name, ())]
        return sum(aligned(tensor) for patch in patches for tensor in patch.tensors.values())

    def _pristine(self, name: str, weight: Tensor) -> Tensor:
        """Return the weight itself, or a copy in the dtype of the file where that is another: it is rounded only once."""
        entry = self._host.source.entry(name)
        if entry.dtype == weight.dtype:
            return weight
        stored = torch.empty(weight.shape, device=weight.device, dtype=entry.dtype)
        self._host.upload(stored.flatten(), self._host.span(entry.file, entry.start, entry.stop, entry.dtype))
        return stored

    def _buffer(self, num_bytes: int) -> Tensor:
        with torch.inference_mode(False):  # a run in inference mode may make it, another thread may fill it
            buffer = torch.empty(num_bytes, device=self._accelerator.device, dtype=torch.uint8)
        self._accelerator.adopt(buffer)
        return buffer

    def _bind(self, i: int, buffer: Tensor) -> None:
        with torch.inference_mode(False):  # compiled code tells tensors apart that were made in it
            self._form.bind(self._groups[i], buffer)

    def _unbind(self, i: int) -> None:
        group = self._groups[i]
        for parameter in chain(group.parameters.values(), group.scales.values()):
            parameter.data = self._nothing

    def _touches(self, i: int, patches: Patches) -> bool:
        return any(name in patches for name in self._groups[i].layout.places)
