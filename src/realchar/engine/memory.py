"""How much memory a run needs: a pure function of numbers, so that every front end can say it before the run."""

from __future__ import annotations

from dataclasses import dataclass

from realchar.catalog import BaseInfo

# Upper bounds in bfloat16, measured on an H200 with the full-size architecture (tools/calibrate_memory.py, docs/log.md).
# Bytes of activations for each token and each channel of the transformer above its weights: 37.4 from 512x512 on.
ACTIVATION_BYTES = 40
# Bytes for each pixel and each channel of the VAE's finest level at the peak of the untiled decode: 44.2 to 45.4.
DECODE_BYTES = 46
# What the process takes before any weight: the CUDA context (0.65 GB), or Python with torch in RAM.
PROCESS_BYTES = 700_000_000
PIXELS_PER_TOKEN = 16 * 16  # 8x8 pixels a latent, 2x2 latents a token


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


def estimate_bytes(footprint: Footprint, width: int, height: int) -> int:
    """Return the expected peak in bytes for one picture of `width` x `height` pixels with everything resident."""
    precision = 1 if footprint.on_gpu else 2  # bfloat16 on a GPU, float32 on the CPU
    weights = footprint.weight_bytes * precision
    tokens = 2 * width * height // PIXELS_PER_TOKEN  # noise and reference
    activations = tokens * footprint.width * ACTIVATION_BYTES * precision
    decode = width * height * footprint.vae_width * DECODE_BYTES * precision
    return PROCESS_BYTES + weights + max(activations, decode)
