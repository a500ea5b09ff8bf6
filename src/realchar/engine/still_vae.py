"""Still pictures through the VAE of a video model: its causal 3-D convolutions run as 2-D ones, the rest as it is.

Before its only frame such a convolution sees nothing but zeros, so of its kernel only the last tap in time counts
(`QwenImageCausalConv3d`, diffusers 0.42). Equal to the stock classes up to rounding, at a third of the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders import autoencoder_kl_qwenimage as stock
from torch import Tensor

from realchar.engine.tiling import Reach, Tile, run_tiled


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


def encode(vae: AutoencoderKLQwenImage, pixels: Tensor, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and log variance (N, C, h, w) of pixels (N, 3, H, W); tiled up to the middle block if asked for."""
    encoder, ratio = vae.encoder, vae.spatial_compression_ratio

    def begin(x: Tensor) -> Tensor:
        x = encoder.conv_in(x)
        for block in encoder.down_blocks:
            x = block(x)
        return x

    x = pixels.to(memory_format=torch.channels_last).unsqueeze(2)
    if tile is None:
        x = begin(x)
    else:
        x = run_tiled(begin, x, (tile[0] * ratio, tile[1] * ratio), encoder_reach(vae), shrink=ratio)
    x = encoder.conv_out(encoder.nonlinearity(encoder.norm_out(encoder.mid_block(x))))
    mean, log_variance = vae.quant_conv(x).squeeze(2).chunk(2, 1)
    return mean, log_variance.clamp(-20, 5)


def decode(vae: AutoencoderKLQwenImage, latents: Tensor, tile: Tile | None = None) -> Tensor:
    """Return pixels (N, 3, H, W) of latents (N, C, h, w), not yet clamped; tiled from the middle block on if asked for."""
    decoder = vae.decoder

    def finish(x: Tensor) -> Tensor:
        for block in decoder.up_blocks:
            x = block(x)
        output: Tensor = decoder.conv_out(decoder.nonlinearity(decoder.norm_out(x)))
        return output

    x = decoder.mid_block(decoder.conv_in(vae.post_quant_conv(latents.unsqueeze(2))))
    if tile is None:
        return finish(x).squeeze(2)
    return run_tiled(finish, x, tile, decoder_reach(vae), enlarge=vae.spatial_compression_ratio).squeeze(2)


def encoder_reach(vae: AutoencoderKLQwenImage) -> Reach:
    """Return how many pixels what the middle block is given depends on, around a pixel's own latent.

    A convolution that halves the size pads below and to the right only, so it looks one pixel further there.
    """
    before = after = _radius(vae.encoder.conv_in)
    scale = 1
    for block in vae.encoder.down_blocks:
        if isinstance(block, stock.QwenImageResample):
            after += scale * 2 * _radius(block.resample[1]) - scale
            scale *= 2
        else:
            before += scale * _residual_radius(block)
            after += scale * _residual_radius(block)
    return Reach(before, after)


def decoder_reach(vae: AutoencoderKLQwenImage) -> Reach:
    """Return how many latents a pixel depends on after the middle block, on each side."""
    reach, scale = Fraction(0), 1
    for block in vae.decoder.up_blocks:
        reach += Fraction(sum(map(_residual_radius, block.resnets)), scale)
        if block.upsamplers is not None:
            scale *= 2
            reach += Fraction(_radius(block.upsamplers[0].resample[1]), scale)
    reach += Fraction(_radius(vae.decoder.conv_out), scale)
    return Reach(math.ceil(reach), math.ceil(reach))


def _radius(conv: Any) -> int:
    radius: int = conv.kernel_size[-1] // 2
    return radius


def _residual_radius(block: Any) -> int:
    """Return the reach of a residual block; one that looks everywhere can't be tiled, and this family has none here."""
    if not isinstance(block, stock.QwenImageResidualBlock):
        raise TypeError(f"{type(block).__name__} outside the middle block has no finite reach; run it untiled.")
    return _radius(block.conv1) + _radius(block.conv2)
