"""The transformer's blocks, ready to run one after the other: all resident, or streamed through slots."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Protocol

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from realchar.engine.accelerator import Accelerator, accelerator_of
from realchar.engine.compiled import compile_blocks
from realchar.engine.forms import form_of
from realchar.engine.groups import load_remaining, take_over
from realchar.engine.merge import Patches, set_patched
from realchar.engine.modulation import FromTable, ModulationTables
from realchar.engine.residency import HostWeights
from realchar.engine.stream import BlockStream
from realchar.engine.weights import WeightSource
from realchar.errors import too_many_blocks
from realchar.lora.target import concerns_modulation
from realchar.settings import AS_IT_IS, HostMemory, Offload, Precision, Speed

log = logging.getLogger("realchar.engine")

BLOCKS = "transformer_blocks."


class Blocks(Protocol):
    """What a step asks of the blocks, and how adapters reach the weights."""

    mode: Offload
    precision: Precision
    compiled: bool  # they take rotary factors as real pairs then

    @property
    def num_resident(self) -> int: ...
    def prepare(self, timesteps: Tensor) -> Generator[None, None, object]:
        """Get ready for a schedule (n,), sigmas in 0…1; yields between pieces of work, at each of which it may end.

        What it returns is to be kept for as long as the schedule runs.
        """

    def modulation(self, timestep: Tensor, temb: Tensor) -> Sequence[Tensor]:
        """Return what each block takes as `temb` at a timestep (1,) whose embedding is `temb`."""

    def step(self) -> Generator[nn.Module, None, None]:
        """Give each block, ready to run until the next is asked for; may be closed at any of them."""

    def patch(self, patches: Patches) -> None:
        """Make all weights equal pristine + patches, by the names of the weights."""


class ResidentWeights:
    """Some of a module's weights, which stay on the device and are refreshed from disk when patches change."""

    def __init__(self, module: nn.Module, source: WeightSource) -> None:
        self._module = module
        self._source = source
        self._touched: set[str] = set()

    @torch.no_grad()
    def patch(self, patches: Patches) -> None:
        for name in sorted(patches.keys() | self._touched):
            self._touched.add(name)
            weight = self._module.get_parameter(name)
            added = [patch.to(weight.device) for patch in patches.get(name, ())]
            set_patched(weight, self._source.tensor(name, weight.device), added)
        self._touched = set(patches)


class ResidentBlocks:
    """All blocks lie on the device; modulation is computed in them."""

    mode = Offload.RESIDENT
    precision = Precision.BF16

    def __init__(
        self, transformer: QwenImageTransformer2DModel, source: WeightSource, *, compiled: bool = False
    ) -> None:
        """Take a transformer whose weights are all there. Raises ModelError where it is to be compiled and can't be."""
        self._transformer = transformer
        self._weights = ResidentWeights(transformer, source)
        self.compiled = compiled
        if compiled:
            compile_blocks(transformer, transformer.device)

    @property
    def num_resident(self) -> int:
        return len(self._transformer.transformer_blocks)

    def prepare(self, timesteps: Tensor) -> Generator[None, None, object]:  # noqa: ARG002
        yield from ()
        return None

    def modulation(self, timestep: Tensor, temb: Tensor) -> Sequence[Tensor]:  # noqa: ARG002
        return [temb] * len(self._transformer.transformer_blocks)

    def step(self) -> Generator[nn.Module, None, None]:
        yield from self._transformer.transformer_blocks

    def patch(self, patches: Patches) -> None:
        self._weights.patch(patches)


