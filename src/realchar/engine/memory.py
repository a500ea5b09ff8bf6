"""How much memory a run needs: a pure function of numbers, so that every front end can say it before the run."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of activations for each token and each channel of the transformer above its weights.
ACTIVATION_BYTES = 36
# Bytes for each pixel that the untiled decode of one picture needs at its peak, in bfloat16 and in float32.
DECODE_BYTES = {True: 4400, False: 8800}
# What the process takes before any weight: the CUDA context, or Python with torch in RAM.
PROCESS_BYTES = 600_000_000
PIXELS_PER_TOKEN = 16 * 16  # 8x8 pixels a latent, 2x2 latents a token


@dataclass(frozen=True)
class Footprint:
    """What a base takes: bytes of its weights as stored (bfloat16), width of its transformer, where it runs."""

    weight_bytes: int
    width: int
    on_gpu: bool


def estimate_bytes(footprint: Footprint, width: int, height: int) -> int:
    """Return the expected peak in bytes for one picture of `width` x `height` pixels with everything resident."""
    weights = footprint.weight_bytes * (1 if footprint.on_gpu else 2)  # computed in float32 on the CPU
    tokens = 2 * width * height // PIXELS_PER_TOKEN  # noise and reference
    activations = tokens * footprint.width * ACTIVATION_BYTES * (1 if footprint.on_gpu else 2)
    decode = width * height * DECODE_BYTES[footprint.on_gpu]
    return PROCESS_BYTES + weights + max(activations, decode)
