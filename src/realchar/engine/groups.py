"""Weights of a module that move together: where each of them lies on disk and on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from realchar.engine.layout import Layout, Packing, lay_out, pack
from realchar.engine.residency import HostWeights
from realchar.engine.weights import WeightSource


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
    dtype: torch.dtype  # in which it arrives
    scales: dict[str, nn.Parameter] = field(default_factory=dict)  # of the weights that run as 8-bit codes

    @cached_property
    def packing(self) -> Packing:
        """Return the places of its weights as 8-bit codes."""
        return pack(self.layout, self.dtype)

    def arrived(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the weights among the bytes in which they arrived, as views."""
        numbers = buffer.view(self.dtype)
        return {
            name: numbers[offset : offset + shape.numel()].view(shape)
            for name, (offset, shape) in self.layout.places.items()
        }


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
    return Group(module, parameters, lay_out(source, shapes, nothing.dtype), nothing.dtype)
