"""Still pictures through the VAE of a video model: its causal 3-D convolutions run as 2-D ones, the rest as it is.

Before its only frame such a convolution sees nothing but zeros, so of its kernel only the last tap in time counts
(`QwenImageCausalConv3d`, diffusers 0.42). Equal to the stock classes up to rounding, at a third of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders import autoencoder_kl_qwenimage as stock
from torch import Tensor


def planar_conv(self: Any, x: Tensor, _cache: Tensor | None = None) -> Tensor:
    """Take the place of the convolution's forward, on x (N, C, 1, H, W)."""
    rows, columns = self._padding[2], self._padding[0]
    weight = self.weight[:, :, -1].to(memory_format=torch.channels_last)
    stride = (self.stride[1], self.stride[2])
    return F.conv2d(x.squeeze(2), weight, self.bias, stride=stride, padding=(rows, columns)).unsqueeze(2)


def fused_norm(self: Any, x: Tensor) -> Tensor:
    """As the class's normalisation over channels, by the fused kernel."""
    last = x.movedim(1, -1)
    gamma = self.gamma.flatten().to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):  # the kernel computes in float32 by itself
        return F.rms_norm(last, (last.shape[-1],), gamma, 1e-12).movedim(-1, 1)


@contextmanager
def planar() -> Iterator[None]:
    """Run the stock classes without their third dimension; for one thread at a time, since it changes the classes."""
    conv: Any = stock.QwenImageCausalConv3d
    norm: Any = stock.QwenImageRMS_norm
    before = conv.forward, norm.forward
    conv.forward, norm.forward = planar_conv, fused_norm
    try:
        yield
    finally:
        conv.forward, norm.forward = before


def encode(vae: AutoencoderKLQwenImage, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log variance (N, C, h, w) of pixels (N, 3, H, W)."""
    pixels = pixels.to(memory_format=torch.channels_last)
    mean, log_variance = vae.quant_conv(vae.encoder(pixels.unsqueeze(2))).squeeze(2).chunk(2, 1)
    return mean, log_variance.clamp(-20, 5)


def decode(vae: AutoencoderKLQwenImage, latents: Tensor) -> Tensor:
    """Return pixels (N, 3, H, W) of latents (N, C, h, w), not yet clamped."""
    pixels: Tensor = vae.decoder(vae.post_quant_conv(latents.unsqueeze(2))).squeeze(2)
    return pixels