class StreamedBlocks:
    """Blocks pass through slots, their modulation comes from a table; what is no block stays on the device."""

    mode = Offload.STREAM

    def __init__(
        self,
        transformer: QwenImageTransformer2DModel,
        host: HostWeights,
        dtype: torch.dtype,
        *,
        resident: int = 0,
        slots: int = 2,
        speed: Speed = AS_IT_IS,
    ) -> None:
        """Take over a transformer on the meta device. Raises ModelError, InvalidInput."""
        blocks = transformer.transformer_blocks
        self.precision, self.compiled = speed.precision, speed.compiled
        if not 0 <= resident <= len(blocks):
            raise too_many_blocks(resident, len(blocks))
        self.choice = host.choice
        self._transformer = transformer
        nothing = torch.empty(0, device=host.accelerator.device, dtype=dtype)
        groups, modulations = [], []
        for i, block in enumerate(blocks):
            block.img_mod, block.txt_mod = FromTable(block.img_mod, 0), FromTable(block.txt_mod, 1)
            names = {name: f"{BLOCKS}{i}.{name}" for name, _ in block.named_parameters()}
            groups.append(take_over(block, _those(names, modulation=False), nothing, host.source))
            modulations.append(take_over(block, _those(names, modulation=True), nothing, host.source))
        load_remaining(transformer, host, dtype)
        self._weights = ResidentWeights(transformer, host.source)
        self._stream = BlockStream(
            groups, host, dtype, resident=resident, slots=slots, form=form_of(speed), what="block"
        )
        self._tables = ModulationTables(
            transformer,
            dtype,
            lambda: BlockStream(modulations, host, dtype, slots=slots, cyclic=False, what="modulation"),
        )
        if speed.compiled:
            compile_blocks(transformer, host.accelerator.device)

    @property
    def num_resident(self) -> int:
        return self._stream.num_resident

    @property
    def num_bytes(self) -> int:
        """Return what the blocks take on the device, now."""
        return self._stream.num_bytes

    def keep(self, resident: int) -> None:
        """Let this many blocks stay on the device, from the next step on. Raises torch.OutOfMemoryError."""
        self._stream.keep(resident)

    def prepare(self, timesteps: Tensor) -> Generator[None, None, object]:
        return (yield from self._tables.prepare(timesteps))

    def modulation(self, timestep: Tensor, temb: Tensor) -> Sequence[Tensor]:  # noqa: ARG002
        return self._tables.rows(timestep)

    def step(self) -> Generator[nn.Module, None, None]:
        yield from self._stream.step()

    def patch(self, patches: Patches) -> None:
        self._weights.patch({name: added for name, added in patches.items() if not name.startswith(BLOCKS)})
        self._tables.patch(patches)
        self._stream.patch({name: p for name, p in patches.items() if not concerns_modulation(name)})


def _those(names: dict[str, str], *, modulation: bool) -> dict[str, str]:
    return {name: stored for name, stored in names.items() if concerns_modulation(stored) == modulation}


def empty_transformer(folder: Path) -> QwenImageTransformer2DModel:
    """Build a transformer on the meta device by the config in its folder."""
    config = QwenImageTransformer2DModel.load_config(folder, local_files_only=True)
    with torch.device("meta"):
        transformer = QwenImageTransformer2DModel.from_config(config)
    rope = transformer.pos_embed  # its frequencies are plain tensors: made anew where the meta device has them
    transformer.pos_embed = type(rope)(theta=rope.theta, axes_dim=rope.axes_dim, scale_rope=rope.scale_rope)
    return transformer


def stream_transformer(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    resident: int = 0,
    slots: int = 2,
    speed: Speed = AS_IT_IS,
    host_memory: HostMemory = HostMemory.AUTO,
    accelerator: Accelerator | None = None,
) -> tuple[QwenImageTransformer2DModel, StreamedBlocks]:
    """Build a transformer from its folder without ever holding its blocks' weights. Raises ModelError, InvalidInput."""
    transformer = empty_transformer(folder)
    host = HostWeights(WeightSource(folder), accelerator or accelerator_of(device), host_memory=host_memory)
    blocks = StreamedBlocks(transformer, host, dtype, resident=resident, slots=slots, speed=speed)
    log.info("Weights of %d blocks wait %s: %s", len(transformer.transformer_blocks), *astuple(host.choice))
    return transformer, blocks
