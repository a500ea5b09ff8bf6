"""Offload modes of accelerate, for comparison and as a fallback: whole components in turn, or leaf by leaf.

A component is on the device from when it is used until another one is; a leaf's weights during its forward only. What a
block computes is the same in every mode: LoRAs are added on the device, to pristine weights, by the one function for it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import torch
from accelerate import cpu_offload, cpu_offload_with_hook
from accelerate.hooks import UserCpuOffloadHook
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from realchar.engine.blocks import ResidentBlocks, empty_transformer
from realchar.engine.devices import label
from realchar.engine.merge import Patches, set_patched
from realchar.engine.weights import WeightSource
from realchar.settings import Offload

log = logging.getLogger("realchar.engine")


class Turns:
    """Components that wait in RAM and are on the device one at a time; without any, nothing ever moves."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._hooks: dict[str, UserCpuOffloadHook] = {}
        self._there: set[str] = set()

    def add(self, name: str, module: nn.Module) -> None:
        """Take over a component, which moves to RAM."""
        self._hooks[name] = cpu_offload_with_hook(module, self.device)[1]

    def onload(self, name: str) -> None:
        """Have a component on the device and all others off it. Raises torch.OutOfMemoryError, with none of it there.

        The name may be that of a component that never moves.
        """
        for other in sorted(self._there - {name}):
            self._offload(other)
        if name not in self._hooks or name in self._there:
            return
        log.debug("%s -> %s", name, label(self.device))
        self._there.add(name)
        hook = self._hooks[name]
        try:
            with torch.inference_mode(False):  # weights that moved within it could not move outside
                hook.hook.pre_forward(hook.model)
        except torch.OutOfMemoryError:
            self._offload(name)  # half of it may be there
            raise

    def offload(self) -> None:
        """Move to RAM what is on the device."""
        for name in sorted(self._there):
            self._offload(name)

    def _offload(self, name: str) -> None:
        log.debug("%s -> CPU", name)
        with torch.inference_mode(False):
            self._hooks[name].offload()
        self._there.discard(name)


class MovedBlocks(ResidentBlocks):
    """All blocks are on the device while the transformer is; patches are added there, once it has come."""

    mode = Offload.MODEL

    def __init__(self, transformer: QwenImageTransformer2DModel, source: WeightSource, turns: Turns) -> None:
        super().__init__(transformer, source)
        self._turns = turns
        self._waiting: Patches | None = None

    def prepare(self, timesteps: Tensor) -> Generator[None, None, object]:
        self._turns.onload("transformer")
        if self._waiting is not None:
            super().patch(self._waiting)
            self._waiting = None
        return (yield from super().prepare(timesteps))

    def patch(self, patches: Patches) -> None:
        self._waiting = patches


class LeafBlocks(ResidentBlocks):
    """No weight is on the device but those of the layer that runs; they come from the mapped files, patched on arrival."""

    mode = Offload.SEQUENTIAL

    def __init__(self, transformer: QwenImageTransformer2DModel, weights: LeafWeights) -> None:
        super().__init__(transformer, weights.source)
        self._leaves = weights

    @property
    def num_resident(self) -> int:
        return 0

    def patch(self, patches: Patches) -> None:
        self._leaves.patches = patches


class LeafWeights(Mapping[str, Tensor]):
    """A transformer's weights by name, as accelerate asks for them: pristine on the host, or patched on the device."""

    def __init__(self, source: WeightSource, device: torch.device, dtype: torch.dtype) -> None:
        self.source = source
        self.patches: Patches = {}
        self._device = device
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        log.debug("%s -> %s", name, label(self._device))
        patches = self.patches.get(name)
        if not patches:
            return self.source.view(name)
        pristine = self.source.tensor(name, self._device)
        weight = torch.empty(pristine.shape, device=self._device, dtype=self._dtype)
        set_patched(weight, pristine, [patch.to(self._device) for patch in patches])
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.entries)

    def __len__(self) -> int:
        return len(self.source.entries)


def offload_leaves(module: nn.Module, device: torch.device, weights: Mapping[str, Tensor] | None = None) -> None:
    """Have every layer's weights on the device during its forward only; from `weights`, else from the module's own."""
    cpu_offload(module, device, offload_buffers=True, state_dict=weights)


def leaf_transformer(
    folder: Path, device: torch.device, dtype: torch.dtype
) -> tuple[QwenImageTransformer2DModel, LeafBlocks]:
    """Build a transformer from its folder whose layers fetch their weights from the mapped files. Raises ModelError."""
    transformer = empty_transformer(folder).to(dtype=dtype)
    weights = LeafWeights(WeightSource(folder), device, dtype)
    for name, parameter in transformer.named_parameters():
        weights.source.entry(name, tuple(parameter.shape))
    offload_leaves(transformer, device, weights)
    return transformer, LeafBlocks(transformer, weights)
