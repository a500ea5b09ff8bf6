"""How much memory a run needs: a pure function of numbers, so that every front end can say it before the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt

from realchar.catalog import BaseInfo
from realchar.engine import tiling
from realchar.engine.tiling import Tile
from realchar.headers import Parts, read_parts, read_sizes
from realchar.presets import MAX_STEPS
from realchar.settings import Offload

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


def least_bytes(base: BaseInfo, offload: Offload, width: int, height: int, *, on_gpu: bool) -> int:
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
    return Need.of(read_parts(base.path), footprint, width, height, MAX_STEPS).peak(0)


def plan_tile(footprint: Footprint, size: Tile, free: int, halo: int) -> Tile | None:
    """Return the VAE's tile for a picture of `size` latents where `free` bytes are free; None: it is done as a whole."""
    latent = PIXELS_PER_LATENT * footprint.vae_width * max(DECODE_BYTES, ENCODE_BYTES) * footprint.precision
    return tiling.choose(size, int(free * VAE_SHARE) // latent, halo)


@dataclass(frozen=True)
class Need:
    """What one run takes while blocks are streamed, in bytes of `blocks` blocks.

    process: beside tensors; block: one block; fixed: what stays; compute: the largest stage above it.
    """

    process: int
    blocks: int
    block: int
    fixed: int
    compute: int

    @classmethod
    def of(cls, parts: Parts, footprint: Footprint, width: int, height: int, steps: int, lora_bytes: int = 0) -> Need:
        """Return what a picture of `width` x `height` pixels needs, its VAE in the smallest tiles."""
        number = 2 * footprint.precision
        rows = parts.blocks * footprint.width * MODULATION * (steps + 2)  # of t = 0 and one to spare
        tokens = 2 * width * height // PIXELS_PER_TOKEN
        tile = (tiling.SMALLEST + 2 * LARGEST_HALO) ** 2 * PIXELS_PER_LATENT * footprint.vae_width
        compute = max(
            SLOTS * parts.text_layer * number + isqrt(parts.text_layer // 12) * TEXT_BYTES * footprint.precision,
            SLOTS * parts.modulation * number,
            tokens * footprint.width * ACTIVATION_BYTES * footprint.precision,
            min(tile, width * height * footprint.vae_width) * DECODE_BYTES * footprint.precision,
        )
        # A card holds what LoRAs add to the blocks in its slots; in RAM is the whole of it.
        lora = SLOTS * lora_bytes // max(1, parts.blocks) if footprint.on_gpu else lora_bytes
        fixed = (parts.rest + rows) * number + lora
        return cls(footprint.process, parts.blocks, parts.block * number, fixed, compute)

    def peak(self, resident: int) -> int:
        """Return the expected peak of the whole process with that many resident blocks."""
        held = resident if resident == self.blocks else resident + SLOTS
        asked = self.fixed + held * self.block + self.compute
        return self.process - (-asked * (100 + ROUNDING) // 100)


def plan_resident(need: Need, total: int) -> int:
    """Return how many blocks may stay on the device where the whole process may take `total` bytes.

    0 also where not even that fits: the run then tries, with smaller tiles.
    """
    room = (total - need.process) * 100 // (100 + ROUNDING) - need.fixed - need.compute
    if room >= need.blocks * need.block:
        return need.blocks
    return max(0, min(need.blocks - 1, room // need.block - SLOTS))


def steady(planned: int, now: int, blocks: int) -> int:
    """Return `now` where hardly more blocks could stay: to spread them anew costs loading them."""
    return now if now <= planned < blocks and planned - now < max(2, blocks // 10) else planned
