"""A still picture through 2-D convolutions comes out as the stock VAE gives it."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d, QwenImageRMS_norm

from realchar.engine import still_vae


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLQwenImage:
    """Random weights in every tap, those in time too."""
    torch.manual_seed(0)
    made = AutoencoderKLQwenImage(base_dim=16, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, attn_scales=[])
    return made.eval()


@pytest.mark.parametrize("size", [(32, 32), (48, 80)])
@torch.inference_mode()
def test_it_equals_the_stock_vae(vae: AutoencoderKLQwenImage, size: tuple[int, int]) -> None:
    pixels = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    stock_latents = vae.encode(pixels[:, :, None]).latent_dist.mode()
    stock_pixels = vae.decode(stock_latents, return_dict=False)[0][:, :, 0]
    with still_vae.planar():
        latents = still_vae.encode(vae, pixels)[0]
        output = still_vae.decode(vae, latents).clamp(-1, 1)
    assert stock_latents.std() > 0.01 and stock_pixels.std() > 0.01
    assert torch.allclose(latents, stock_latents[:, :, 0], atol=1e-5)
    assert torch.allclose(output, stock_pixels, atol=1e-5)


def test_the_classes_are_as_before_also_after_an_error() -> None:
    before = QwenImageCausalConv3d.forward, QwenImageRMS_norm.forward
    with pytest.raises(RuntimeError, match="stop"), still_vae.planar():
        assert QwenImageCausalConv3d.forward is still_vae.planar_conv
        raise RuntimeError("stop")
    assert (QwenImageCausalConv3d.forward, QwenImageRMS_norm.forward) == before
