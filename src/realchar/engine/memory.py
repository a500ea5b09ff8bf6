"""How much memory a run needs: a pure function of numbers, so that every front end can say it before the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt

from realchar.catalog import BaseInfo
from realchar.engine import tiling
from realchar.engine.tiling import Tile
from realchar.headers import Parts, read_parts, read_sizes
from realchar.presets import MAX_STEPS
from realchar.settings import Offload, Precision

# Upper bounds in bfloat16, measured on an H200 with the full-size architecture (tools/calibrate_memory.py, docs/log.md).
# Bytes of activations for each token and each channel of the transformer above its weights: 37.4 from 512x512 on.
ACTIVATION_BYTES = 40
# Bytes for each pixel and each channel of the VAE's finest level, of the part that is tiled. Measured: 14.2 decoding, 7.1
# encoding. Live tensors counted (python -m pytest tests/test_memory.py -s): 10.2 and 8.5; kernels take the rest.
DECODE_BYTES = 15
ENCODE_BYTES = 12
VAE_SHARE = 0.9  # of the free memory, for decoding or encoding
# What the process takes beside its tensors: the CUDA context with the kernels' code and the card's table of the host memory
# that is locked for it, a byte for each 300 (0.83 GB and 0.18 GB measured); or Python with torch in RAM.
CONTEXT_BYTES = 850_000_000
LOCKED_BYTES_A_BYTE = 300
PYTHON_BYTES = 700_000_000
ROUNDING = 4  # percent that the allocator may take beyond what is asked of it
# Bytes of activations for each channel of the text encoder while prompts are read: 0.08 GB measured at full size. A layer
# has about 12 numbers for each pair of channels.
TEXT_BYTES = 22_000
BRANCHES = 2  # of a run with CFG, which is what activations were measured with
STATE_BYTES = (
    3  # for each token and channel, of what a further branch keeps between blocks: its states, angles and rows
)
MOST_TOGETHER = 8  # runs in one loop
SCALES = 2  # percent that scales and what is no matrix add to 8-bit codes
SLOTS = 2  # of the transformer's blocks, of the text encoder's layers, of modulation weights: each while it streams
MODULATION = 12  # numbers of a row of the table for each block and channel
FREE_SHARE = 0.95  # of the memory that is free, where no budget is given
LARGEST_HALO = 13  # latents
PIXELS_PER_LATENT = 8 * 8
PIXELS_PER_TOKEN = 16 * 16  # 2x2 latents a token


@dataclass(frozen=True)
class Footprint:
    """What a base takes: bytes of its weights as stored (bfloat16), widths of transformer and VAE, where it runs."""

    weight_bytes: int
    width: int
    vae_width: int
    on_gpu: bool

    @classmethod
    def of(cls, base: BaseInfo, *, on_gpu: bool) -> Footprint:
        return cls(base.weight_bytes, base.width, base.vae_width, on_gpu)

    @property
    def precision(self) -> int:
        """Return how many times the bytes of bfloat16 a number takes: on the CPU the engine computes in float32."""
        return 1 if self.on_gpu else 2

    @property
    def process(self) -> int:
        """Return the bytes that the process takes beside its tensors."""
        return CONTEXT_BYTES + self.weight_bytes // LOCKED_BYTES_A_BYTE if self.on_gpu else PYTHON_BYTES


def estimate_bytes(footprint: Footprint, width: int, height: int) -> int:
    """Return the expected peak in bytes for one picture of `width` x `height` pixels with everything resident, untiled."""
    weights = footprint.weight_bytes * footprint.precision
    tokens = 2 * width * height // PIXELS_PER_TOKEN  # noise and reference
    activations = tokens * footprint.width * ACTIVATION_BYTES * footprint.precision
    decode = width * height * footprint.vae_width * DECODE_BYTES * footprint.precision
    return footprint.process + weights + max(activations, decode)


def least_bytes(
    base: BaseInfo,
    offload: Offload,
    width: int,
    height: int,
    *,
    on_gpu: bool,
    precision: Precision = Precision.BF16,
) -> int:
    """Return the least that the process needs for a picture in an offload mode. Raises ModelError, InvalidInput."""
    footprint = Footprint.of(base, on_gpu=on_gpu)
    offload = offload.resolved(on_gpu=on_gpu)
    if offload.needs_card:  # the largest component, or the largest tensor beside the VAE, is there at a time
        sizes = read_sizes(base.path)
        whole = max(sizes.components.values())
        held = whole if offload is Offload.MODEL else sizes.largest + sizes.components["vae"]
        footprint = replace(footprint, weight_bytes=held)
    if offload is not Offload.STREAM:
        return estimate_bytes(footprint, width, height)
    return Need.of(read_parts(base.path), footprint, width, height, MAX_STEPS, precision=precision).peak(0)


def plan_tile(footprint: Footprint, size: Tile, free: int, halo: int) -> Tile | None:
    """Return the VAE's tile for a picture of `size` latents where `free` bytes are free; None: it is done as a whole."""
    latent = PIXELS_PER_LATENT * footprint.vae_width * max(DECODE_BYTES, ENCODE_BYTES) * footprint.precision
    return tiling.choose(size, int(free * VAE_SHARE) // latent, halo)


@dataclass(frozen=True)
class Need:
    """What one run takes while blocks are streamed, in bytes of `blocks` blocks.

    process: beside tensors; block: a block that stays; slots: what the others pass through; unpacks: the blocks that stay
    as well; fixed: what stays; compute: the largest stage above it.
    """

    process: int
    blocks: int
    block: int
    slots: int
    unpacks: bool
    fixed: int
    compute: int

    @classmethod
    def of(
        cls,
        parts: Parts,
        footprint: Footprint,
        width: int,
        height: int,
        steps: int,
        lora_bytes: int = 0,
        *,
        precision: Precision = Precision.BF16,
        branches: int = BRANCHES,
        whole_vae: bool = False,
    ) -> Need:
        """Return what pictures of `width` x `height` pixels need in one loop, on one schedule.

        branches: forwards that take a step together, two for each picture with CFG; whole_vae: the VAE is to do a picture as a whole; else it may be in the smallest tiles.
        """
        number = 2 * footprint.precision
        rows = parts.blocks * footprint.width * MODULATION * (steps + 2)  # of t = 0 and one to spare
        tokens = 2 * width * height // PIXELS_PER_TOKEN
        tile = (tiling.SMALLEST + 2 * LARGEST_HALO) ** 2 * PIXELS_PER_LATENT * footprint.vae_width
        area = width * height * footprint.vae_width
        states = max(0, branches - BRANCHES) * STATE_BYTES
        compute = max(
            SLOTS * parts.text_layer * number + isqrt(parts.text_layer // 12) * TEXT_BYTES * footprint.precision,
            SLOTS * parts.modulation * number,
            tokens * footprint.width * (ACTIVATION_BYTES + states) * footprint.precision,
            (area if whole_vae else min(tile, area)) * DECODE_BYTES * footprint.precision,
        )
        # A card holds what LoRAs add to the blocks in its slots; in RAM is the whole of it.
        lora = SLOTS * lora_bytes // max(1, parts.blocks) if footprint.on_gpu else lora_bytes
        fixed = (parts.rest + rows) * number + lora
        block = parts.block * number
        if precision is Precision.BF16:
            return cls(footprint.process, parts.blocks, block, SLOTS * block, False, fixed, compute)
        codes = parts.block * (100 + SCALES) // 100
        in_slot, arriving = (block, codes) if precision is Precision.FP8 else (codes, block)
        slots = SLOTS * in_slot + arriving
        return cls(footprint.process, parts.blocks, codes, slots, True, fixed, compute)

    def peak(self, resident: int) -> int:
        """Return the expected peak of the whole process with that many resident blocks."""
        slots = self.slots if self.unpacks or resident < self.blocks else 0
        asked = self.fixed + resident * self.block + slots + self.compute
        return self.process - (-asked * (100 + ROUNDING) // 100)


def plan_resident(need: Need, total: int) -> int:
    """Return how many blocks may stay on the device where the whole process may take `total` bytes.

    0 also where not even that fits: the run then tries, with smaller tiles.
    """
    room = (total - need.process) * 100 // (100 + ROUNDING) - need.fixed - need.compute
    if room >= need.blocks * need.block + (need.slots if need.unpacks else 0):
        return need.blocks
    return max(0, min(need.blocks - 1, (room - need.slots) // need.block))


def plan_width(need: Callable[[int], Need], total: int) -> int:
    """Return how many runs may share a loop, at least one, where the whole process may take `total` bytes.

    need: what so many runs need.
    """
    return max((width for width in range(1, MOST_TOGETHER + 1) if need(width).peak(0) <= total), default=1)


def steady(planned: int, now: int, blocks: int) -> int:
    """Return `now` where hardly more blocks could stay: to spread them anew costs loading them."""
    return now if now <= planned < blocks and planned - now < max(2, blocks // 10) else planned
