"""How weights lie on the device once they have arrived: as they are, as 8-bit codes, or as codes that run as such.

What a block computes never depends on whether it is resident: a form rounds streamed weights as it rounds resident ones.
All buffers are bytes (n,) uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from realchar.engine.fp8 import Fp8Linear, Kernels
from realchar.engine.groups import Group
from realchar.settings import Precision, Speed

Load = Callable[[Tensor], None]  # has a group's weights arrive in bytes


class Form(Protocol):
    """What a stream asks of it."""

    unpacks: bool  # what is resident passes through a slot to run

    def adopt(self, group: Group) -> None:
        """Prepare a group's module; once, before anything is bound."""

    def running(self, group: Group) -> int:
        """Return the bytes in which a group runs: of a slot, and of a resident group that does not pass through one."""

    def resident(self, group: Group) -> int:
        """Return the bytes that a group takes for as long as it is resident."""

    def scratch(self, group: Group) -> int:
        """Return the bytes that a group needs while it arrives, beside those in which it runs."""

    def place(self, load: Load, group: Group, buffer: Tensor, scratch: Tensor, held: Tensor | None) -> None:
        """Have a group arrive in the bytes in which it runs and, where there are `held` ones, in those to stay."""

    def show(self, held: Tensor, group: Group, buffer: Tensor) -> None:
        """Make a resident group ready in the bytes in which it runs; only of a form that unpacks."""

    def bind(self, group: Group, buffer: Tensor) -> None:
        """Let the group's parameters be views of the bytes in which it runs."""


class AsArrived:
    """A group runs where it lies, in the numbers in which it arrived."""

    unpacks = False

    def adopt(self, group: Group) -> None: ...
    def running(self, group: Group) -> int:
        return group.layout.numel * group.dtype.itemsize

    def resident(self, group: Group) -> int:
        return self.running(group)

    def scratch(self, group: Group) -> int:  # noqa: ARG002
        return 0

    def place(self, load: Load, group: Group, buffer: Tensor, scratch: Tensor, held: Tensor | None) -> None:  # noqa: ARG002
        load(buffer)

    def show(self, held: Tensor, group: Group, buffer: Tensor) -> None: ...
    def bind(self, group: Group, buffer: Tensor) -> None:
        for name, weight in group.arrived(buffer).items():
            group.parameters[name].data = weight


class HeldAsFp8(AsArrived):
    """Resident groups are codes, half of their bytes; to run, every group is turned back in a slot."""

    unpacks = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def resident(self, group: Group) -> int:
        return group.packing.num_bytes

    def scratch(self, group: Group) -> int:
        return group.packing.num_bytes  # codes of what is not resident, on their way back

    def place(self, load: Load, group: Group, buffer: Tensor, scratch: Tensor, held: Tensor | None) -> None:
        load(buffer)
        packed = scratch if held is None else held
        _pack(self._kernels, group, buffer, packed)
        self.show(packed, group, buffer)

    def show(self, held: Tensor, group: Group, buffer: Tensor) -> None:
        for name, weight in group.arrived(buffer).items():
            place = group.packing.places[name]
            if place.scales is None:
                weight.copy_(place.of(held))
            else:
                self._kernels.dequantise(place.of(held), place.scales_of(held), weight)


class RunsAsFp8:
    """Groups are codes wherever they are, and their linear layers multiply in codes."""

    unpacks = False

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def adopt(self, group: Group) -> None:
        names = {id(parameter): name for name, parameter in group.module.named_parameters()}
        for stored, place in group.packing.places.items():
            if place.scales is not None:
                path = names[id(group.parameters[stored])].removesuffix(".weight")
                owner, _, last = path.rpartition(".")
                linear = group.module.get_submodule(path)
                assert isinstance(linear, nn.Linear), path
                replacement = Fp8Linear(linear)
                setattr(group.module.get_submodule(owner), last, replacement)
                group.scales[stored] = replacement.scale

    def running(self, group: Group) -> int:
        return group.packing.num_bytes

    def resident(self, group: Group) -> int:
        return group.packing.num_bytes

    def scratch(self, group: Group) -> int:
        return group.layout.numel * group.dtype.itemsize

    def place(self, load: Load, group: Group, buffer: Tensor, scratch: Tensor, held: Tensor | None) -> None:  # noqa: ARG002
        load(scratch)
        _pack(self._kernels, group, scratch, buffer)

    def show(self, held: Tensor, group: Group, buffer: Tensor) -> None: ...
    def bind(self, group: Group, buffer: Tensor) -> None:
        for name, place in group.packing.places.items():
            group.parameters[name].data = place.of(buffer)
            if place.scales is not None:
                group.scales[name].data = place.scales_of(buffer)


def _pack(kernels: Kernels, group: Group, arrived: Tensor, packed: Tensor) -> None:
    """Write the weights in `arrived`, which is overwritten, as codes."""
    for name, weight in group.arrived(arrived).items():
        place = group.packing.places[name]
        if place.scales is None:
            place.of(packed).copy_(weight)
        else:
            kernels.quantise(weight, place.of(packed), place.scales_of(packed))


def form_of(speed: Speed) -> Form:
    """Return the form for a precision, its own arithmetic compiled where the blocks are."""
    if speed.precision is Precision.BF16:
        return AsArrived()
    kernels = Kernels(compiled=speed.compiled)
    return HeldAsFp8(kernels) if speed.precision is Precision.FP8 else RunsAsFp8(kernels)
